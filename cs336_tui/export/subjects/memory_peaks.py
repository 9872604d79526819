"""Peaks of memory as tables: of cells by phase, of each rank by use, and of a cell that ran out; and the active memory
of a recorded step over time as a figure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cs336_tui.config.order import is_as_predicted
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import short
from cs336_tui.events.prediction import CATEGORIES, COMMUNICATION, PhaseMemory, Prediction
from cs336_tui.events.reports import MemoryReport, OomReport, RankMemoryReport, RankMoment
from cs336_tui.export.subjects.memory import UNITS, operation, size_column, spaced, tensor_text
from cs336_tui.export.writing.drawing import Drawing
from cs336_tui.export.writing.footnotes import ACTIVATIONS_MEAN
from cs336_tui.export.writing.tables import Column, Table, Value, attributes, cell_record, known
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import NONE, UNKNOWN, ByteUnit, whole_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cs336_tui.analysis.memory import Timeline


class CellPeaks(NamedTuple):
    """The peaks of one cell, as far as known: its memory report, its prediction, and the latest run of it that was
    timed or ran out of memory."""

    spec: CellSpec
    report: MemoryReport | None = None
    prediction: Prediction | None = None
    run: CellState | None = None

    @classmethod
    def recorded(cls, report: MemoryReport) -> CellPeaks:
        """Those of a report alone."""
        return cls(report.spec, report, report.prediction)

    @property
    def timed_bytes(self) -> int | None:
        """The peak that the allocator counted while the cell was timed."""
        over = self.run.finished if self.run else None
        return over.peak_allocated_bytes if over and over.status == "ok" else None


_RECORDED = ("forward", "backward", "optimizer", "step", "activations", "allocator")
"""Peaks of a report, as `phase_peaks` has them."""
_PREDICTED = {"forward": "forward_peak_bytes", "step": "peak_bytes", "activations": "activation_peak_bytes"}
"""Peaks of a prediction with their attributes there."""


def unit_of_peaks(rows: Sequence[CellPeaks]) -> ByteUnit:
    """The unit of their table."""
    of_reports = (row.report.peak_bytes if row.report else 0 for row in rows)
    of_predictions = (row.prediction.peak_bytes if row.prediction else 0 for row in rows)
    return ByteUnit.for_largest(max((*of_reports, *of_predictions, *(row.timed_bytes or 0 for row in rows)), default=0))


def peaks_table(rows: Sequence[CellPeaks]) -> Table:
    """A row for each cell: the peak of each phase and of the step, recorded, counted and predicted; of cells that were
    timed that peak, too."""
    from cs336_tui.analysis.memory import phase_peaks

    unit, reports = unit_of_peaks(rows), [row.report for row in rows if row.report]
    timed = any(row.run for row in rows)

    def record(row: CellPeaks) -> dict[str, Value]:
        recorded = phase_peaks(row.report) if row.report else {}
        step, predicted = recorded.get("step"), row.prediction and row.prediction.peak_bytes
        found: dict[str, Value] = cell_record(row.spec) | {"peak_bytes": step}
        found |= {f"{name}_bytes": recorded.get(name) for name in _RECORDED}
        found |= attributes(row.prediction, **{f"predicted_{name}_bytes": of for name, of in _PREDICTED.items()})
        found["predicted_over_recorded"] = predicted / step if predicted and step else None
        return found | ({"timed_bytes": row.timed_bytes} if timed else {})

    columns: tuple[Column[CellPeaks], ...] = (
        Column("size", left=True, text=lambda row: " · ".join((row.spec.size_label, *row.spec.variants))),
        Column("context", short="ctx"),
        Column("batch"),
        Column("pass", left=True),
        Column("precision", left=True),
        *([Column("device", left=True)] if len({row.spec.device for row in rows}) > 1 else []),
        *(_peak_column(name, unit) for name in (*_RECORDED, *(f"predicted_{name}" for name in _PREDICTED))),
        Column("predicted_over_recorded", "predicted / recorded", show=known("{:.3f}", NONE), short="pred. / step"),
    )
    if timed:
        columns += (
            _peak_column("timed", unit)._replace(text=lambda row: _while_timed(row, unit)),
            Column("predicted_over_timed", "predicted / timed", read=_over_timed, show=known("{:.3f}", NONE),
                   short="pred. / timed"),
        )  # fmt: skip
    if all(row.spec.recording for row in rows):  # of these there is no choice, no count and no prediction
        columns = (
            Column("recording", left=True),
            Column("device", left=True),
            *(_peak_column(name, unit) for name in _RECORDED[:-1]),
        )
    notes = ["forward: the peak while forward runs; step: the peak of the whole recorded step", ACTIVATIONS_MEAN]
    if not all(row.spec.recording for row in rows):
        notes.append(
            "recorded after warm-up, apart from timing; a training step begins with the gradients of the one before"
        )
    notes += ["recorders: " + _recorders(reports), *_machines(reports)] if reports else [UNITS]
    return Table.of(rows, columns, record=record, caption="Peak memory by phase", footnotes=notes, label="memory-peaks")


def _peak_column(name: str, unit: ByteUnit) -> Column[CellPeaks]:
    title = "allocator's count" if name == "allocator" else spaced(name)
    return size_column(
        f"{name}_bytes", title, unit, title.replace("predicted", "pred.").replace("activations", "activ.")
    )


def _while_timed(row: CellPeaks, unit: ByteUnit) -> str:
    if row.run is None or row.run.status == "oom":
        return "OOM" if row.run else NONE
    return UNKNOWN if row.timed_bytes is None else unit.fixed(row.timed_bytes)


def _over_timed(row: CellPeaks) -> float | None:
    """A prediction is of the model as it is written, neither compiled nor captured."""
    if row.prediction is None or not row.timed_bytes or not is_as_predicted(row.spec):
        return None
    return row.prediction.peak_bytes / row.timed_bytes


def _recorders(reports: Iterable[MemoryReport | RankMemoryReport]) -> str:
    return ", ".join(dict.fromkeys(report.recorder for report in reports))


def _machines(reports: Sequence[MemoryReport | RankMemoryReport]) -> Iterator[str]:
    """The devices of the reports, their notes and the units, which are the last notes of a table."""
    yield "devices: " + ", ".join(dict.fromkeys(f"{r.device_name}, torch {r.torch}" for r in reports))
    yield from dict.fromkeys(report.note for report in reports if report.note)
    yield UNITS


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


def unit_of(reports: Sequence[RankMemoryReport]) -> ByteUnit:
    """The unit of their table."""
    moments = [moment for report in reports for moment in report.moments]
    return ByteUnit.for_largest(max((m.peak_bytes or sum(m.by_category.values()) for m in moments), default=0))


def rank_memory_table(reports: Sequence[RankMemoryReport]) -> Table:
    """A row for each moment, rank and cell: the cells of one rank at one moment are neighbours."""
    rows = [(report, moment) for report in reports for moment in report.moments]
    moments = list(dict.fromkeys((moment.step, moment.moment) for _, moment in rows))
    rows.sort(key=lambda row: (moments.index((row[1].step, row[1].moment)), row[1].rank))
    records = [_record(report, moment) for report, moment in rows]
    unit = unit_of(reports)
    ways = [Column("parallel", left=True)]
    if len({report.spec.optimizer for report, _ in rows}) > 1:
        ways.append(Column("optimizer", left=True, show=short))

    def predicted(key: str) -> Iterator[Column]:
        if any(record[key] is not None for record in records):
            yield size_column(key, "predicted", unit)

    columns = (
        Column("size", left=True),
        Column("step", show=lambda step: str(step or "")),
        Column("moment", left=True),
        Column("rank"),
        *ways,
        *(size_column(f"{name}_bytes", spaced(name), unit, brief) for name, brief in _CATEGORIES.items()),
        size_column("rest_bytes", "rest", unit),
        size_column("live_bytes", "allocated", unit, "alloc."),
        *predicted("predicted_live_bytes"),
        size_column("peak_bytes", "peak", unit),
        *predicted("predicted_peak_bytes"),
    )
    caption, notes = "Memory of each rank", _notes(reports)
    return Table.of(records, columns, record=dict, caption=caption, footnotes=notes, label="rank-memory")


def _predicted(report: RankMemoryReport, moment: RankMoment) -> PhaseMemory | None:
    """Live bytes at the moment, and the most since the moment before; None of the first step, which no prediction is
    of."""
    phases = report.prediction.phases if report.prediction else {}
    found = [phases[name] for name in _UP_TO.get(moment.moment, ()) if name in phases]
    if not found or moment.step <= 1:
        return None
    return PhaseMemory(by_category=found[-1].by_category, peak_bytes=max(each.peak_bytes for each in found))


def _record(report: RankMemoryReport, moment: RankMoment) -> dict[str, Value]:
    predicted = _predicted(report, moment)
    return {
        **cell_record(report.spec),
        **attributes(report.spec, "ranks", "parallel", "optimizer", "backend"),
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
    yield "apart from timing; counted by: " + _recorders(reports)
    yield from _machines(reports)


def oom_table(report: OomReport) -> Table:
    """The size asked for, live memory by category beside the predicted peak, and the largest live allocations."""
    unit = ByteUnit.for_largest(max(report.live_bytes, report.capacity_bytes or 0))
    seen = "seen in a second attempt" if report.observed else "predicted, not seen"

    def share(row: dict[str, Value]) -> str:
        held = row["bytes"] if row["kind"] == "category" else None
        return whole_percent(held / report.live_bytes) if isinstance(held, int) and report.live_bytes else ""

    columns: list[Column[dict[str, Value]]] = [
        Column("what", left=True),
        Column("bytes", unit.name, show=unit.fixed),
        Column("share", rank=2, text=share),
    ]
    if report.prediction:
        predicted = size_column("predicted_bytes", "predicted peak", unit)
        columns.append(predicted._replace(rank=3, show=lambda size: "" if size is None else unit.fixed(size)))
    columns.append(Column("where", rank=1, left=True, show=known("{}", "")))
    return Table.of(
        _oom_records(report),
        columns,
        record=lambda each: cell_record(report.spec) | {"observed": report.observed} | each,
        caption=f"Out of memory: {report.spec.title} · batch {report.spec.batch_size}",
        footnotes=(f"what was live: {seen}", UNITS, *([report.note] if report.note else [])),
        label=f"oom-{report.spec.title}",
    )


def _oom_records(report: OomReport) -> Iterator[dict[str, Value]]:
    peak = report.prediction
    at_peak = peak.by_category if peak else {}

    def record(
        what: str, kind: str, size: int | None, where: str | None = None, predicted: int | None = None
    ) -> dict[str, Value]:
        return {"what": what, "kind": kind, "bytes": size, "predicted_bytes": predicted, "where": where}

    phase = {None: None, "building": "while the model was built"}.get(report.phase, f"in {report.phase}")
    yield record("asked for", "request", report.request_bytes, phase)
    yield record("live", "live", report.live_bytes)
    yield record("the device has", "capacity", report.capacity_bytes)
    if peak:
        yield record("predicted peak", "prediction", peak.peak_bytes, f"in {peak.peak_phase}")
        if peak.activation_peak_bytes is not None:
            where = f"in {peak.activation_peak_phase}"
            yield record("predicted activation peak", "prediction", peak.activation_peak_bytes, where)
    for category in CATEGORIES:
        held, predicted = (by_category.get(category, 0) for by_category in (report.by_category, at_peak))
        yield record(f"live: {spaced(category)}", "category", held, None, predicted if peak else None)
    for number, block in enumerate(report.largest, 1):
        site = block.site
        parts = (site.range, site.frame, operation(site), tensor_text(block))
        yield record(f"block {number}: {spaced(block.category)}", "block", block.bytes, " · ".join(filter(None, parts)))


MOST_COLUMNS = 1000
"""Columns of the timeline at most: as many as a page can show. Each is the highest moment of its share of events."""
_LABELLED_SHARE = 0.06
"""A phase with a smaller share of the width has its name in the title of the axis only."""

# Okabe and Ito 2008: told apart with every common kind of colour vision. What lives longest lies at the bottom.
_LOOKS: Mapping[str, tuple[str, str]] = {
    "parameters": ("#0072B2", ""),
    "optimizer_state": ("#56B4E9", "..."),
    "buffers": ("#999999", ""),
    "gradients": ("#CC79A7", "///"),
    "activations": ("#E69F00", ""),
    "temporary": ("#D55E00", "xxx"),
    "unknown": ("#BBBBBB", "\\\\\\"),
}
"""Colour and hatch of each category."""


def memory_figure(report: MemoryReport) -> Drawing:
    """Live bytes by category against the allocations and frees of the step, stacked, with its phases marked."""

    def draw(figure: Figure) -> None:
        from cs336_tui.analysis.memory import Timeline

        axis = figure.subplots()
        unit = ByteUnit.for_largest(report.peak_bytes)
        _areas(axis, Timeline(report), unit)
        for span in report.phases:
            axis.axvline(span.first, color="#333333", linewidth=0.6, linestyle=":")
            if span.end - span.first >= _LABELLED_SHARE * report.events:
                middle = (span.first + span.end) / 2
                axis.annotate(span.phase, (middle, 0.985), xycoords=("data", "axes fraction"), ha="center", va="top")
        _peak(axis, report, unit)
        axis.set_xlim(0, report.events)
        axis.set_ylim(0, report.peak_bytes / unit.bytes * 1.15 or 1.0)
        axis.set_xlabel("event (an allocation or a free) · phases: " + ", ".join(span.phase for span in report.phases))
        axis.set_ylabel(f"live ({unit.name})")
        handles, names = axis.get_legend_handles_labels()
        figure.legend(handles[::-1], names[::-1], loc="outside right upper")

    spec = report.spec
    batch = "" if spec.recording else f" b{spec.batch_size}"
    name = "memory-timeline-" + re.sub("[^A-Za-z0-9.+]+", "-", f"{spec.title}{batch}")
    title = f"Active memory of one step\n{spec.heading}, {report.device_name}"
    return Drawing(name, title, (9.5, 4.5), draw)


def _areas(axis: Axes, timeline: Timeline, unit: ByteUnit) -> None:
    """Each category's bytes on top of those before it; a category that is never there is left out."""
    import numpy as np

    columns = min(MOST_COLUMNS, timeline.events)
    at = timeline.moments(columns)
    live = timeline.by_category[:, at] / unit.bytes
    # The last one, too, is as wide as an event.
    at, live = np.append(at, timeline.events), np.append(live, live[:, -1:], axis=1)
    floor = np.zeros(columns + 1)
    heights = dict(zip(timeline.categories, live, strict=True))
    for category, (colour, hatch) in _LOOKS.items():
        height = heights.get(category)
        if height is None or not height.any():
            continue
        axis.fill_between(
            at, floor, floor + height, step="post", label=category.replace("_", " "), facecolor=colour,
            hatch=hatch, edgecolor="white", linewidth=0,
        )  # fmt: skip
        floor = floor + height


def _peak(axis: Axes, report: MemoryReport, unit: ByteUnit) -> None:
    peak = report.peak_bytes / unit.bytes
    activations = report.activation_peak_bytes
    apart = f" (activations at most {unit.fixed(activations)})" if activations is not None else ""
    axis.plot([report.peak_event], [peak], marker="v", color="#000000", linestyle="none", clip_on=False)
    text, place = f"peak {unit.fixed(report.peak_bytes)} {unit.name}{apart}", (report.peak_event, peak)
    side, shift = ("right", -7) if report.peak_event > report.events / 2 else ("left", 7)
    axis.annotate(text, place, (shift, 1), textcoords="offset points", ha=side, va="bottom")
