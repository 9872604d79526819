"""Makes one report in a child process: kernels, memory, precision or out of memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from cs336_tui.events.events import Event, ReportFinished, ReportStage
from cs336_tui.events.reports import Report, ReportKind, ReportRequest
from cs336_tui.worker.measure.dtypes import read_dtypes
from cs336_tui.worker.measure.failures import Cancelled, outcome_of
from cs336_tui.worker.measure.kernels import profile_kernels
from cs336_tui.worker.measure.memory_record import record_memory
from cs336_tui.worker.measure.oom import explain_oom
from cs336_tui.worker.measure.report_parts import Enter
from cs336_tui.worker.measure.settings import no_garbage_collection, restored_settings
from cs336_tui.worker.workload.imported.problems import raise_interrupt

_MAKERS: Mapping[ReportKind, Callable[[ReportRequest, Enter], Report]] = {
    "kernels": profile_kernels,
    "memory": record_memory,
    "precision": read_dtypes,
    "oom": explain_oom,
}


def make_report(
    request: ReportRequest, report: int, emit: Callable[[Event], None], cancelled: Callable[[], bool]
) -> None:
    """Make one report here. Emits a `ReportStage` for each stage and always one `ReportFinished`. An error ends the
    report, not the caller: status ``oom`` or ``failed``, as for a cell."""

    def enter(stage: str) -> None:
        if cancelled():
            raise Cancelled
        emit(ReportStage(at=time.time(), report=report, stage=stage))

    with restored_settings(), no_garbage_collection():
        try:
            content = _MAKERS[request.kind](request, enter)
            ended = ReportFinished(at=time.time(), report=report, status="ok", content=content)
        except Cancelled:
            ended = ReportFinished(at=time.time(), report=report, status="cancelled", error="stopped by the user")
        except BaseException as error:  # a user's model may call sys.exit
            raise_interrupt(error)
            status, text = outcome_of(error)
            ended = ReportFinished(at=time.time(), report=report, status=status, error=text)
    emit(ended)
