"""Starting child processes: from a fork server with torch preloaded, or by spawning."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from cs336_tui.config.spec import CellSpec, Precision
from cs336_tui.events.reports import ReportRequest
from cs336_tui.runner import child
from cs336_tui.runner.orphans import end_offspring, end_orphans, offspring_of
from cs336_tui.runner.pipes import FrameReader, enlarge, last_line
from cs336_tui.worker.worker_entry import PRELOAD

if TYPE_CHECKING:
    import psutil

StartMethod = Literal["forkserver", "spawn"]
SERVER_DYING_S = 2.0
"""How long a start is tried again when the fork server does not answer."""
PRELOADED = (PRELOAD, "cs336_tui.cli.main")
"""Modules that the fork server imports; a child imports the program's main one, for an installed script the cli."""
SERVER_OUTPUT_VARIABLE = "CS336_TUI_SERVER_OUTPUT"
SERVER_LOG = "server.log"
_SERVER_ENDED = 255
"""What `multiprocessing.popen_forkserver` takes for a child's exit code when its server has ended."""


class StartError(OSError):
    """No child process can be started; the message says why, in one line."""


_knowing = threading.Lock()
"""Held while a child is started, until its pid is known, and while those that are not known are ended."""
_living: set[int] = set()
"""The children of this process, all of one fork server."""


@dataclass(frozen=True)
class Child:
    """A started child: its process, the pipe it reports on, the pipe it takes a stop from, the file it prints to."""

    process: BaseProcess
    events: Connection
    commands: Connection
    output: Path
    method: StartMethod
    _offspring: list[psutil.Process] = field(default_factory=list)
    """What a spawned one had started when it was sent a signal."""
    _ended: list[str] = field(default_factory=list)
    """Names of those that are ended."""

    def frames(self) -> FrameReader:
        return FrameReader(self.events.fileno())

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._look_at_offspring()
        self.process.terminate()

    def kill(self) -> None:
        """Send it SIGKILL."""
        self._look_at_offspring()
        self.process.kill()
        self._ended.extend(end_offspring(self._offspring))

    @property
    def has_ended(self) -> bool:
        """Asked of the system where the sentinel may not tell, which what a spawned process forks holds open, too."""
        return self.method == "spawn" and self.process.exitcode is not None

    @property
    def may_outlive_its_server(self) -> bool:
        """Whether what was seen is the end of the fork server: multiprocessing then makes up an exit code."""
        return self.method == "forkserver" and self.process.exitcode == _SERVER_ENDED

    def _end_offspring(self) -> list[str]:
        ended = [*self._ended, *end_offspring(self._offspring)]
        self._ended.clear()
        return ended

    def _look_at_offspring(self) -> None:
        if self.method == "spawn" and self.process.pid is not None:
            self._offspring.extend(offspring_of(self.process.pid))

    def end_orphans(self) -> list[str]:
        """End what the process, which is over, had started and left; returns names, one a process."""
        with _knowing:
            return end_orphans(_living) if self.method == "forkserver" else self._end_offspring()

    def close(self) -> None:
        """Give back pipes and the process object; a process that has not ended is killed, and what it leaves is."""
        self.events.close()
        self.commands.close()
        if self.process.is_alive():
            self.kill()
        self.process.join()
        self.end_orphans()
        with _knowing:
            _living.discard(self.process.pid or 0)
        self.process.close()


class Launcher:
    """Starts children whose output goes to files in `output_dir`.

    macOS spawns, because Metal does not survive a fork; so does a machine where something initialised the CUDA
    driver in the fork server (see `use_spawn`).
    """

    def __init__(self, output_dir: Path) -> None:
        self._output_dir = output_dir
        self.method: StartMethod = "forkserver" if sys.platform == "linux" else "spawn"

    def prepare(self) -> None:
        """Start multiprocessing's resource tracker, which needs the real standard error: call it before a user
        interface replaces the standard streams."""
        from multiprocessing import resource_tracker

        _import_from_safe_path()
        resource_tracker.ensure_running()

    def start(self) -> None:
        """Start the fork server; returns at once, while the server imports torch."""
        # Else torch's profiler writes to a child's standard error when it starts and stops.
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        if self.method == "forkserver":
            from multiprocessing import forkserver

            os.environ[SERVER_OUTPUT_VARIABLE] = str(self._output_dir / SERVER_LOG)
            _import_from_safe_path()
            get_context("forkserver").set_forkserver_preload(list(PRELOADED))
            forkserver.ensure_running()

    def use_spawn(self) -> None:
        """Start every later child in a fresh interpreter."""
        self.method = "spawn"

    def start_cell(self, cell: int, spec: CellSpec, *, nvtx: bool = False) -> Child:
        """Start a process that runs the cell. Raises `StartError` when no process can be made."""
        output = self._output_dir / f"cell-{cell}.log"
        packed = msgspec.msgpack.encode(spec)
        return self._start(child.run_cell, output, str(output), cell, packed, nvtx, commands=True)

    def start_round(self, cells: tuple[int, int], specs: tuple[CellSpec, CellSpec], *, b_first: bool = False) -> Child:
        """Start a process that runs two cells in turns. Raises like `start_cell`."""
        output = self._output_dir / f"cell-{cells[0]}.log"
        packed = msgspec.msgpack.encode(specs)
        return self._start(child.run_round, output, str(output), cells, packed, b_first, commands=True)

    def start_report(self, report: int, request: ReportRequest) -> Child:
        """Start a process that makes a report. Raises like `start_cell`."""
        output = self._output_dir / f"report-{report}.log"
        packed = msgspec.msgpack.encode(request)
        return self._start(child.run_report, output, str(output), report, packed, commands=True)

    def start_predictions(self, asked: Sequence[tuple[CellSpec, tuple[int, int] | None]]) -> Child:
        """Start a process that predicts what specs need, each on a device of a compute capability.

        It sends a `child.PredictionAnswer` each. Raises like `start_cell`.
        """
        output = self._output_dir / "predictions.log"
        packed = msgspec.msgpack.encode(tuple(asked))
        return self._start(child.run_predictions, output, str(output), packed, commands=False)

    def start_peak(self, device: str, precision: Precision, threads: int | None) -> Child:
        """Start a process that measures a device (`child.PeakAnswer`). Raises like `start_cell`."""
        output = self._output_dir / "peak.log"
        return self._start(child.run_peak, output, str(output), device, precision, threads, commands=False)

    def start_probe(self) -> Child:
        """Start a process that reports what the machine offers (`child.ProbeReport`)."""
        output = self._output_dir / "probe.log"
        return self._start(child.run_probe, output, str(output), commands=False)

    def _start(self, target: Callable[..., None], output: Path, *args: Any, commands: bool) -> Child:
        give_up_at = time.monotonic() + SERVER_DYING_S
        while True:
            try:
                self._output_dir.mkdir(mode=0o700, exist_ok=True)  # systems clear away what is old and temporary
                if commands:
                    output.unlink(missing_ok=True)  # of an attempt before
                return self._start_once(target, output, *args, commands=commands)
            except (EOFError, OSError) as error:
                # A fork server that is dying still takes requests; once it is dead, the next one starts another.
                if time.monotonic() >= give_up_at:
                    raise StartError(f"no child process can be started: {self._why(error)}") from None
                time.sleep(0.02)

    def _why(self, error: EOFError | OSError) -> str:
        if isinstance(error, OSError) and not isinstance(error, ConnectionError):
            return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        last = last_line(self._output_dir / SERVER_LOG)
        return f"the fork server ended: {last or 'it was killed, as the kernel does when memory runs out'}"

    def _start_once(self, target: Callable[..., None], output: Path, *args: Any, commands: bool) -> Child:
        context: Any = get_context(self.method)
        events, child_events = context.Pipe(duplex=False)
        child_commands, command_pipe = context.Pipe(duplex=False)
        enlarge(events.fileno())
        pipes = (child_events, child_commands) if commands else (child_events,)
        process = context.Process(target=target, args=(*pipes, *args), daemon=True)
        try:
            with _knowing:
                process.start()
                _living.add(process.pid)
        except BaseException:
            events.close()
            command_pipe.close()
            raise
        finally:
            child_events.close()
            child_commands.close()
        return Child(process, events, command_pipe, output, self.method)


def _import_from_safe_path() -> None:
    """Keep a queue.py or signal.py in the user's folder from being imported in place of Python's own.

    That holds for every Python that this process starts from here on, also for those that replace one that died.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
