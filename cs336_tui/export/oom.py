"""The memory of a cell that ran out of it, as a table."""

from __future__ import annotations

from collections.abc import Iterator

from cs336_tui.events.memory_report import OomReport
from cs336_tui.events.prediction import CATEGORIES
from cs336_tui.export.memory import UNITS, operation, spaced, tensor_text
from cs336_tui.export.tables import Column, Table, Value, cell_record, known
from cs336_tui.stats.quantities import ByteUnit


def oom_table(report: OomReport) -> Table:
    """The size asked for, live memory by category, the largest live allocations, and the prediction beside it."""
    unit = ByteUnit.for_largest(max(report.live_bytes, report.capacity_bytes or 0))
    seen = "seen in a second attempt" if report.observed else "predicted, not seen"
    return Table.of(
        _oom_records(report),
        (
            Column("what", left=True),
            Column("bytes", unit.name, show=unit.fixed),
            Column("where", rank=1, left=True, show=known("{}", "")),
        ),
        record=lambda each: cell_record(report.spec) | {"observed": report.observed} | each,
        caption=f"Out of memory: {report.spec.title} · batch {report.spec.batch_size}",
        footnotes=(f"what was live: {seen}", UNITS, *([report.note] if report.note else [])),
        label=f"oom-{report.spec.title}",
    )


def _oom_records(report: OomReport) -> Iterator[dict[str, Value]]:
    def record(what: str, kind: str, size: int | None, where: str | None = None) -> dict[str, Value]:
        return {"what": what, "kind": kind, "bytes": size, "where": where}

    phase = {None: None, "building": "while the model was built"}.get(report.phase, f"in {report.phase}")
    yield record("asked for", "request", report.request_bytes, phase)
    yield record("live", "live", report.live_bytes)
    yield record("the device has", "capacity", report.capacity_bytes)
    if report.prediction:
        found = report.prediction
        yield record("predicted peak", "prediction", found.peak_bytes, f"in {found.peak_phase}")
        if found.activation_peak_bytes is not None:
            where = f"in {found.activation_peak_phase}"
            yield record("predicted activation peak", "prediction", found.activation_peak_bytes, where)
    for category in CATEGORIES:
        yield record(f"live: {spaced(category)}", "category", report.by_category.get(category, 0))
    for number, block in enumerate(report.largest, 1):
        site = block.site
        parts = (site.range, site.frame, operation(site), tensor_text(block))
        yield record(f"block {number}: {spaced(block.category)}", "block", block.bytes, " · ".join(filter(None, parts)))
