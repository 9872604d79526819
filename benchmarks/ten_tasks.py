"""Ten things that people do with the app: the keys that each takes after the first screen, and the time, at 80x24.

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
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.reporting import app, publish, table
from tests.terminal import Terminal

COMMAND = app()
MARK = 8
STILL_S = 0.15
DAY_S = 86_400
SMALL = "--d-model 64 --d-ff 128 --num-layers 2 --num-heads 2 --vocab-size 500 --batch 2 --device cpu --threads 1"
PRESSED = {
    "Enter": "\r", "Space": " ", "Tab": "\t", "Esc": "\x1b", "Down": "\x1b[B", "Up": "\x1b[A", "Right": "\x1b[C",
    "Left": "\x1b[D", "Home": "\x1b[H",
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
    """A task with the keys that do it. `begins_with` are options, and `first` keys, of what is there before it."""

    name: str
    keys: str
    done: Callable[[Place], bool]
    begins_with: str = ""
    first: str = ""
    when: str = "Configure"
    """On the screen before the first counted key."""


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
        lambda place: place.shows(r"train-step(.*\n)+.*verdict +\w"),
    ),
    Task("compare two sessions", "7 m Down m 8 v", lambda place: place.shows(r"A / B")),
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
)
"""Of each, the keys on the first screen of an app that finds two sessions, of yesterday and of today."""


def do(task: Task, home: Path) -> tuple[int, float]:
    """Do a task in a new app; returns the number of keys and the seconds from the first to the result."""
    with tempfile.TemporaryDirectory() as work:
        environment = {
            "XDG_DATA_HOME": str(home),
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_STATE_HOME": str(home / "state"),
        }
        os.chdir(work)
        terminal = Terminal([*COMMAND, *task.begins_with.split()], columns=80, rows=24, env=environment)
        place = Place(home, Path(work), terminal)
        try:
            terminal.until("Configure")
            _press(terminal, task.first)
            terminal.until(lambda text: bool(re.search(task.when, text)))
            _until_still(terminal)
            began = time.perf_counter()
            keys = _press(terminal, task.keys)
            _until(lambda: task.done(place), task, terminal)
            return keys, time.perf_counter() - began
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
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(rounds: int, output: Path | None) -> None:
    rows = []
    made = Path(tempfile.mkdtemp())
    prepare(made)
    for task in TASKS:
        times = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                home = Path(folder, "home")
                shutil.copytree(made, home)
                keys, taken_s = do(task, home)
            times.append(taken_s)
        rows.append([task.name, f"`{task.keys}`", str(keys), f"{statistics.median(times):.1f}"])
    shutil.rmtree(made)
    most = max(int(row[2]) for row in rows)
    body = table(["task", "keys after the first screen", "number", "seconds"], rows)
    publish(
        "Ten tasks", f"python -m benchmarks.ten_tasks --rounds {rounds}", f"{body}\n\nMost: {most}, mark {MARK}", output
    )


if __name__ == "__main__":
    main()
