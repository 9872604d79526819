"""Making one report: in a child process, watched as a cell's is, or in this process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from cs336_tui.events.events import Event, ReportFinished, ReportStarted
from cs336_tui.events.reports import ReportRequest
from cs336_tui.runner.launcher import Launcher, StartError
from cs336_tui.runner.stop import StopSignal
from cs336_tui.runner.supervise import Supervisor
from cs336_tui.worker import worker_entry


def make_report(
    number: int,
    request: ReportRequest,
    launcher: Launcher | None,
    *,
    record: Callable[[Sequence[Event]], None],
    watch: Callable[[int | None], object],
    stop: StopSignal,
    timeout_s: float | None = None,
) -> None:
    """Make a report and record it from `ReportStarted` to `ReportFinished`; here, where there is no launcher.

    `watch` is told which process is at it.
    """
    started = ReportStarted(at=time.time(), report=number, kind=request.kind, spec=request.spec, cell=request.cell)
    record([started])
    if launcher is None:
        watch(os.getpid())
        worker_entry.make_report(request, number, lambda event: record([event]), stop.is_set)
        return
    try:
        child = launcher.start_report(number, request)
    except StartError as error:
        why = str(error)
        record([ReportFinished(at=time.time(), report=number, status="failed", error=why)])
        return
    watch(child.process.pid)
    try:
        Supervisor(child, None, record, stop, timeout_s, report=number).run()
    finally:
        child.close()


def refuse_report(number: int, request: ReportRequest, why: str, *, record: Callable[[Sequence[Event]], None]) -> None:
    """Record that a report was not even begun, as one of a cell that is out of memory."""
    now = time.time()
    started = ReportStarted(at=now, report=number, kind=request.kind, spec=request.spec, cell=request.cell)
    record([started, ReportFinished(at=now, report=number, status="oom", error=why)])
