"""The programs that are held against each other: how each is started, and where its step times are read."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from cs336_tui.events.events import CellFinished, StepsTimed
from cs336_tui.session.log import LogError, LogReader

BARE, CONTROL, BENCH, UNSAMPLED, APP = "bare", "control", "bench", "bench, no sampling", "app"
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20)}
"""Has glibc's malloc keep freed memory, as a cell's process does."""
SAMPLING_S = 0.5
_ENDLESS = 1_000_000
_READY_TO_RUN = rb"torch \d"
"""What the app shows once it knows the machine."""


class SelftestError(Exception):
    """A program that could not be timed; says which, why and what it said last."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The cell that all programs run, of the 2026 edition and in fp32."""

    size: str
    device: str
    context: int = 128
    batch: int = 4
    pass_: str = "forward"

    @property
    def title(self) -> str:
        return f"{self.size} {self.pass_}, context {self.context}, batch {self.batch}, fp32, {self.device}"

    @property
    def words(self) -> list[str]:
        """The cell as options, without an end."""
        fields = {
            "--size": self.size, "--context": self.context, "--batch": self.batch, "--pass": self.pass_,
            "--device": self.device, "--steps": _ENDLESS,
        }  # fmt: skip
        return [str(word) for pair in fields.items() for word in pair]


class Step(NamedTuple):
    """One step: when it ended (Unix time) and how long it took, seconds."""

    end: float
    took: float


class Program(NamedTuple):
    """A program that runs the cell until it is killed.

    `steps` reads what it has timed so far, oldest first. One in a terminal is sent `keys` once it has written `prompt`.
    """

    name: str
    command: Sequence[str]
    steps: Callable[[], list[Step]]
    env: Mapping[str, str] = {}
    in_terminal: bool = False
    prompt: re.Pattern[bytes] | None = None
    keys: str = ""


def programs_of(work: Work, folder: Path, *, keep_memory: bool = False) -> tuple[Program, ...]:
    """A bare script, the same again as a control, `bench` with device sampling and without, and the app with it.

    With `keep_memory` the bare scripts keep freed memory too.
    """
    # Without the user's folder on Python's path, whose files may be named like Python's own.
    python = (sys.executable, "-P", "-m")
    cell = [*work.words, "--warmup", "0"]

    def bare(name: str) -> Program:
        file = folder / f"{name}.steps"
        command = [*python, "cs336_tui.worker.measure.bare", *work.words, "--output", str(file)]
        return Program(name, command, lambda: read_lines(file), KEEP_MEMORY if keep_memory else {})

    def bench(name: str, interval_s: float) -> Program:
        sessions = folder / f"{name} sessions"
        how = ["--session-dir", str(sessions), "--device-interval", str(interval_s)]
        return Program(name, [*python, "cs336_tui", "bench", *cell, *how], lambda: read_session(sessions))

    sessions = folder / f"{APP} sessions"
    how = ["--session-dir", str(sessions), "--device-interval", str(SAMPLING_S)]
    app = Program(
        APP,
        [*python, "cs336_tui", *cell, *how],
        lambda: read_session(sessions),
        in_terminal=True,
        prompt=re.compile(_READY_TO_RUN),
        keys="r",
    )
    return bare(BARE), bare(CONTROL), bench(BENCH, SAMPLING_S), bench(UNSAMPLED, 0), app


def read_lines(file: Path) -> list[Step]:
    """Steps as the bare script writes them; a line that is being written is left for later."""
    if not file.exists():
        return []
    whole, _, _ = file.read_text().rpartition("\n")
    return [Step(*map(float, line.split())) for line in whole.splitlines()]


def read_session(directory: Path) -> list[Step]:
    """Steps in the directory's session logs, measured or warm-up. Raises `SelftestError` when a cell has ended."""
    steps: list[Step] = []
    for log in directory.glob("*.jsonl"):
        with contextlib.suppress(LogError):  # of a log that has only just been made
            for event in LogReader(log):
                if isinstance(event, CellFinished):
                    raise SelftestError(f"its cell is {event.status}: {event.error or 'no reason was given'}")
                if isinstance(event, StepsTimed):
                    # Merged events tell the end of their last step only; the others ended before it, back to back.
                    end = event.at
                    for took in reversed(event.times_s):
                        steps.append(Step(end, took))
                        end -= took
    return sorted(steps, key=lambda step: step.end)
