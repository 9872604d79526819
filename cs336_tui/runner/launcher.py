"""Starts child processes: from a fork server with torch preloaded, or by spawning."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import Lane
from cs336_tui.events.reports import ReportRequest
from cs336_tui.runner import child
from cs336_tui.runner.pipes import FrameReader, StopSignal, enlarge, last_line
from cs336_tui.runner.processes import WATCH, Start, end_offspring, end_orphans, offspring_of
from cs336_tui.runner.trust import Trust
from cs336_tui.worker import worker_entry
from cs336_tui.worker.worker_entry import Place

if TYPE_CHECKING:
    import psutil

StartMethod = Literal["forkserver", "spawn"]
SERVER_DYING_S = 2.0
"""Seconds for which a start is tried again when the fork server does not answer."""
PRELOADED = (worker_entry.PRELOAD, "cs336_tui.cli.main", "cs336_tui.runner.child")
"""Modules that the fork server imports; a child imports the program's main one, for an installed script the cli."""
STOPPED_BY_USER = "stopped by the user"
SERVER_OUTPUT_VARIABLE, SERVER_APP_VARIABLE = "CS336_TUI_SERVER_OUTPUT", "CS336_TUI_SERVER_APP"
SERVER_LOG = "server.log"
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Keeps a queue.py in the user's folder from being imported in place of Python's own, in every later child."""
_SERVER_ENDED = 255  # the exit code that `multiprocessing.popen_forkserver` makes up when its server has ended.


class StartError(OSError):
    """No child process can be started; the message says why, in one line."""


_knowing = threading.Lock()
"""Held while a child is started, until its PID is known, and while unknown processes are ended."""
_LOADS_AT_LEAST_S = 30.0
"""Seconds that a fork server has to answer, however short the timeout of a cell is."""


@dataclass(frozen=True)
class Child:
    """A child process: the pipe of its events, the pipe of its commands (a stop), the file that it prints to."""

    process: BaseProcess
    events: Connection
    commands: Connection
    output: Path
    method: StartMethod
    _offspring: list[psutil.Process] = field(default_factory=list)
    """Processes that a spawned child had started when it was sent a signal."""
    _ended: list[str] = field(default_factory=list)  # names of those that were ended

    def messages(
        self, within_s: float | None = None, stop: StopSignal | None = None, *, first_within_s: float | None = None
    ) -> Iterator[bytes]:
        """Its messages until it is gone or `stop` is set, as others may hold its pipe open. Raises `TimeoutError` when
        one is not there `within_s` seconds after the one before; the first one has `first_within_s`, if given."""
        frames, over = FrameReader(self.events.fileno()), [self.process.sentinel, *([stop.fileno()] if stop else [])]
        limit_s = within_s if first_within_s is None else first_within_s
        end_at = None if limit_s is None else time.monotonic() + limit_s
        gone = False
        while not (gone or frames.at_end):
            ready = wait([self.events, *over], None if end_at is None else max(0.0, end_at - time.monotonic()))
            if not ready:
                raise TimeoutError
            gone = any(end in ready for end in over)
            while not frames.at_end and self.events.poll():
                yield from frames.read()
                end_at = None if within_s is None else time.monotonic() + within_s

    def terminate(self) -> None:
        self._look_at_offspring()
        self.process.terminate()

    def kill(self) -> None:
        self._look_at_offspring()
        self.process.kill()
        self._ended.extend(end_offspring(self._offspring))

    @property
    def may_outlive_its_server(self) -> bool:
        """True if the fork server ended, so that the child's own exit code is not known."""
        return self.method == "forkserver" and self.process.exitcode == _SERVER_ENDED

    def _look_at_offspring(self) -> None:
        if self.method == "spawn" and self.process.pid is not None:
            self._offspring.extend(offspring_of(self.process.pid))

    def end_orphans(self) -> list[str]:
        """End the processes that this one, which is over, had left; returns their names."""
        with _knowing:
            if self.method == "forkserver":
                return end_orphans(WATCH.living)
            ended = [*self._ended, *end_offspring(self._offspring)]
            self._ended.clear()
            return ended

    def close(self) -> None:
        """Close pipes and the process object; kills a process that lives, and the processes that it leaves."""
        self.events.close()
        self.commands.close()
        if self.process.is_alive():
            self.kill()
        self.process.join()
        self.end_orphans()
        with _knowing:
            WATCH.living.discard(self.process.pid or 0)
        self.process.close()


def _on_cores(work: Callable[..., object], cores: tuple[int, ...]) -> Callable[..., object]:
    return child.OnCores(cores, work) if cores else work


class Rank(NamedTuple):
    """The process of one rank of a cell, the file that it writes its stack to when it is asked, and the one in which it
    meets the others, if they are on one machine."""

    child: Child
    stacks: Path
    meeting: Path | None

    def clear(self) -> None:
        """Remove its files, once its process is over."""
        for path in filter(None, (self.stacks, self.meeting)):
            path.unlink(missing_ok=True)

    def stack(self) -> str:
        """The text that it wrote; empty before."""
        with contextlib.suppress(OSError):
            return self.stacks.read_text(errors="replace")
        return ""


class Launcher:
    """Starts children whose output goes to `output_dir`, for no code of users but what `trust` allows. macOS spawns, as
    Metal does not survive a fork. `is_unwanted` ends a wait for the fork server, as does the `timeout_s` of a cell."""

    def __init__(
        self,
        output_dir: Path,
        is_unwanted: Callable[[], bool] = lambda: False,
        timeout_s: Callable[[], float | None] = lambda: None,
        trust: Trust | None = None,
    ) -> None:
        self.output_dir, self._is_unwanted, self._timeout_s = output_dir, is_unwanted, timeout_s
        self.trust = trust or Trust()
        self.method: StartMethod = "forkserver" if sys.platform == "linux" else "spawn"
        """Of every later child."""

    def prepare(self) -> None:
        """Start multiprocessing's resource tracker; call it before a user interface replaces the standard streams."""
        from multiprocessing import resource_tracker

        os.environ.update(SAFE_PATH)
        resource_tracker.ensure_running()

    def start(self) -> None:
        """Start the fork server; returns at once, while the server imports torch."""
        # Else torch's profiler writes to a child's standard error when it starts and stops.
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        if self.method == "forkserver":
            from multiprocessing import forkserver

            os.environ[SERVER_OUTPUT_VARIABLE] = str(self.output_dir / SERVER_LOG)
            os.environ[SERVER_APP_VARIABLE] = str(os.getpid())
            os.environ.update(SAFE_PATH)
            get_context("forkserver").set_forkserver_preload(list(PRELOADED))
            forkserver.ensure_running()

    def start_cell(
        self, cell: int, spec: CellSpec, *, nvtx: bool = False, lanes: Sequence[Lane] = (), like: Place | None = None
    ) -> tuple[Rank, ...]:
        """Start a process for each rank of the cell, each on the device and the cores of its lane; of ranks over nodes,
        for those here, by the place that all are `like`. Raises `StartError` when no process can be made, and for code
        of users that nobody named; none is left then."""
        work = partial(worker_entry.run_cell, spec, cell, nvtx=nvtx)
        return self._start_ranks(f"cell-{cell}", work, [spec], lanes, like)

    def start_round(
        self, cells: tuple[int, int], specs: tuple[CellSpec, CellSpec], *, b_first: bool = False
    ) -> tuple[Rank, ...]:
        """Start a process for each rank, that runs two cells in turns. Raises like `start_cell`."""
        work = partial(worker_entry.run_round, specs, cells, b_first=b_first)
        return self._start_ranks(f"cell-{cells[0]}", work, specs)

    def start_apart(
        self, cells: tuple[int, int], specs: tuple[CellSpec, CellSpec], *, b_first: bool = False
    ) -> tuple[Rank, ...]:
        """As `start_round`, for cells of one rank, with a process for each."""
        a, b = get_context(self.method).Pipe()
        with a, b:
            (a if b_first else b).send_bytes(b".")  # which gives the other one the first turn
            work = child.InTurns(cells, specs, (a, b))
            return self._start_ranks(f"cell-{cells[0]}", work, specs, like=Place(ranks=2))

    def start_report(self, report: int, request: ReportRequest, like: Place | None = None) -> tuple[Rank, ...]:
        """Start a process for each rank, that makes its part of a report. As `start_cell`."""
        work = partial(worker_entry.make_report, request, report)
        return self._start_ranks(f"report-{report}", work, [request.spec], like=like)

    def _start_ranks(
        self,
        name: str,
        work: Callable[..., object],
        specs: Sequence[CellSpec],
        lanes: Sequence[Lane] = (),
        like: Place | None = None,
    ) -> tuple[Rank, ...]:
        """Start a process for each rank of `work` of these cells that is here; of several it takes the `place` of
        one."""
        if like is None and specs[0].ranks == 1:
            started = self._start(name, child.run_work, _on_cores(work, lanes[0].cores if lanes else ()), specs)
            return (Rank(started, self.output_dir / f"{name}.stacks", None),)
        like = like or Place(ranks=specs[0].ranks)
        meeting = None if like.address else self.output_dir / f"{name}.meeting"
        if meeting:
            meeting.unlink(missing_ok=True)
            like = like._replace(meeting=str(meeting))
        ranks: list[Rank] = []
        for rank in range(like.first, like.first + like.local_ranks):
            stacks = self.output_dir / f"{name}-rank-{rank}.stacks"
            stacks.unlink(missing_ok=True)
            lane = lanes[rank - like.first] if lanes else None
            place = like._replace(rank=rank, stacks=str(stacks), device=lane.device if lane else "")
            try:
                in_place = _on_cores(partial(work, place=place), lane.cores if lane else ())
                started = self._start(f"{name}-rank-{rank}", child.run_work, in_place, specs)
                ranks.append(Rank(started, stacks, meeting))
            except StartError:
                for each in ranks:
                    each.child.close()
                raise
        return tuple(ranks)

    def start_answers(
        self, name: str, answers: Callable[[], Iterable[msgspec.Struct]], specs: Sequence[CellSpec] = ()
    ) -> Child:
        """Start a process that sends `answers`, made by a function of `child` of these cells. Raises like
        `start_cell`."""
        return self._start(name, child.run_answers, answers, specs)

    def _start(
        self, name: str, target: Callable[..., NoReturn], work: Callable[..., object], specs: Sequence[CellSpec]
    ) -> Child:
        """Start `target` with its pipes, the path of its output (`name`.log) and `work`, which is of these cells."""
        for why in filter(None, map(self.trust.refusal, specs)):
            raise StartError(why)
        output = self.output_dir / f"{name}.log"
        give_up_at: float | None = None
        while True:
            timeout_s = self._timeout_s()
            start = Start(None if timeout_s is None else max(timeout_s, _LOADS_AT_LEAST_S), self._is_unwanted)
            try:
                self.output_dir.mkdir(mode=0o700, exist_ok=True)  # systems clear away what is old and temporary
                output.unlink(missing_ok=True)  # of an attempt before
                return self._start_once(target, output, work, start)
            except (EOFError, OSError) as error:
                # A dying fork server still takes requests; once it is dead, the next request starts another.
                give_up_at = give_up_at or time.monotonic() + SERVER_DYING_S
                if self._is_unwanted():
                    raise StartError(STOPPED_BY_USER) from None
                if start.is_final or time.monotonic() >= give_up_at:
                    why = start.failed_because or self._why(error)
                    raise StartError(f"no child process can be started: {why}") from None
                time.sleep(0.02)

    def _why(self, error: EOFError | OSError) -> str:
        if isinstance(error, OSError) and not isinstance(error, ConnectionError):
            return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        last = last_line(self.output_dir / SERVER_LOG)
        return f"the fork server ended: {last or 'it was killed, as the kernel does when memory runs out'}"

    def _start_once(
        self, target: Callable[..., NoReturn], output: Path, work: Callable[..., object], start: Start
    ) -> Child:
        context: Any = get_context(self.method)
        events, child_events = context.Pipe(duplex=False)
        child_commands, command_pipe = context.Pipe(duplex=False)
        enlarge(events.fileno())
        process = context.Process(target=target, args=(child_events, child_commands, str(output), work), daemon=True)
        try:
            with _knowing, WATCH.starting(start) if self.method == "forkserver" else contextlib.nullcontext():
                process.start()
                WATCH.living.add(process.pid)
        except BaseException:
            events.close()
            command_pipe.close()
            raise
        finally:
            child_events.close()
            child_commands.close()
        return Child(process, events, command_pipe, output, self.method)
