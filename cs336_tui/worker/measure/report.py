"""One report, start to end: what a child does when it is asked where time and memory go."""

from __future__ import annotations

import time
from collections.abc import Callable

from cs336_tui.events.events import Event, ReportFinished, ReportStage
from cs336_tui.events.reports import Report, ReportRequest
from cs336_tui.worker.measure.failures import outcome_of
from cs336_tui.worker.measure.report_parts import Enter
from cs336_tui.worker.measure.settings import no_garbage_collection, restored_settings
from cs336_tui.worker.workload.imported.problems import is_interrupt


class Stopped(Exception):
    """The report was asked to stop."""


def make_report(
    request: ReportRequest, report: int, emit: Callable[[Event], None], cancelled: Callable[[], bool]
) -> None:
    """Make one report here; emits a `ReportStage` now and then and always one `ReportFinished`.

    An error ends the report, not the caller: status ``oom`` or ``failed``, as of a cell.
    """

    def enter(stage: str) -> None:
        if cancelled():
            raise Stopped
        emit(ReportStage(at=time.time(), report=report, stage=stage))

    with restored_settings(), no_garbage_collection():
        try:
            content = _MAKERS[request.kind](request, enter)
            ended = ReportFinished(at=time.time(), report=report, status="ok", content=content)
        except Stopped:
            ended = ReportFinished(at=time.time(), report=report, status="cancelled", error="stopped by the user")
        except BaseException as error:  # a user's model may call sys.exit
            if is_interrupt(error):
                raise
            status, text = outcome_of(error)
            ended = ReportFinished(at=time.time(), report=report, status=status, error=text)
    emit(ended)


def _kernels(request: ReportRequest, enter: Enter) -> Report:
    from cs336_tui.worker.measure.kernels import profile_kernels

    return profile_kernels(request, enter)


def _memory(request: ReportRequest, enter: Enter) -> Report:
    from cs336_tui.worker.measure.memory_record import record_memory

    return record_memory(request, enter)


def _precision(request: ReportRequest, enter: Enter) -> Report:
    from cs336_tui.worker.measure.dtypes import read_dtypes

    return read_dtypes(request, enter)


def _oom(request: ReportRequest, enter: Enter) -> Report:
    from cs336_tui.worker.measure.oom import explain_oom

    return explain_oom(request, enter)


_MAKERS: dict[str, Callable[[ReportRequest, Enter], Report]] = {
    "kernels": _kernels,
    "memory": _memory,
    "precision": _precision,
    "oom": _oom,
}
