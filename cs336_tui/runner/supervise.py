"""Watches the process of a cell or report to its end: events, output, a stop, a timeout, a sudden death. Ranks that
hang are noticed by their silence, and named by the stacks that all write when they are asked."""

from __future__ import annotations

import contextlib
import linecache
import math
import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, takewhile
from pathlib import Path
from typing import NamedTuple

import msgspec

import cs336_tui
from cs336_tui.events import events as ev
from cs336_tui.events.audit import Audit, Results
from cs336_tui.events.codec import coalesce, unpack
from cs336_tui.events.events import Event, StepsTimed
from cs336_tui.runner.child import EXIT_NO_CORES, NO_CORES
from cs336_tui.runner.launcher import STOPPED_BY_USER, Child, Rank
from cs336_tui.runner.pipes import FrameReader, OutputTail, StopSignal, end_of
from cs336_tui.runner.processes import remark_on_orphans
from cs336_tui.worker.worker_entry import STACK_SIGNAL

PACE_S = 0.05
"""Seconds between two looks at a busy child, so that they take no time from its measurement."""
POLITE_S = 0.6
"""Seconds in which a child may stop between two steps before SIGTERM."""
TERM_S = 0.6
"""Seconds between SIGTERM and SIGKILL."""
SPAWNED_LOOK_S = 1.0
"""Seconds between two looks at a silent spawned child."""
EXIT_S = 5.0
"""Seconds in which a child may exit after its result."""
_UNEQUAL = "Received data size doesn't match expected size"  # on which gloo ends the process
_UNCAUGHT = re.compile(
    r"^terminate called .*\n\s+what\(\):\s+(?:.*watchdog thread terminated with exception: )?(?P<error>.+)",
    re.MULTILINE,
)
"""The lines of C++ on an error that nobody caught, as torch's watchdog of NCCL on one of the device."""
_OF_DEVICE = re.compile(r"(?P<error>CUDA error: .+)")
"""Python's line on an error of the device; C++ prints none where two threads end the process at once."""
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}


class Supervisor:
    """Watches the child of a cell, of two cells in turns, or with `report` of a report; `record` receives its events,
    last exactly one `CellFinished` of each cell or one `ReportFinished`, once the process and all that it had started
    are gone. A child that did not tell the ends of both cells leaves both with that of its process."""

    def __init__(
        self,
        child: Child,
        cells: Sequence[int],
        record: Callable[[Sequence[ev.Event]], None],
        stop: StopSignal,
        timeout_s: float | None = None,
        *,
        report: int | None = None,
        pace_s: float = PACE_S,
    ) -> None:
        self._child, self._report, self._record, self._stop = child, report, record, stop
        self._frames = FrameReader(child.events.fileno())
        self._ends: list[ev.CellFinished | ev.ReportFinished] = []
        self._measured: dict[int, ev.CellFinished] = {}
        """The ends that the child told."""
        self._at: dict[int, tuple[ev.Stage, int | None]] = dict.fromkeys(cells, ("starting", None))
        """The stage and the step of each cell."""
        self._entered: dict[tuple[int, ev.Stage], float] = {}
        """The time at which a cell entered a stage, on a clock that no workload can reach (monotonic seconds)."""
        self._stopping = False
        self._timeout_s, self._pace_s = timeout_s, pace_s
        self._timed_out = False
        self._escalation: list[tuple[float, Callable[[], None]]] = []
        """The next actions if the child is still there, and when (monotonic seconds)."""
        if timeout_s is not None:
            self._escalation = [(time.monotonic() + timeout_s, self._on_timeout)]
        self._tail = OutputTail(child.output)
        self._oom_kills = kernel_oom_kills()
        # Made once: selectors made for each look would cost more than the look.
        self._sentinel = child.process.sentinel
        self._any, self._urgent, self._events = select.poll(), select.poll(), select.poll()
        for urgent in (self._sentinel, stop.fileno()):
            self._any.register(urgent, select.POLLIN)
            self._urgent.register(urgent, select.POLLIN)
        self._any.register(child.events.fileno(), select.POLLIN)
        self._events.register(child.events.fileno(), select.POLLIN)
        self._listening = True  # True until the child's pipe is at its end

    def run(self) -> None:
        """Block until the process is gone; its end was recorded then."""
        gone = False
        while not gone:
            gone = self._wait()
            looked_at = time.monotonic()
            self._drain(until_empty=gone)
            self._escalate()
            if not gone and self._listening:
                # Only an end or a stop ends this rest; steps gather in the pipe meanwhile.
                pause_s = self._pace_s - (time.monotonic() - looked_at)
                self._urgent.poll(max(0.0, pause_s * 1e3))
        self._child.process.join()
        if self._child.may_outlive_its_server:
            # The kernel ends it a moment after its server; what arrives until then counts.
            end_at = time.monotonic() + EXIT_S
            while self._listening and self._events.poll(max(0.0, end_at - time.monotonic()) * 1e3):
                self._drain(until_empty=False)
        is_whole = len(self._ends) >= max(len(self._at), 1)
        ends = self._ends if is_whole else self._sudden_ends()
        self._record(remark_on_orphans([self._timed(end) for end in ends], self._child.end_orphans()))

    def _wait(self) -> bool:
        """Wait until there is something to do; True if the process is gone."""
        timeout_ms = max(0.0, (self._escalation[0][0] - time.monotonic()) * 1e3) if self._escalation else None
        is_spawned = self._child.method == "spawn"  # forks of it may hold its sentinel open
        if is_spawned:
            timeout_ms = min(SPAWNED_LOOK_S * 1e3, math.inf if timeout_ms is None else timeout_ms)
        if any(fd == self._sentinel for fd, _ in self._any.poll(timeout_ms)):
            return True
        return is_spawned and self._child.process.exitcode is not None

    def _drain(self, *, until_empty: bool) -> None:
        """Record what has arrived. A process that the child started may hold the pipe open, so not to its end."""
        events: list[ev.Event] = []
        while self._listening and self._events.poll(0):
            events += map(unpack, self._frames.read())
            if self._frames.at_end:
                self._listening = False
                self._any.unregister(self._child.events.fileno())
            elif not until_empty:
                break
        for event in events:
            self._note(event)
        ends = ev.CellFinished | ev.CellMeasured | ev.ReportFinished
        events = [event for event in events if not isinstance(event, ends)]
        if text := self._tail.read():
            events.insert(0, ev.ChildOutput(at=time.time(), cell=next(iter(self._at), None), text=text))
        if events:
            self._record(coalesce(events))

    def _note(self, event: ev.Event) -> None:
        match event:
            case ev.StageChanged():
                self._at[event.cell] = event.stage, 0 if event.stage in ("warm-up", "measuring") else None
                self._entered[event.cell, event.stage] = time.monotonic()
            case ev.StepsTimed():
                self._at[event.cell] = self._at[event.cell][0], event.first + len(event.times_s)
            case ev.CellMeasured():
                self._measured[event.cell] = event.end
            case ev.CellFinished() | ev.ReportFinished():
                self._ends.append(event)
                self._escalation = [(time.monotonic() + EXIT_S, self._child.kill)]

    def _escalate(self) -> None:
        if self._stop.is_set() and not self._stopping:
            self._stopping = True
            self._any.unregister(self._stop.fileno())
            self._urgent.unregister(self._stop.fileno())
            if not self._ends:
                with contextlib.suppress(BrokenPipeError):
                    os.write(self._child.commands.fileno(), b"s")
                now = time.monotonic()
                self._escalation = [
                    (now + POLITE_S, self._child.terminate),
                    (now + POLITE_S + TERM_S, self._child.kill),
                ]
        while self._escalation and time.monotonic() >= self._escalation[0][0]:
            _, action = self._escalation.pop(0)
            action()

    def _on_timeout(self) -> None:
        self._timed_out = True
        self._child.terminate()
        self._escalation = [(time.monotonic() + TERM_S, self._child.kill)]

    def _sudden_ends(self) -> Sequence[ev.CellFinished | ev.ReportFinished]:
        status: ev.Status
        if self._timed_out:
            status, error = "killed", f"no result within the per-cell timeout of {self._timeout_s:g} s"
        elif self._stopping:
            status, error = "cancelled", STOPPED_BY_USER
        elif self._child.may_outlive_its_server:
            status, error = "killed", "the fork server ended, and all its processes with it"
        else:
            before, after = self._oom_kills, kernel_oom_kills()
            kills = after - before if before is not None and after is not None else None
            status, error = explain_exit(self._child.process.exitcode, kills, end_of(self._child.output))
        if self._report is not None:
            return [ev.ReportFinished(at=time.time(), report=self._report, status=status, error=error)]
        return [
            self._unchecked(self._measured[cell], f"the check did not end: {error}")
            if cell in self._measured
            else ev.CellFinished(at=time.time(), cell=cell, status=status, error=error, stage=stage, step=step)
            for cell, (stage, step) in self._at.items()
        ]

    def _timed(self, end: ev.CellFinished | ev.ReportFinished) -> ev.CellFinished | ev.ReportFinished:
        """The end; of a cell with the window of its measured steps on this process's clock in its accounts."""
        if not isinstance(end, ev.CellFinished) or end.audit is None or end.audit.books is None:
            return end
        began, ended = (self._entered.get((end.cell, stage)) for stage in ("measuring", "finishing"))
        parent_s = None if began is None or ended is None else ended - began
        books = msgspec.structs.replace(end.audit.books, parent_s=parent_s)
        return msgspec.structs.replace(end, audit=msgspec.structs.replace(end.audit, books=books))

    def _unchecked(self, end: ev.CellFinished, why: str) -> ev.CellFinished:
        audit = msgspec.structs.replace(end.audit or Audit(), results=Results(unchecked=why))
        return msgspec.structs.replace(end, at=time.time(), audit=audit)


def kernel_oom_kills() -> int | None:
    """Number of processes that the kernel killed for lack of memory since boot; None if it does not tell."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())["oom_kill"])
    return None


def explain_exit(exitcode: int | None, oom_kills: int | None, output: str = "") -> tuple[ev.Status, str]:
    """Status and one-line error of a child without a result; `oom_kills` are the kernel's meanwhile, if known, `output`
    is what it printed last."""
    if exitcode == EXIT_NO_CORES:
        return "failed", f"{NO_CORES}: {output.strip().rpartition(chr(10))[2]}"
    if exitcode is None or exitcode >= 0:
        return "failed", f"the process ended with exit code {exitcode} before reporting a result; see its output"
    try:
        number = signal.Signals(-exitcode)
        name = f"{number.name} ({signal.strsignal(number)})"
    except ValueError:
        return "killed", f"the process was ended by signal {-exitcode}"
    if number in _CRASHES:
        why = f"the process crashed with {name}"
        if _UNEQUAL in output:
            why = "ranks send one another arrays of unequal sizes"
        elif cause := _UNCAUGHT.search(output) or _OF_DEVICE.search(output):
            why = f"{cause['error']}; {why}"
        return "failed", f"{why}{crashed_in(output)}; see its output"
    if number is signal.SIGKILL:
        if oom_kills:
            return "oom", f"the kernel killed the process for lack of memory: {name}"
        return "killed", f"the process was ended by {name}; the kernel does this when the machine runs out of memory"
    return "killed", f"the process was ended by {name}"


ALIVE_S = 0.5
"""Seconds for which ranks that told something do not hang."""
STACKS_S = 1.0
"""Seconds in which ranks may write their stacks."""
NO_ANSWER = "and does not answer"
_WAITS = re.compile(
    r"\b(wait|barrier|all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|backward)\w*\(|store\.get\("
)
_COMPILERS = re.compile(
    r"/torch/_dynamo/(convert_frame|symbolic_convert|output_graph)\.py$|/triton/compiler/"
    r"|/torch/_inductor/(?!runtime/|(output_code|utils|cudagraph_\w+|codecache|compile_fx)\.py$"  # which run it, too
    r"|compile_worker/)"  # whose thread waits for other processes
)
_LOOK_S, _WORKS_S = 2.0, 0.02
"""CPU time that tells a process that works from one that only answered, and the seconds in which it has to use it."""
_OURS = str(Path(cs336_tui.__file__).parent)
_WRAPPERS = ("wrapper", "inner")  # of torch's decorators


class Pulse:
    """When a rank last told something, `at` (monotonic seconds), and whether that is usual for the cell's steps."""

    def __init__(self) -> None:
        self.at = time.monotonic()
        self._step_at: float | None = None
        self._longest_s = 0.0  # between two messages of steps

    def feel(self, events: Sequence[Event]) -> None:
        self.at = time.monotonic()
        if any(isinstance(event, StepsTimed) for event in events):
            self._longest_s = max(self._longest_s, self.at - (self._step_at or self.at))
            self._step_at = self.at

    def beat(self) -> None:
        """Note that the ranks live, though they tell nothing."""
        self.at = time.monotonic()

    def beats(self) -> bool:
        """True if ranks run, by the pauses between their steps."""
        return time.monotonic() - self.at < max(ALIVE_S, 2 * self._longest_s)


class Stuck(msgspec.Struct, frozen=True):
    """One rank of which nobody knows more: it `hangs`, `compiles`, or waits for others, `at` a place."""

    rank: int
    hangs: bool
    at: str
    compiles: bool = False

    @property
    def words(self) -> str:
        if self.compiles:
            return "compiles"
        return f"hangs {self.at}" if self.hangs else f"waits in {self.at}"


def ask_for_stacks(ranks: Iterable[Rank]) -> None:
    """Ask each for its stack, in place of what it wrote before."""
    for rank in ranks:
        if pid := rank.child.process.pid:
            with contextlib.suppress(FileNotFoundError):
                os.truncate(rank.stacks, 0)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, STACK_SIGNAL)


def stuck_ranks(ranks: Mapping[int, Rank], until: float) -> list[Stuck]:
    """Which of these ranks hang, and what the others wait in, by the stacks that they were asked for and write `until`
    then (monotonic seconds). One that compiles hangs unless it works, or a process that it started. It may compile in
    another thread than it waits in: autograd has one for each GPU, which compiles what backward needs."""
    stacks: list[str] = []
    while time.monotonic() < until:
        before, stacks = stacks, [rank.stack() for rank in ranks.values()]
        if all(stacks) and stacks == before:  # else one may be half written
            break
        time.sleep(0.01)
    found = []
    for number, rank in ranks.items():
        threads = _threads(rank.stack())
        stack = threads[0]
        if any(frame.compiles for frame in chain.from_iterable(threads)):
            works = _works(rank.child.process.pid)
            found.append(Stuck(number, not works, _place(stack), compiles=works))
            continue
        # Torch's own waits leave no frame.
        waits = bool(stack) and (stack[0].is_torchs or _WAITS.search(linecache.getline(stack[0].file, stack[0].line)))
        found.append(Stuck(number, not waits, _wait(stack) if waits else _place(stack)))
    return found


def _works(pid: int | None) -> bool:
    """True if the process, or one that it started, uses a core within `_LOOK_S`."""
    before, until = _cpu_s(pid), time.monotonic() + _LOOK_S
    while not (works := _cpu_s(pid) - before >= _WORKS_S) and time.monotonic() < until:
        time.sleep(0.01)
    return works


def _cpu_s(pid: int | None) -> float:
    """CPU time of a process, of those that it started, and of theirs that have ended."""
    import psutil

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        several = (process, *process.children(recursive=True))
        return sum(sum(each.cpu_times()[:4]) for each in several if each.is_running())
    return 0.0


def told(stuck: Iterable[Stuck], name: Callable[[int], str]) -> list[str]:
    """A phrase on each rank, by the name that it has, first on those that hang."""
    return [f"{name(each.rank)} {each.words}" for each in sorted(stuck, key=lambda each: (not each.hangs, each.rank))]


class Frame(NamedTuple):
    """A line of a stack."""

    file: str
    line: int
    function: str

    @property
    def is_torchs(self) -> bool:
        return "/torch/" in self.file

    @property
    def compiles(self) -> bool:
        """True if it is a part of torch's or Triton's compilers, not of what runs compiled code."""
        return bool(_COMPILERS.search(self.file)) or ("/torch/_inductor/" in self.file and "compile" in self.function)

    def __str__(self) -> str:
        return f"{self.function} ({Path(self.file).name}:{self.line})"


_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (\S+)', re.MULTILINE)
_STACK = re.compile(
    r"^(?P<current>Current t|T)hread 0x.*\(most recent call first\):\n(?P<frames>(  .*\n?)+)", re.MULTILINE
)


def _threads(text: str) -> list[list[Frame]]:
    """The stacks of threads, as `faulthandler` writes them, innermost frame first; the first that of the one that was
    asked, or crashed."""
    stacks = sorted(_STACK.finditer(text), key=lambda stack: stack["current"] != "Current t")
    frames = (_FRAME.findall(stack["frames"]) for stack in stacks)
    return [[Frame(file, int(line), function) for file, line, function in each] for each in frames] or [[]]


def crashed_in(output: str) -> str:
    """The line of the user's own code in which a process crashed, by the stack at the end of its output, as `` in
    forward (model.py:12)``; empty if it tells none."""
    own = (
        each
        for each in _threads(output)[0]
        if not (each.is_torchs or "/lib/python" in each.file or _OURS in each.file or each.file.startswith("<"))
    )
    place = next(own, None)
    return f" in {place}" if place else ""


def _place(stack: Sequence[Frame]) -> str:
    """The innermost frame of code that is neither Python's nor torch's."""
    if not stack:
        return NO_ANSWER
    return f"in {next((frame for frame in stack if not (frame.is_torchs or '/lib/python' in frame.file)), stack[0])}"


def _wait(stack: Sequence[Frame]) -> str:
    """The operation of `torch.distributed` in which a rank waits, else the function of torch that was called."""
    within = list(takewhile(lambda frame: frame.is_torchs, stack))
    collective = (each for each in within if "/torch/distributed/" in each.file and each.function not in _WRAPPERS)
    if found := next(collective, None):
        return found.function
    return str(within[-1] if within else stack[0])
