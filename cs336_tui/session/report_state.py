"""The state of a report: what it is of, its stage, its end."""

from __future__ import annotations

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.events.reports import Report, ReportKind


class ReportState(msgspec.Struct):
    """One report; `status` is None while it is being made."""

    report: int
    kind: ReportKind
    spec: CellSpec
    cell: int | None
    started_at: float
    stage: str = "starting"
    status: ev.Status | None = None
    error: str | None = None
    content: Report | None = None
    job: str | None = None
    """The job that makes it."""
    finished_at: float | None = None
