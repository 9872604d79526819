"""A recorded step's memory as tables: peaks, categories, phases, largest allocations, what is saved for backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from cs336_tui.analysis.fields import size_label
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.reports import CATEGORIES, MemoryBlock, MemoryReport, OomReport
from cs336_tui.export.estimates import CATEGORIES_MEAN
from cs336_tui.export.tables import Column, Table, Value
from cs336_tui.stats.quantities import NONE, ByteUnit

if TYPE_CHECKING:
    from cs336_tui.analysis.memory import AlikeBlocks, SavedRow, Timeline


MOST_ROWS = 50
"""Of largest allocations."""
BEFORE = "before the step"
UNITS = "GB = 10⁹ bytes, MB = 10⁶ bytes, MiB = 2²⁰ bytes"

_CELL_COLUMNS = (
    Column("size", left=True), Column("context"), Column("batch"), Column("pass", left=True),
    Column("precision", left=True),
)  # fmt: skip


def memory_tables(report: MemoryReport, *, min_bytes: int = 0) -> tuple[Table, ...]:
    """Every table of one report; allocations below `min_bytes` are left out of the largest ones."""
    from cs336_tui.analysis.memory import Timeline

    timeline = Timeline(report)
    saved = (saved_table(report),) if report.saved else ()
    return phase_table(report), _category_table(report, timeline), _largest_table(report, timeline, min_bytes), *saved


def peaks_table(reports: Sequence[MemoryReport]) -> Table:
    """A row for each report: the peak of each phase and of the step, recorded, counted and predicted."""
    from cs336_tui.analysis.memory import phase_peaks

    found = phase_peaks(reports)
    unit = ByteUnit.for_largest(max((row.step for row in found), default=0))
    headers = ("forward", "backward", "optimizer", "step", "allocator's count", "predicted forward", "predicted step")
    amounts = [
        (row.forward, row.backward, row.optimizer, row.step, row.allocator, row.predicted_forward, row.predicted_step)
        for row in found
    ]
    ratios = [row.predicted_step / row.step if row.predicted_step and row.step else None for row in found]
    names = ("forward", "backward", "optimizer", "step", "allocator", "predicted_forward", "predicted_step")
    return Table(
        columns=(*_CELL_COLUMNS, *_sizes(unit, headers), Column("predicted / recorded")),
        rows=tuple(
            (*_cell_texts(row.spec), *map(unit.fixed, sizes), NONE if ratio is None else f"{ratio:.3f}")
            for row, sizes, ratio in zip(found, amounts, ratios, strict=True)
        ),
        records=tuple(
            _cell(row.spec)
            | {f"{name}_bytes": size for name, size in zip(names, sizes, strict=True)}
            | {"predicted_over_recorded": ratio}
            for row, sizes, ratio in zip(found, amounts, ratios, strict=True)
        ),
        caption="Peak memory by phase",
        footnotes=tuple(_peaks_notes(reports)),
        label="memory-peaks",
    )


def phase_table(report: MemoryReport) -> Table:
    """Each phase of the step: its peak, and what lives at its end."""
    from cs336_tui.analysis.memory import Timeline

    live = Timeline(report).live_total
    ends = [int(live[span.end - 1]) for span in report.phases]
    unit = ByteUnit.for_largest(report.peak_bytes)
    return Table(
        columns=(Column("phase", left=True), *_sizes(unit, ("peak", "at its end")), Column("events")),
        rows=tuple(
            (span.phase, unit.fixed(span.peak_bytes), unit.fixed(end), str(span.end - span.first))
            for span, end in zip(report.phases, ends, strict=True)
        ),
        records=tuple(
            _cell(report.spec)
            | {"phase": span.phase, "peak_bytes": span.peak_bytes, "end_bytes": end, "events": span.end - span.first}
            for span, end in zip(report.phases, ends, strict=True)
        ),
        caption=_caption(report, "Memory of each phase"),
        footnotes=(
            "an event is an allocation or a free; a phase's peak counts what lives when it begins",
            *footnotes(report),
        ),
        label=_label(report, "memory-phases"),
    )


def category_table(report: MemoryReport) -> Table:
    """What memory is held for at the end of forward and at the peak, recorded and predicted."""
    from cs336_tui.analysis.memory import Timeline

    return _category_table(report, Timeline(report))


def _category_table(report: MemoryReport, timeline: Timeline) -> Table:
    prediction = report.prediction
    unit = ByteUnit.for_largest(report.peak_bytes)
    at_end = timeline.at(_forward_end(report), n=0).by_category
    at_peak = timeline.at(report.peak_event, n=0).by_category
    columns: list[tuple[str, str, dict[str, int] | None]] = [
        ("end of forward", "forward_end_bytes", dict(at_end.items())),
        ("predicted", "predicted_forward_end_bytes", prediction.forward_end_by_category if prediction else None),
        ("peak", "peak_bytes", dict(at_peak.items())),
        ("predicted", "predicted_peak_bytes", prediction.by_category if prediction else None),
    ]
    sums = [None if sizes is None else sum(sizes.values()) for _, _, sizes in columns]
    each = [[None if sizes is None else sizes.get(name, 0) for _, _, sizes in columns] for name in CATEGORIES]
    rows = [*zip(CATEGORIES, each, strict=True), ("all", sums)]
    notes = [f"the peak is in {timeline.phase_at(report.peak_event) or BEFORE}"]
    if prediction:
        residual = prediction.residual_stream_bytes / 2**20
        notes.append(f"one tensor of the residual stream: {residual:.2f} MiB")
    return Table(
        columns=(Column("held for", left=True), *_sizes(unit, (header for header, _, _ in columns))),
        rows=tuple((name.replace("_", " "), *map(unit.fixed, sizes)) for name, sizes in rows),
        records=tuple(
            _cell(report.spec)
            | {"category": name}
            | {key: size for (_, key, _), size in zip(columns, sizes, strict=True)}
            for name, sizes in rows
        ),
        caption=_caption(report, "What memory is held for"),
        footnotes=(
            *notes,
            CATEGORIES_MEAN,
            *footnotes(report),
        ),
        label=_label(report, "memory-categories"),
    )


def largest_table(report: MemoryReport, min_bytes: int = 0) -> Table:
    """The largest allocations of the step of at least `min_bytes` and where they come from; equal ones are one row."""
    from cs336_tui.analysis.memory import Timeline

    return _largest_table(report, Timeline(report), min_bytes)


def _largest_table(report: MemoryReport, timeline: Timeline, min_bytes: int) -> Table:
    from cs336_tui.analysis.memory import alike

    found = alike(timeline.allocations(min_bytes))
    shown = found[:MOST_ROWS]
    level = f" of at least {min_bytes / 1e6:g} MB" if min_bytes else ""
    some = [f"the first {len(shown)} of {len(found)} rows"] if len(shown) < len(found) else []
    return Table(
        columns=(
            Column("each (MB)"), Column("times"), Column("held for", left=True), Column("phase", left=True),
            Column("range", left=True), Column("operation", left=True), Column("frame", left=True),
            Column("tensor", left=True),
        ),
        rows=tuple(map(_alike_texts, shown)),
        records=tuple(_cell(report.spec) | _alike_record(each) for each in shown),
        caption=_caption(report, f"Largest allocations{level}"),
        footnotes=(
            "times: equal allocations from one place, whether or not they live at once; an operation of the backward "
            "has the range and the frame of its forward one",
            *some,
            *footnotes(report),
        ),
        label=_label(report, "memory-largest"),
    )  # fmt: skip


def saved_table(report: MemoryReport) -> Table:
    """What each Transformer block saves for backward: its five largest contributors, the rest and the sum."""
    from cs336_tui.analysis.memory import saved_summary

    rows = saved_summary(report)
    return Table(
        columns=(
            Column("block", left=True), Column("saved by", left=True), Column("range", left=True),
            Column("tensor", left=True), Column("times"), Column("MB"), Column("share"),
        ),
        rows=tuple(text for row in rows for text in _saved_texts(row)),
        records=tuple(_cell(report.spec) | record for row in rows for record in _saved_records(row)),
        caption=_caption(report, "Saved for backward by each Transformer block"),
        footnotes=(
            "each storage is counted once, where it is saved first; parameters and buffers are left out, copies of "
            "parameters that autocast makes are not",
            *footnotes(report),
        ),
        label=_label(report, "memory-saved"),
    )  # fmt: skip


def oom_table(report: OomReport) -> Table:
    """What was asked for, what was live for what, the largest live allocations, and the prediction beside it."""
    records = tuple(_oom_records(report))
    unit = ByteUnit.for_largest(max(report.live_bytes, report.capacity_bytes or 0))
    seen = "seen in a second attempt" if report.observed else "predicted, not seen"
    return Table(
        columns=(Column("what", left=True), Column(unit.name), Column("where", left=True)),
        rows=tuple((str(r["what"]), _fixed(unit, r["bytes"]), str(r["where"] or "")) for r in records),
        records=tuple(_cell(report.spec) | {"observed": report.observed} | record for record in records),
        caption=f"Out of memory: {report.spec.title} · batch {report.spec.batch_size}",
        footnotes=(f"what was live: {seen}", UNITS, *([report.note] if report.note else [])),
        label=f"oom-{report.spec.title}",
    )


def memory_document(report: MemoryReport, *, arrays: bool = False) -> dict[str, Any]:
    """The report for programs, in bytes; every single allocation only with `arrays`."""
    from cs336_tui.analysis.memory import Timeline, alike, saved_summary

    timeline = Timeline(report)
    end, peak = timeline.at(_forward_end(report), n=0), timeline.at(report.peak_event)
    found: dict[str, Any] = {
        "spec": report.spec,
        "recorder": report.recorder,
        "device_name": report.device_name,
        "torch": report.torch,
        "events": report.events,
        "peak_bytes": report.peak_bytes,
        "peak_phase": peak.phase,
        "forward_end_bytes": report.forward_end_bytes,
        "allocator_peak_bytes": report.allocator_peak_bytes,
        "by_category": peak.by_category,
        "forward_end_by_category": end.by_category,
        "phases": report.phases,
        "largest_at_peak": peak.blocks,
        "largest": [_alike_record(each) for each in alike(timeline.allocations())[:MOST_ROWS]],
        "saved_for_backward": [record for row in saved_summary(report) for record in _saved_records(row)],
        "prediction": report.prediction,
        "snapshot": report.snapshot,
        "note": report.note,
    }
    if arrays:
        names = ("bytes", "born", "died", "categories", "site_of", "sites", "form_of", "forms")
        found |= {name: getattr(report, name) for name in names} | {"category_names": CATEGORIES}
    document: dict[str, Any] = msgspec.to_builtins(found)
    return document


def footnotes(report: MemoryReport) -> tuple[str, ...]:
    """Whose counts these are; the same under every table of a report."""
    counted = report.allocator_peak_bytes
    unit = ByteUnit.for_largest(report.peak_bytes)
    return (
        f"one recorded step after warm-up, apart from timing; recorder: {report.recorder}",
        *([f"the allocator itself counts a peak of {unit.fixed(counted)} {unit.name}"] if counted is not None else []),
        *([f"CUDA's snapshot, for pytorch.org/memory_viz: {report.snapshot}"] if report.snapshot else []),
        *([report.note] if report.note else []),
        UNITS,
    )


def _peaks_notes(reports: Iterable[MemoryReport]) -> Iterator[str]:
    yield "forward: the peak while forward runs; step: the peak of the whole recorded step"
    yield "recorded after warm-up, apart from timing; a training step begins with the gradients of the one before"
    yield "recorders: " + ", ".join(dict.fromkeys(report.recorder for report in reports))
    yield "devices: " + ", ".join(dict.fromkeys(f"{r.device_name}, torch {r.torch}" for r in reports))
    yield from dict.fromkeys(report.note for report in reports if report.note)
    yield UNITS


def _forward_end(report: MemoryReport) -> int:
    return max((span.end - 1 for span in report.phases if span.phase == "forward"), default=0)


def _alike_texts(each: AlikeBlocks) -> tuple[str, ...]:
    block, site = each.block, each.block.site
    op = f"{site.op} (backward)" if site.backward else site.op
    held_for = block.category.replace("_", " ")
    size = f"{block.bytes / 1e6:.3f}"
    return size, str(each.times), held_for, each.phase or BEFORE, site.range, op, site.frame, _tensor(block)


def _alike_record(each: AlikeBlocks) -> dict[str, Value]:
    return _block_record(each.block) | {"times": each.times, "phase": each.phase or None}


def _block_record(block: MemoryBlock) -> dict[str, Value]:
    site = block.site
    return {
        "bytes": block.bytes, "category": block.category, "phase": site.phase or None, "range": site.range,
        "operation": site.op, "backward": site.backward, "frame": site.frame, "shape": block.shape,
        "dtype": block.dtype,
    }  # fmt: skip


def _tensor(block: MemoryBlock) -> str:
    return f"{'×'.join(map(str, block.shape)) or 'scalar'} {block.dtype}" if block.shape is not None else ""


def _saved_records(row: SavedRow) -> Iterator[dict[str, Value]]:
    def record(
        node: str, range_: str | None, dtype: str | None, shape: tuple[int, ...] | None, times: int | None, size: int
    ) -> dict[str, Value]:
        share = size / row.bytes if row.bytes else None
        return {
            "module": row.modules, "alike": row.alike, "node": node, "range": range_, "dtype": dtype, "shape": shape,
            "times": times, "bytes": size, "share": share,
        }  # fmt: skip

    for tensor, _ in row.contributors:
        yield record(tensor.node, tensor.range, tensor.dtype, tensor.shape, tensor.count, tensor.bytes)
    if row.rest_count:
        yield record(f"{row.rest_count} other kinds", None, None, None, None, row.rest_bytes)
    yield record("all", None, None, None, None, row.bytes)


def _saved_texts(row: SavedRow) -> Iterator[tuple[str, ...]]:
    for place, record in enumerate(_saved_records(row)):
        shape = record["shape"]
        tensor = f"{'×'.join(map(str, shape))} {record['dtype']}" if isinstance(shape, tuple) else ""
        size, share, times = record["bytes"], record["share"], record["times"]
        assert isinstance(size, int)
        yield (
            row.modules if place == 0 else "",
            str(record["node"]),
            str(record["range"] or ""),
            tensor,
            "" if times is None else str(times),
            f"{size / 1e6:.3f}",
            f"{share * 100:.1f} %" if isinstance(share, float) else NONE,
        )


def _oom_records(report: OomReport) -> Iterator[dict[str, Value]]:
    def record(what: str, kind: str, size: int | None, where: str | None = None) -> dict[str, Value]:
        return {"what": what, "kind": kind, "bytes": size, "where": where}

    phase = {None: None, "building": "while the model was built"}.get(report.phase, f"in {report.phase}")
    yield record("asked for", "request", report.request_bytes, phase)
    yield record("live", "live", report.live_bytes)
    yield record("the device has", "capacity", report.capacity_bytes)
    if report.prediction:
        yield record("predicted peak", "prediction", report.prediction.peak_bytes, f"in {report.prediction.peak_phase}")
    for category in CATEGORIES:
        yield record(f"live: {category.replace('_', ' ')}", "category", report.by_category.get(category, 0))
    for number, block in enumerate(report.largest, 1):
        site = block.site
        parts = (site.range, site.frame, site.op + (" (backward)" if site.backward else ""), _tensor(block))
        name = f"block {number}: {block.category.replace('_', ' ')}"
        yield record(name, "block", block.bytes, " · ".join(filter(None, parts)))


def _cell(spec: CellSpec) -> dict[str, Value]:
    return {
        "size": size_label(spec), "context": spec.context_length, "batch": spec.batch_size, "pass": spec.pass_,
        "variants": ", ".join(spec.variants),
        "precision": spec.precision, "device": spec.device,
    }  # fmt: skip


def _cell_texts(spec: CellSpec) -> tuple[str, ...]:
    return (
        " · ".join((size_label(spec), *spec.variants)),
        str(spec.context_length),
        str(spec.batch_size),
        spec.pass_,
        spec.precision,
    )


def _caption(report: MemoryReport, what: str) -> str:
    spec = report.spec
    return f"{what}: {spec.title} · batch {spec.batch_size} · {report.device_name}, torch {report.torch}"


def _label(report: MemoryReport, what: str) -> str:
    return f"{what}-{report.spec.title}"


def _sizes(unit: ByteUnit, headers: Iterable[str]) -> Iterator[Column]:
    return (Column(f"{header} ({unit.name})") for header in headers)


def _fixed(unit: ByteUnit, size: Value) -> str:
    return unit.fixed(size if isinstance(size, int) else None)
