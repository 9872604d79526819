"""Fuzz test of generated flags, presets, themes, logs and recordings: every answer must be short, quick and clean."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from benchmarks import hostile
from benchmarks.reporting import app, publish, table
from tests.watching import PATIENCE_S

SLOWEST_S = 2.0
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters that no command may write: all but newline and tab."""
LONGEST_REFUSAL = 4000


class Answer(NamedTuple):
    """Result of a command line. `raised` is a traceback, empty if there was none."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str
    took_s: float
    raised: str = ""

    def faults(self) -> list[str]:
        """Faults of the answer; empty if there are none."""
        found = ["traceback"] if self.raised or "Traceback (most recent" in self.err else []
        found += ["slow"] if self.took_s > SLOWEST_S else []
        found += ["control characters"] if RAW.search(self.out + self.err) else []
        found += [f"exit code {self.code}"] if self.code not in (0, 1, 2) else []
        if self.code == 2 and not self.raised:
            found += ["not one line"] if self.err.count("\n") != 1 or self.out else []
            found += ["a long line"] if len(self.err) > LONGEST_REFUSAL else []
        return found


@contextlib.contextmanager
def _captured(fd: int, name: str) -> Iterator[Callable[[], str]]:
    """Output of this process on the file descriptor of a standard stream."""
    before, stream = os.dup(fd), getattr(sys, name)
    kept = tempfile.TemporaryFile()  # noqa: SIM115  # closed below
    stream.flush()
    os.dup2(kept.fileno(), fd)
    setattr(sys, name, getattr(sys, f"__{name}__"))
    try:
        yield lambda: os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="backslashreplace")
    finally:
        setattr(sys, name, stream)
        os.dup2(before, fd)
        os.close(before)
        kept.close()


class _TooLong(BaseException):
    """Raised when an answer takes longer than `PATIENCE_S`."""


def _too_long(*_: object) -> None:
    raise _TooLong


def ask(words: Sequence[str]) -> Answer:
    """Run the command with these words in this process."""
    from cs336_tui.cli.main import main

    raised, code = "", 0
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    began = time.perf_counter()
    with _captured(1, "stdout") as out, _captured(2, "stderr") as err:
        try:
            main(list(words))
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
        except BaseException:
            raised, code = traceback.format_exc(), 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            took_s = time.perf_counter() - began
            with contextlib.suppress(OSError):
                sys.stdout.flush()
        return Answer(tuple(words), code, out(), err(), took_s, raised)


def ask_a_process(words: Sequence[str]) -> Answer:
    """Run the command with these words in its own process, whose start is not counted in the time."""
    began = time.perf_counter()
    ended = subprocess.run([*app(), *words], capture_output=True, stdin=subprocess.DEVNULL, timeout=PATIENCE_S)
    took_s = max(time.perf_counter() - began - START_S, 0.0)
    out, err = (text.decode(errors="backslashreplace") for text in (ended.stdout, ended.stderr))
    return Answer(tuple(words), ended.returncode, out, err, took_s)


START_S = 1.0
"""Allowed for starting a process on a machine that does other things."""


@contextlib.contextmanager
def a_home() -> Iterator[Path]:
    """Empty user folders, the current folder among them."""
    with tempfile.TemporaryDirectory() as name:
        home, before, folder = Path(name), dict(os.environ), Path.cwd()
        os.environ |= {"HOME": name, "XDG_CONFIG_HOME": f"{name}/config", "XDG_DATA_HOME": f"{name}/data"}
        os.environ |= {"XDG_CACHE_HOME": f"{name}/cache"}
        (home / "data/cs336-tui/sessions").mkdir(parents=True)
        (home / "config/cs336-tui/presets").mkdir(parents=True)
        (home / "config/cs336-tui/themes").mkdir(parents=True)
        os.chdir(home)
        try:
            yield home
        finally:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(before)


def logs(count: int, seed: int) -> Iterator[Answer]:
    """Read each of `count` bad logs in several ways, a good log beside it."""
    base = hostile.base_log()
    good = b"".join(hostile.line(each) for each in base)
    for number in range(count):
        chance = random.Random(f"{seed} log {number}")
        with a_home() as home:
            folder = home / "data/cs336-tui/sessions"
            (folder / "2026-01-01T00-00-00-good.jsonl").write_bytes(good)
            (folder / "2026-01-02T00-00-00-evil.jsonl").write_bytes(hostile.a_log(base, chance))
            for words in hostile.questions("2026-01-02T00-00-00-evil", chance):
                answer = ask(words)
                if words == ["sessions"] and "2026-01-01T00-00-00-good" not in answer.out:
                    answer = answer._replace(raised=answer.raised or "the good session is not listed")
                yield answer


def presets(count: int, seed: int) -> Iterator[Answer]:
    """List the presets with each of `count` bad ones beside a good one; show and run the bad one."""
    for number in range(count):
        chance = random.Random(f"{seed} preset {number}")
        with a_home() as home:
            folder = home / "config/cs336-tui/presets"
            (folder / "good.toml").write_text('about = "good"\nsize = "tiny"\n')
            (folder / "evil.toml").write_bytes(hostile.a_preset(chance))
            listed = ask(["presets"])
            if "good" not in listed.out:
                listed = listed._replace(raised=listed.raised or "the good preset is not listed")
            yield listed
            yield ask(["presets", "show", "evil"])
            yield ask(["bench", "--preset", "evil", "--threads", "0"])


def themes(count: int, seed: int) -> Iterator[Answer]:
    """Load `count` bad themes, a good one beside each."""
    from cs336_tui.tui.preferences import bundled, load_user

    assert bundled("cs336-dark") is not None
    for number in range(count):
        chance = random.Random(f"{seed} theme {number}")
        with a_home() as home:
            folder = home / "config/cs336-tui/themes"
            good = (Path(hostile.__file__).parents[1] / "themes/cs336-dark.toml").read_text()
            (folder / "good.toml").write_text(good.replace('"cs336-dark"', '"good"', 1))
            (folder / "evil.toml").write_bytes(hostile.a_theme(chance))
            began, raised, said = time.perf_counter(), "", ""
            try:
                found = load_user(folder)
                said = "\n".join(found.problems)
                if "good" not in [theme.name for theme in found.themes] or len(found.problems) > 1 or "\n" in said:
                    raised = "the good theme is not loaded, or a problem is not one line"
            except BaseException:
                raised = traceback.format_exc()
            yield Answer(("theme", str(number)), 0, said, "", time.perf_counter() - began, raised)


def flags(count: int, seed: int) -> Iterator[Answer]:
    """Run `count` command lines with two good sessions at hand."""
    good = b"".join(hostile.line(each) for each in hostile.base_log())
    with a_home() as home:
        folder = home / "data/cs336-tui/sessions"
        names = ("2026-01-01T00-00-00-good", "2026-01-01T00-00-01-good")
        for name in names:
            (folder / f"{name}.jsonl").write_bytes(good)
        for number in range(count):
            chance = random.Random(f"{seed} flags {number}")
            yield ask(hostile.some_flags(names, chance))


def recordings(count: int, seed: int) -> Iterator[Answer]:
    """Open `count` bad traces; where one opens, read its session."""
    for number in range(count):
        chance = random.Random(f"{seed} recording {number}")
        with a_home() as home:
            path = home / "evil.json"
            path.write_bytes(hostile.a_trace(chance))
            opened = ask(["open", str(path)])
            made = [*(home / "data/cs336-tui/sessions").glob("*.jsonl")]
            if bool(made) != (opened.code == 0):
                opened = opened._replace(raised=opened.raised or "a session without success, or none with it")
            yield opened
            for words in hostile.questions("last", chance) if made else ():
                yield ask(words)


KINDS = {"flags": flags, "presets": presets, "themes": themes, "logs": logs, "recordings": recordings}


def processes(count: int, seed: int) -> Iterator[Answer]:
    """Run `count` command lines, each in its own process, started and ended as by a user."""
    with a_home():
        for number in range(count):
            yield ask_a_process(hostile.some_flags((), random.Random(f"{seed} process {number}")))


class Tally:
    """Results of one kind of input; every fault is printed once."""

    def __init__(self, kind: str) -> None:
        self.kind, self.answers, self.slowest_s = kind, 0, 0.0
        self.faults: Counter[str] = Counter()
        self._told: set[str] = set()

    def take(self, answer: Answer) -> None:
        self.answers += 1
        self.slowest_s = max(self.slowest_s, answer.took_s)
        for fault in answer.faults():
            self.faults[fault] += 1
            why = fault + "".join(answer.raised.strip().splitlines()[-1:])[:100]
            if why not in self._told:
                self._told.add(why)
                said = f"{self.kind} {answer.words!r:.300}: {fault}\n{answer.raised[-1500:]}{answer.err[:300]!r}"
                click.echo(said, err=True)

    def row(self, inputs: int) -> list[str]:
        faults = ", ".join(f"{fault}: {number}" for fault, number in self.faults.items()) or "none"
        return [self.kind, str(inputs), str(self.answers), f"{self.slowest_s:.2f} s", faults]


@click.command()
@click.option("--count", default=2000, show_default=True, help="Inputs in all, as many of each kind.")
@click.option("--processes", "started", default=100, show_default=True, help="Command lines in processes of their own.")
@click.option("--seed", default=336, show_default=True)
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="Only these.")
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(count: int, started: int, seed: int, kinds: tuple[str, ...], output: Path | None) -> None:
    chosen = kinds or tuple(KINDS)
    rows = []
    ask(["--version"])
    for kind in chosen:
        tally = Tally(kind)
        for answer in KINDS[kind](count // len(chosen), seed):
            tally.take(answer)
        rows.append(tally.row(count // len(chosen)))
    tally = Tally("flags, in processes")
    for answer in processes(started, seed):
        tally.take(answer)
    rows.append(tally.row(started))
    body = table(["inputs", "generated", "answers", "slowest", "faults"], rows)
    command = f"python -m benchmarks.fuzz_inputs --count {count} --processes {started} --seed {seed}"
    publish("Inputs that nobody has to trust", command, body, output)


if __name__ == "__main__":
    main()
