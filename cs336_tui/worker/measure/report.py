"""Makes one report in a child process: kernels, memory, precision, out of memory, or logits and gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import time

import torch

from cs336_tui.events.events import Event, ReportFinished, ReportStage
from cs336_tui.events.reports import Report, ReportKind, ReportRequest
from cs336_tui.worker.measure.dtypes import read_dtypes
from cs336_tui.worker.measure.failures import Cancelled, outcome_of
from cs336_tui.worker.measure.kernels import profile_kernels
from cs336_tui.worker.measure.memory_record import record_memory
from cs336_tui.worker.measure.oom import explain_oom
from cs336_tui.worker.measure.reporter import Enter
from cs336_tui.worker.measure.settings import no_garbage_collection, restored_settings
from cs336_tui.worker.place import ALONE, Place
from cs336_tui.worker.ranks.group import Group
from cs336_tui.worker.workload.imported.problems import raise_interrupt


def _rank_memory(request: ReportRequest, enter: Enter, place: Place = ALONE) -> Report:
    from cs336_tui.worker.measure.rank_memory import record_rank_memory  # it imports much

    return record_rank_memory(request, enter, place)


def _agreement(request: ReportRequest, enter: Enter) -> Report:
    from cs336_tui.worker.measure.agreement import sketch_agreement  # only a race asks for it

    return sketch_agreement(request, enter)


_MAKERS: Mapping[ReportKind, Callable[..., Report]] = {
    "kernels": profile_kernels,
    "memory": record_memory,
    "rank-memory": _rank_memory,
    "precision": read_dtypes,
    "oom": explain_oom,
    "agreement": _agreement,
}


def make_report(
    request: ReportRequest,
    report: int,
    emit: Callable[[Event], None],
    cancelled: Callable[[], bool],
    *,
    place: Place = ALONE,
) -> None:
    """Make one report here, or the part of one rank of several. Emits a `ReportStage` for each stage and always one
    `ReportFinished`. An error ends the report, not the caller: status ``oom`` or ``failed``, as for a cell."""

    def enter(stage: str) -> None:
        if cancelled():
            raise Cancelled
        emit(ReportStage(at=time(), report=report, stage=stage))

    group = Group(place, torch.device(place.device_of(request.spec)))
    with restored_settings(), no_garbage_collection():
        try:
            make = _MAKERS[request.kind]
            if place.ranks > 1:
                make = partial(make, place=place)
            with group.joined(request.spec.backend_in_use):
                content = make(request, enter)
            ended = ReportFinished(at=time(), report=report, status="ok", content=content)
        except Cancelled:
            ended = ReportFinished(at=time(), report=report, status="cancelled", error="stopped by the user")
        except BaseException as error:  # a user's model may call sys.exit
            raise_interrupt(error)
            status, text = outcome_of(error)
            ended = ReportFinished(at=time(), report=report, status=status, error=text)
    emit(ended)
    if ended.status == "ok":
        group.leave()
