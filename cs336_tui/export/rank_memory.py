"""The memory of each rank by use as a table, cells that share a step in different ways below each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import short
from cs336_tui.events.prediction import COMMUNICATION, PhaseMemory
from cs336_tui.events.reports import RankMemoryReport, RankMoment
from cs336_tui.export.memory import UNITS, size_column, spaced
from cs336_tui.export.tables import Column, Table, Value, attributes, cell_record
from cs336_tui.stats.quantities import ByteUnit

_CATEGORIES = {
    "parameters": "params",
    "gradients": "grads",
    "optimizer_state": "state",
    "activations": "activ.",
    COMMUNICATION: "comm.",
    "buffers": "buffers",
}
"""Uses of memory with their headings on a screen."""
_UP_TO: Mapping[str, tuple[str, ...]] = {
    "after forward": ("zero_grad", "forward", "loss"),
    "before optimizer": ("backward",),
    "after backward": ("backward",),
    "after optimizer": ("optimizer",),
}
"""Phases between a moment and the one before."""


class _Row(NamedTuple):
    spec: CellSpec
    moment: RankMoment
    predicted: PhaseMemory | None = None
    """Live bytes at the moment, and the most since the moment before."""


def unit_of(reports: Sequence[RankMemoryReport]) -> ByteUnit:
    """The unit of their table."""
    moments = [moment for report in reports for moment in report.moments]
    return ByteUnit.for_largest(max((m.peak_bytes or sum(m.by_category.values()) for m in moments), default=0))


def rank_memory_table(reports: Sequence[RankMemoryReport]) -> Table:
    """A row for each moment, rank and cell: the cells of one rank at one moment are neighbours."""
    rows = [_Row(report.spec, moment, _predicted(report, moment)) for report in reports for moment in report.moments]
    moments = list(dict.fromkeys((row.moment.step, row.moment.moment) for row in rows))
    rows.sort(key=lambda row: (moments.index((row.moment.step, row.moment.moment)), row.moment.rank))
    unit = unit_of(reports)
    several = len({row.spec.optimizer for row in rows}) > 1

    def predicted(key: str) -> Iterator[Column[_Row]]:
        if any(row.predicted for row in rows):
            yield size_column(key, "predicted", unit)

    columns: tuple[Column[_Row], ...] = (
        Column("size", left=True, text=lambda row: row.spec.size_label),
        Column("step", text=lambda row: str(row.moment.step or "")),
        Column("moment", left=True),
        Column("rank"),
        Column("parallel", left=True),
        *([Column[_Row]("optimizer", left=True, text=lambda row: short(row.spec.optimizer))] if several else []),
        *(size_column(f"{name}_bytes", spaced(name), unit, brief) for name, brief in _CATEGORIES.items()),
        size_column("rest_bytes", "rest", unit),
        size_column("live_bytes", "allocated", unit, "alloc."),
        *predicted("predicted_live_bytes"),
        size_column("peak_bytes", "peak", unit),
        *predicted("predicted_peak_bytes"),
    )
    return Table.of(
        rows,
        columns,
        record=_record,
        caption="Memory of each rank",
        footnotes=(*_notes(reports), UNITS),
        label="rank-memory",
    )


def _predicted(report: RankMemoryReport, moment: RankMoment) -> PhaseMemory | None:
    """None of the first step, which no prediction is of."""
    phases = report.prediction.phases if report.prediction else {}
    found = [phases[name] for name in _UP_TO.get(moment.moment, ()) if name in phases]
    if not found or moment.step <= 1:
        return None
    return PhaseMemory(by_category=found[-1].by_category, peak_bytes=max(each.peak_bytes for each in found))


def _record(row: _Row) -> dict[str, Value]:
    moment, predicted = row.moment, row.predicted
    return {
        **cell_record(row.spec),
        **attributes(row.spec, "ranks", "parallel", "optimizer", "backend"),
        **attributes(moment, "step", "moment", "rank"),
        **{f"{name}_bytes": moment.by_category.get(name) for name in _CATEGORIES},
        **attributes(moment, "rest_bytes", "live_bytes"),
        "predicted_live_bytes": predicted and predicted.end_bytes,
        **attributes(moment, "peak_bytes"),
        "predicted_peak_bytes": predicted and predicted.peak_bytes,
    }


def _notes(reports: Sequence[RankMemoryReport]) -> Iterator[str]:
    yield "per rank, of shards its own part; buffers: the model's, and the batch"
    yield "activations: what autograd keeps for backward, logits and loss; a train-step has the logits to its end"
    yield (
        "communication: what the container keeps for it: buckets of gradients (DDP's are copies), gathered weights, "
        "tensors of its own"
    )
    yield "rest: allocated minus the uses before it (rounding, cuBLAS workspaces); 0 on a CPU"
    if any(report.prediction for report in reports):
        yield "predicted: of a later step, on the rank whose optimizer has most"
    yield "peak: the most that was allocated since the moment before; step: of those that took an optimizer step"
    yield "apart from timing; counted by: " + ", ".join(dict.fromkeys(report.recorder for report in reports))
    yield "devices: " + ", ".join(dict.fromkeys(f"{r.device_name}, torch {r.torch}" for r in reports))
    yield from dict.fromkeys(report.note for report in reports if report.note)
