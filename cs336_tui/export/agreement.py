"""The logits and gradients of cells against those of the first with the same work, as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cs336_tui.analysis.agreement import COMPARED, Agreement, Errors, agreement, percentage
from cs336_tui.analysis.merge import grouped
from cs336_tui.events.reports import AgreementReport
from cs336_tui.export.tables import Column, Table, cell_record
from cs336_tui.stats.quantities import UNKNOWN

RESULTS = {True: "same", False: "differs", None: "not compared"}
"""The words for an agreement."""
_ABOUT = (
    "errors are norms of differences over norms, of the worst range of positions and of the worst parameter",
    "differs: by more than rounding in the coarser of both precisions explains",
    f"compared: {COMPARED}",
)


class _Row(NamedTuple):
    report: AgreementReport
    found: Agreement | None
    """None of the first, with which the others are compared."""


def agreement_tables(reports: Sequence[AgreementReport]) -> Iterator[Table]:
    """One table, each report against the first of the same dimensions, tokens and pass; none if no two are alike."""
    rows = [
        _Row(report, agreement(report, first) if report is not first else None)
        for first, *others in grouped(reports, _work).values()
        for report in (first, *others)
        if others
    ]
    if not rows:
        return
    yield Table.of(
        rows,
        (
            lambda row: cell_record(row.report.spec),
            Column("cell", left=True, text=lambda row: row.report.spec.title),
            Column("logits_error", "logits", read=lambda row: _worst(row.found and row.found.logits), show=_shown),
            Column(
                "gradients_error", "gradients", read=lambda row: _worst(row.found and row.found.gradients), show=_shown
            ),
            Column("result", left=True, read=lambda row: RESULTS[row.found.agrees] if row.found else "compared with"),
            Column(
                "why",
                left=True,
                rank=1,
                read=lambda row: row.found.why if row.found else "",
                text=lambda row: row.found.why if row.found and not row.found.agrees else "",
            ),
        ),
        caption="Logits and gradients",
        footnotes=_ABOUT,
        label="agreement",
    )


def _work(report: AgreementReport) -> tuple[object, ...]:
    spec = report.spec
    return spec.dims, spec.context_length, spec.batch_size, spec.pass_, spec.workload, spec.seed, spec.device


def _worst(errors: Errors | None) -> float | None:
    return errors.worst_error if errors and math.isfinite(errors.worst_error) else None


def _shown(share: float | None) -> str:
    return UNKNOWN if share is None else percentage(share)
