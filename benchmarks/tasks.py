"""Things that people do with the tool: the keys that each takes after the first screen, or the commands, and the time,
at 80x24.

Each key is pressed when the screen has been still for a moment, as by one who reads it. A task is done when its result
is on the screen, in a file or in the terminal's clipboard.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.reporting import app, publish, table
from cs336_tui.stats.quantities import counted
from tests.terminal import Terminal

COMMAND = app()
MARK = 8
TRACE = Path(__file__).parents[1] / "tests" / "data" / "v100-training.trace.json"
STILL_S = 0.15
DAY_S = 86_400
SMALL = "--d-model 64 --d-ff 128 --num-layers 2 --num-heads 2 --vocab-size 500 --batch 2 --device cpu --threads 1"
PRESSED = {
    "Enter": "\r", "Space": " ", "Tab": "\t", "Esc": "\x1b", "Down": "\x1b[B", "Up": "\x1b[A", "Right": "\x1b[C",
    "Left": "\x1b[D", "Home": "\x1b[H", "Ctrl+U": "\x15",
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """The place of a task: a home folder with sessions, the folder of work, and the terminal."""

    home: Path
    work: Path
    terminal: Terminal

    def shows(self, pattern: str) -> bool:
        return bool(re.search(pattern, self.terminal.text()))

    def wrote(self, suffix: str, *texts: str) -> bool:
        """True if a file with this suffix lies in the folder of work or below it, and has these texts."""
        found = (path.read_text() for path in self.work.rglob(f"*{suffix}"))
        return any(all(text in each for text in texts) for each in found)

    def copied(self) -> str:
        """The text that was sent to the terminal's clipboard last."""
        sent = re.findall(rb"\x1b\]52;c;([A-Za-z0-9+/=]+)", bytes(self.terminal.raw))
        return base64.b64decode(sent[-1]).decode() if sent else ""


@dataclass(frozen=True)
class Task:
    """A task with the keys that do it, or the commands between ``&&``. `begins_with` are options, and `first` keys, of
    what is there before it; `later` are keys for when `between` is on the screen."""

    name: str
    keys: str
    done: Callable[[Place], bool]
    begins_with: str = ""
    first: str = ""
    when: str = "Configure"
    """On the screen before the first counted key."""
    later: str = ""
    between: str = ""
    is_command: bool = False


def prepare(home: Path) -> None:
    """Two sessions of four cells, with kernels: the older is moved to yesterday."""
    for day in (1, 0):
        words = f"{SMALL} --context 16,32 --pass forward,train-step --steps 10 --warmup 2 --reports kernels"
        sessions = home / "cs336-tui" / "sessions"
        command = [*COMMAND, "bench", *words.split(), "--session-dir", str(sessions)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise click.ClickException(done.stderr)
        if day:
            _move_to_yesterday(max(sessions.glob("*.jsonl")))


def _day(before: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(time.time() - before * DAY_S))


def _move_to_yesterday(log: Path) -> None:
    """Move all times of a log one day back, its name included."""
    then = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime(time.time() - DAY_S))
    name = f"{then}-{log.stem.rsplit('-', 1)[-1]}"
    moved = []
    for line in log.read_text().splitlines():
        text = line.replace(log.stem, name)
        moved.append(re.sub(r'"at":([0-9.]+)', lambda found: f'"at":{float(found[1]) - DAY_S!r}', text, count=1))
    log.with_name(f"{name}.jsonl").write_text("\n".join(moved) + "\n")
    if (files := log.with_suffix(".files")).exists():
        files.rename(log.with_name(f"{name}.files"))
    log.unlink()


TASKS: Sequence[Task] = (
    Task(
        "choose 2 sizes x 2 contexts and run",
        "Tab Right Space Tab Right Space r",
        lambda place: place.shows(r"cell 1/12"),
    ),
    Task(
        "stop, and resume",
        "s u",
        lambda place: place.shows(r"measuring [1-9]\d*/400"),
        begins_with=f"{SMALL} --context 16 --pass forward,train-step --steps 400",
        first="r",
        when=r"measuring \d+/400",
    ),
    Task(
        "find yesterday's session",
        "7 Down Enter",
        lambda place: place.shows(rf"session {_day(1)} .*opened") and place.shows("train-step"),
    ),
    Task("export LaTeX", "7 Enter e Right Enter", lambda place: place.wrote(".tex", r"\toprule", r"\label")),
    Task(
        "read the slowest cell's verdict",
        "7 Enter o Home Enter",
        lambda place: place.shows(r"train-step(.*\n)+.*95 % interval"),
    ),
    Task("compare two sessions", "7 m Down m 8", lambda place: place.shows(r"A / B|ratio")),
    Task("the top kernel", "7 Enter 9", lambda place: place.shows(r"Name.*\n +\d+\.\d .* mm ")),
    Task(
        "the largest batch that fits an A100",
        "i g a 1 Enter n",
        lambda place: place.shows(r"largest batch.*\n.* \d{2,} "),
        begins_with="--size small --context 512 --pass train-step",
    ),
    Task(
        "change the theme for good",
        "t Down Enter",
        lambda place: any("\ntheme" in path.read_text() for path in place.home.rglob("config.toml")),
    ),
    Task("paste a table into a write-up", "7 Enter c", lambda place: place.copied().startswith("|")),
    Task(
        "time attention of one's own",
        f"cs336-tui example attention > mine.py && cs336-tui bench {SMALL} --context 16 --attention naive,mine:attend",
        lambda place: place.shows(r"session log") and b"mine:attend" in place.terminal.raw,
        is_command=True,
    ),
    Task(
        "DDP against FSDP, with exposed communication",
        f"cs336-tui bench {SMALL} --context 16 --pass train-step --ranks 2 --parallel none,ddp,fsdp2 --repeats 3 && "
        "cs336-tui export last --layout data-parallel",
        lambda place: bool(re.search(rb"exposed.*fsdp2", bytes(place.terminal.raw), re.DOTALL)),
        is_command=True,
    ),
    Task(
        "tune in a minute and keep the winner",
        "U Up Ctrl+U 1 m Enter",
        lambda place: any(place.home.rglob("presets/*.toml")),
        begins_with=f"{SMALL} --context 16 --pass train-step --attention naive,sdpa,flash",
        when="torch",
        between="Save the best",
        later="w Enter",
    ),
    Task("open a trace", "7 O . / v Tab Enter", lambda place: place.shows(r"v100.trace.json.*recorded")),
    Task("a handout's problem", ": g r a d Enter", lambda place: place.shows(r"2026/gradient_checkpointing")),
)
"""Of each, the keys on the first screen of an app that finds two sessions, of yesterday and of today, and a trace; of a
command the commands."""


def do(task: Task, home: Path) -> tuple[int, float]:
    """Do a task in a new app or shell; returns the number of keys or commands and the seconds from the first of them to
    the result."""
    with tempfile.TemporaryDirectory() as work:
        environment = {
            "XDG_DATA_HOME": str(home),
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_STATE_HOME": str(home / "state"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        os.chdir(work)
        shutil.copyfile(TRACE, "v100.trace.json")
        command = ["bash", "-c", f"{task.keys}; cat"] if task.is_command else [*COMMAND, *task.begins_with.split()]
        terminal = Terminal(command, columns=80, rows=24, env=environment)
        place, began = Place(home, Path(work), terminal), time.perf_counter()
        try:
            count = task.keys.count(" && ") + 1
            if not task.is_command:
                terminal.until("Configure")
                _press(terminal, task.first)
                terminal.until(lambda text: bool(re.search(task.when, text)))
                _until_still(terminal)
                began = time.perf_counter()
                count = _press(terminal, task.keys)
                if task.later:
                    terminal.until(task.between, timeout_s=90)
                    count += _press(terminal, task.later)
            _until(lambda: task.done(place), task, terminal)
            return count, time.perf_counter() - began
        finally:
            terminal.close()


def _press(terminal: Terminal, keys: str) -> int:
    for key in keys.split():
        terminal.send(PRESSED.get(key, key))
        _until_still(terminal)
    return len(keys.split())


def _until_still(terminal: Terminal) -> None:
    """Wait until nothing was written for `STILL_S`."""
    before = -1
    while before != terminal.bytes_written:
        before = terminal.bytes_written
        time.sleep(STILL_S)  # the thing waited for is that nothing happens


def _until(true: Callable[[], bool], task: Task, terminal: Terminal) -> None:
    ends_at = time.monotonic() + 60
    while not true():
        if time.monotonic() > ends_at:
            raise click.ClickException(f"{task.name}: not done by {task.keys}; the screen was:\n{terminal.text()}")
        time.sleep(0.02)


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--only", default="", help="Only tasks with this in their name.")
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(rounds: int, only: str, output: Path | None) -> None:
    rows = []
    made = Path(tempfile.mkdtemp())
    prepare(made)
    for task in (task for task in TASKS if only in task.name):
        times = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                home = Path(folder, "home")
                shutil.copytree(made, home)
                count, taken_s = do(task, home)
            times.append(taken_s)
        number = counted(count, "command") if task.is_command else str(count)
        rows.append([task.name, f"`{task.keys} {task.later}`", number, f"{statistics.median(times):.1f}"])
    shutil.rmtree(made)
    most = max((int(row[2]) for row in rows if row[2].isdigit()), default=0)
    body = table(["task", "keys after the first screen", "number", "seconds"], rows)
    publish("Tasks", f"python -m benchmarks.tasks --rounds {rounds}", f"{body}\n\nMost: {most}, mark {MARK}", output)


if __name__ == "__main__":
    main()
