"""Starts the self-test's programs, each in a process group that does not outlive us, and reads their step times."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec

from cs336_tui.events.events import CellFinished, StepsTimed
from cs336_tui.selftest import watcher
from cs336_tui.session.log import LogError, LogReader

BARE, CONTROL, BENCH, UNSAMPLED, APP = "bare", "control", "bench", "bench, no sampling", "app"
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20)}
"""Makes glibc's malloc keep freed memory, as in a cell's process."""
SAMPLING_S = 0.5
_ENDLESS = 1_000_000
_READY_TO_RUN = rb"torch \d"  # the app shows this once it knows the machine
_ROWS, _COLUMNS = 40, 120
_KEPT_BYTES = 1 << 16
_CONTROL = re.compile(r"\x1b[\[\]PX^_][^a-zA-Z\x07]*[a-zA-Z\x07]|\x1b.|[\x00-\x08\x0b-\x1f\x7f]")
_ENDS_IN_S = 10.0  # seconds for the end of a killed process


class SelftestError(Exception):
    """A program could not be timed; the message says which, why, and its last output."""


class SelftestCell(msgspec.Struct, frozen=True, kw_only=True):
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
        """The cell as options, with endless steps."""
        cell = f"--size {self.size} --context {self.context} --batch {self.batch} --pass {self.pass_}"
        return f"{cell} --device {self.device} --steps {_ENDLESS}".split()


class TimedStep(NamedTuple):
    """One step: its end (Unix time) and its time, seconds."""

    end: float
    took: float


class Program(NamedTuple):
    """Runs the cell until it is killed; `steps` reads its steps, oldest first. `prompt` on its terminal gets `keys`."""

    name: str
    command: Sequence[str]
    steps: Callable[[], list[TimedStep]]
    env: Mapping[str, str] = {}
    in_terminal: bool = False
    prompt: re.Pattern[bytes] | None = None
    keys: str = ""


def programs_of(work: SelftestCell, folder: Path, *, keep_memory: bool = False) -> tuple[Program, ...]:
    """A bare script and its control (`keep_memory`: both keep freed memory), `bench` sampling and not, and the app if
    Textual is installed."""
    python = (sys.executable, "-P", "-m")  # the user's folder may have files named like Python's own
    cell = [*work.words, "--warmup", "0"]

    def bare(name: str) -> Program:
        file = folder / f"{name}.steps"
        command = [*python, "cs336_tui.worker.measure.bare", *work.words, "--output", str(file)]
        return Program(name, command, lambda: read_lines(file), KEEP_MEMORY if keep_memory else {})

    def ours(name: str, interval_s: float, *command: str) -> Program:
        sessions = folder / f"{name} sessions"
        how = ["--session-dir", str(sessions), "--device-interval", str(interval_s)]
        return Program(name, [*python, "cs336_tui", *command, *cell, *how], lambda: read_session(sessions))

    app = ours(APP, SAMPLING_S)._replace(in_terminal=True, prompt=re.compile(_READY_TO_RUN), keys="r")
    benches = ours(BENCH, SAMPLING_S, "bench"), ours(UNSAMPLED, 0, "bench")
    return bare(BARE), bare(CONTROL), *benches, *([app] if find_spec("textual") else ())


def read_lines(file: Path) -> list[TimedStep]:
    """The steps of the bare script, less a line that is being written."""
    if not file.exists():
        return []
    whole, _, _ = file.read_text().rpartition("\n")
    return [TimedStep(*map(float, line.split())) for line in whole.splitlines()]


def read_session(directory: Path) -> list[TimedStep]:
    """All steps in the directory's session logs. Raises `SelftestError` when a cell has ended."""
    steps: list[TimedStep] = []
    for log in directory.glob("*.jsonl"):
        with contextlib.suppress(LogError):  # of a log that has only just been made
            for event in LogReader(log):
                if isinstance(event, CellFinished):
                    raise SelftestError(f"its cell is {event.status}: {event.error or 'no reason was given'}")
                if isinstance(event, StepsTimed):
                    steps += back_to_back(event)
    return sorted(steps, key=lambda step: step.end)


def back_to_back(event: StepsTimed) -> list[TimedStep]:
    """The steps of an event, oldest first. Merged ones have the end of their last step only; the others ended before
    it, back to back."""
    end, steps = event.at, []
    for took in reversed(event.times_s):
        steps.append(TimedStep(end, took))
        end -= took
    return steps[::-1]


class Group:
    """A started program, the leader of a session and process group."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path | None, terminal: int | None) -> None:
        self._process, self._output = process, output
        self.terminal = terminal
        """Our side of its terminal while that is open."""
        self.written = bytearray()
        """Its last output to its terminal."""

    def let(self, go_on: bool) -> None:
        """Continue or stop all its processes."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter is what macOS says of zombies
            os.killpg(self._process.pid, signal.SIGCONT if go_on else signal.SIGSTOP)

    @property
    def ending(self) -> str | None:
        """A phrase on its end; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return f"ended with exit code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"

    @property
    def last_output(self) -> str:
        """The last lines that it wrote."""
        kept = self._output.read_bytes() if self._output and self._output.exists() else bytes(self.written)
        text = _CONTROL.sub(" ", kept[-_KEPT_BYTES:].decode(errors="replace"))
        lines = [" ".join(line.split()) for line in text.splitlines()]
        return "\n".join([line for line in lines if line][-8:])[-2000:]

    def drain(self) -> None:
        """Read its terminal, which would block it when full."""
        if self.terminal is None:
            return
        try:
            self.written += os.read(self.terminal, 1 << 16)
            del self.written[:-_KEPT_BYTES]
        except OSError:  # nobody holds the other side any longer
            os.close(self.terminal)
            self.terminal = None

    def close(self) -> None:
        """Close its terminal and wait for its end; it has been killed."""
        if self.terminal is not None:
            os.close(self.terminal)
            self.terminal = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDS_IN_S)


class Groups:
    """A context manager that starts programs and kills them when it is left or this process ends: each first writes its
    group to the pipe of `watcher.py`, which kills them once our end is closed, and removes their `folder`."""

    def __enter__(self) -> Groups:
        self.folder = Path(tempfile.mkdtemp(prefix="cs336-tui-selftest-"))
        self._running: list[Group] = []
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", watcher.__file__, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._watcher.stdin is not None
        self._pipe = self._watcher.stdin
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        for group in self._running:
            group.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._watcher.wait(_ENDS_IN_S)

    def start(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None, *, terminal: bool = False
    ) -> Group:
        """Start a program with `env` added; its output goes to a file in `folder`, or to a terminal of its own."""
        environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
        environment |= {"TMPDIR": str(self.folder)} | dict(env or {})
        if terminal:
            environment |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
            ours, theirs = os.openpty()
            termios.tcsetwinsize(theirs, (_ROWS, _COLUMNS))
            output, stdin = None, theirs
        else:
            ours, stdin = None, subprocess.DEVNULL
            output = self.folder / f"{name}.log"
            theirs = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        pipe = self._pipe.fileno()

        def before_it_begins() -> None:
            os.write(pipe, b"%d\n" % os.getpid())
            if terminal:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        try:
            process = subprocess.Popen(
                list(command),
                stdin=stdin,
                stdout=theirs,
                stderr=theirs,
                env=environment,
                start_new_session=True,
                preexec_fn=before_it_begins,  # two system calls, from a process without threads
            )
        except BaseException:
            if ours is not None:
                os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._running.append(Group(process, output, ours))
        return self._running[-1]

    def wait(self, seconds: float) -> None:
        """Wait, and read the programs' terminals meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            watched = {group.terminal: group for group in self._running if group.terminal is not None}
            readable, _, _ = select.select(list(watched), [], [], left)
            for terminal in readable:
                watched[terminal].drain()
