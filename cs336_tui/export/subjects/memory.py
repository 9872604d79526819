"""A recorded step's memory as tables: peaks, categories, phases, largest allocations, what each block saves and how its
backward changes what is live."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from cs336_tui.analysis.estimates import stream_derivation, stream_text
from cs336_tui.events.prediction import ALL_CATEGORIES, CATEGORIES, UNKNOWN_USE, MemoryBlock, PhaseSpan, Site
from cs336_tui.events.reports import MemoryReport, SavedTensor
from cs336_tui.export.subjects.estimates import CATEGORIES_MEAN
from cs336_tui.export.writing.tables import Column, Table, Value, attributes, known, report_table
from cs336_tui.stats.quantities import NONE, ByteUnit, Units, counted, tenth_percent

if TYPE_CHECKING:
    from cs336_tui.analysis.memory import AlikeBlocks, BlockRow, SavedRow, Timeline


SIZES: Units = (("MB", 1e6), ("GB", 1e9))
MOST_ROWS = 50
"""Of largest allocations."""
UNKNOWN_MEANS = (
    "unknown: the recording does not say what it is held for, as for all blocks older than it; other uses follow from "
    "the phases in which a block is allocated and freed"
)
UNITS = "GB = 10⁹ bytes, MB = 10⁶ bytes, MiB = 2²⁰ bytes"


def memory_tables(report: MemoryReport, *, min_bytes: int = 0) -> tuple[Table, ...]:
    """Every table of one report; allocations below `min_bytes` are left out of the largest ones."""
    from cs336_tui.analysis.memory import Timeline

    timeline = Timeline(report)
    found = [_phase_table(report, timeline), _category_table(report, timeline)]
    found.append(_largest_table(report, timeline, min_bytes))
    if report.saved:
        found.append(saved_table(report))
    if report.blocks:
        found.append(block_table(report))
    return tuple(found)


def _phase_table(report: MemoryReport, timeline: Timeline) -> Table:
    """Each phase of the step: its peak, and what lives at its end."""
    from cs336_tui.analysis.memory import tells_activations

    unit, known_use = ByteUnit.for_largest(report.peak_bytes), tells_activations(report)
    columns: tuple[Column[PhaseSpan], ...] = (
        Column("phase", left=True),
        size_column("peak_bytes", "peak", unit),
        size_column("end_bytes", "at its end", unit, read=lambda span: int(timeline.live_total[span.end - 1])),
        size_column(
            "activations_bytes",
            "activations",
            unit,
            read=lambda span: timeline.activations_in(span) if known_use else None,
        ),
        Column("events", rank=5, read=lambda span: span.end - span.first),
    )
    notes = (
        "event: an allocation or a free; a phase's peak includes what is live when it begins",
        "activations: the phase's peak of activations and temporary memory alone, of what the step allocated"
        if known_use
        else "activations are not known: no backward is in the recording, which would tell what forward keeps for it",
        *footnotes(report),
    )
    return report_table(report, "memory-phases", report.phases, columns, "Memory of each phase", notes)


def _category_table(report: MemoryReport, timeline: Timeline) -> Table:
    """Memory by category at the end of forward and at the peak, recorded and predicted."""
    from cs336_tui.analysis.memory import activation_peak

    prediction = report.prediction
    unit = ByteUnit.for_largest(report.peak_bytes)
    forward_end = _forward_end(report)
    at_end = timeline.at(forward_end, n=0).by_category if forward_end or not report.spec.recording else None
    at_peak = timeline.at(report.peak_event, n=0).by_category

    def size(key: str, title: str, sizes: Mapping[Any, int] | None) -> Column[str]:
        def read(category: str) -> int | None:
            if sizes is None:
                return None
            return sum(sizes.values()) if category == "all" else sizes.get(category, 0)

        return size_column(key, title, unit, read=read)

    columns: tuple[Column[str], ...] = (
        Column("category", "held for", left=True, read=str, show=spaced),
        size("forward_end_bytes", "end of forward", at_end),
        size("predicted_forward_end_bytes", "predicted", prediction.forward_end_by_category if prediction else None),
        size("peak_bytes", "peak", at_peak),
        size("predicted_peak_bytes", "predicted", prediction.by_category if prediction else None),
    )
    if report.spec.recording:
        columns = tuple(column for column in columns if not column.key.startswith("predicted"))
    phase = timeline.phase_at(report.peak_event)
    predicted = prediction.activation_peak_bytes if prediction else None
    apart = ((activation_peak(report), "recorded"), (predicted, "predicted"))
    told = [f"{unit.fixed(size)} {unit.name} {how}" for size, how in apart if size is not None]
    notes = [f"the peak is in {phase}" if phase else f"the peak is before the {report.subject}"]
    if told:
        notes.append(f"activation peak, apart from all else: {', '.join(told)}")
    if prediction:
        notes.append(f"one tensor of the residual stream: {stream_text(prediction)}")
    notes.append(CATEGORIES_MEAN)
    if UNKNOWN_USE in timeline.categories:
        notes.append(UNKNOWN_MEANS)
    notes += footnotes(report)
    rows = (*timeline.categories, "all")
    return report_table(report, "memory-categories", rows, columns, "What memory is held for", notes)


def _largest_table(report: MemoryReport, timeline: Timeline, min_bytes: int) -> Table:
    """The largest allocations of at least `min_bytes` and where they come from; equal ones are one row."""
    from cs336_tui.analysis.memory import alike

    found = alike(timeline.allocations(min_bytes))
    shown = found[:MOST_ROWS]
    level = f" of at least {min_bytes / 1e6:g} MB" if min_bytes else ""
    some = [f"the first {len(shown)} of {len(found)} rows"] if len(shown) < len(found) else []
    note = (
        "times: equal allocations from one place, live at once or not; a backward operation has the range and "
        "frame of its forward one"
    )
    title, notes = f"Largest allocations{level}", (note, *some, *footnotes(report))
    columns = allocation_columns(report.subject)
    return report_table(report, "memory-largest", shown, columns, title, notes, record=_alike_record)


def allocation_columns(subject: str = "step") -> tuple[Column[AlikeBlocks], ...]:
    """The columns of allocations; `subject`: what those that are older live before."""
    return (
        Column(
            "bytes", "each (MB)", read=lambda each: each.block.bytes, show=lambda size: f"{size / 1e6:.3f}", short="",
            units=SIZES,
        ),
        Column("times", short="×"),
        Column("category", "held for", left=True, read=lambda each: each.block.category, show=spaced),
        Column("phase", left=True, read=lambda each: each.when, show=lambda phase: phase or f"before the {subject}"),
        Column("range", left=True, read=lambda each: each.block.site.range, short="part"),
        Column("operation", left=True, text=lambda each: operation(each.block.site)),
        Column("frame", rank=2, left=True, read=lambda each: each.block.site.frame),
        Column("tensor", rank=3, left=True, text=lambda each: tensor_text(each.block)),
    )  # fmt: skip


def saved_table(report: MemoryReport) -> Table:
    """The tensors that each Transformer block saves for backward: the five largest contributors, the rest, the sum."""
    from cs336_tui.analysis.memory import saved_summary

    def tensor(row: tuple[int, dict[str, Value]]) -> str:
        shape = row[1]["shape"]
        return f"{'×'.join(map(str, shape))} {row[1]['dtype']}" if isinstance(shape, tuple) else ""

    columns: tuple[Column[tuple[int, dict[str, Value]]], ...] = (
        Column("module", "block", left=True, text=lambda row: "" if row[0] else str(row[1]["module"])),
        Column("node", "saved by", rank=3, left=True),
        Column("range", left=True, show=known("{}", ""), short="part"),
        Column("tensor", rank=3, left=True, text=tensor),
        Column("times", show=known("{}", ""), short="×"),
        Column("bytes", "MB", show=lambda size: f"{size / 1e6:.3f}", short="", units=SIZES),
        Column("share", show=tenth_percent),
    )
    rows = [row for each in saved_summary(report) for row in enumerate(_saved_records(each))]
    note = (
        "each storage counts once, where it is saved first; without parameters and buffers, with autocast's "
        "copies of parameters"
    )
    title, notes = "Saved for backward by each Transformer block", (note, *footnotes(report))
    return report_table(report, "memory-saved", rows, columns, title, notes, record=itemgetter(1))


def unit_of_blocks(report: MemoryReport) -> ByteUnit:
    """The unit of `block_table`."""
    from cs336_tui.analysis.memory import block_rows

    sizes = (max(row.gradient_bytes, row.saved_bytes or 0) for row in block_rows(report))
    return ByteUnit.for_largest(max(sizes, default=0))


def block_table(report: MemoryReport) -> Table:
    """The backward of each Transformer block: what comes and goes, expected and recorded."""
    from cs336_tui.analysis.memory import block_rows

    unit = unit_of_blocks(report)
    columns: tuple[Column[BlockRow], ...] = (
        Column("module", "block", left=True),
        size_column("gradient_bytes", "gradients", unit),
        size_column("saved_bytes", "saved", unit),
        size_column("expected_bytes", "expected change", unit, "expected"),
        size_column("change_bytes", "change in backward", unit, "change"),
        Column("difference_bytes", "difference (bytes)", show=known("{:,}", NONE), short="diff"),
        size_column("seen_gradient_bytes", "change + saved", unit),
        size_column("before_bytes", "live before", unit),
        size_column("after_bytes", "live after", unit),
        size_column("peak_bytes", "peak", unit),
        size_column("forward_bytes", "change in forward", unit, "in forward"),
    )
    notes = (
        "expected change: gradients minus saved; difference: the change minus this",
        "gradients: of the block's parameters, each as large as its parameter; saved: what the block saved for "
        "backward, now freed",
        "change + saved: the gradients by memory alone",
        "a block's backward begins when the gradient of its output is known and ends when that of its input is; "
        "blocks that are recomputed together are one row",
        *footnotes(report),
    )
    title = "Memory over the backward of each Transformer block"
    return report_table(report, "memory-blocks", block_rows(report), columns, title, notes)


def memory_document(report: MemoryReport, *, arrays: bool = False) -> dict[str, Any]:
    """The report for programs, in bytes; every single allocation only with `arrays`."""
    from cs336_tui.analysis.memory import Timeline, activation_peak, alike, block_rows, saved_summary

    timeline = Timeline(report)
    end, peak = timeline.at(_forward_end(report), n=0), timeline.at(report.peak_event)
    block_keys = [column.key for column in block_table(report).columns]
    found: dict[str, Any] = {
        **attributes(report, "spec", "recorder", "device_name", "torch", "events", "peak_bytes"),
        "peak_phase": peak.phase,
        "activation_peak_bytes": activation_peak(report),
        "forward_end_bytes": report.forward_end_bytes,
        "allocator_peak_bytes": report.allocator_peak_bytes,
        "by_category": peak.by_category,
        "forward_end_by_category": end.by_category,
        "phases": report.phases,
        "largest_at_peak": peak.blocks,
        "largest": [_alike_record(each) for each in alike(timeline.allocations())[:MOST_ROWS]],
        "saved_for_backward": [record for row in saved_summary(report) for record in _saved_records(row)],
        "blocks": [attributes(row, *block_keys) for row in block_rows(report)],
        "residual_stream": stream_derivation(report.prediction) if report.prediction else None,
        "prediction": report.prediction,
        "snapshot": report.snapshot,
        "note": report.note,
    }
    if arrays:
        names = ("bytes", "born", "died", "categories", "site_of", "sites", "form_of", "forms")
        found |= attributes(report, *names) | {
            "category_names": ALL_CATEGORIES if UNKNOWN_USE in timeline.categories else CATEGORIES
        }
    document: dict[str, Any] = msgspec.to_builtins(found)
    return document


ALLOCATOR_COUNTS = "the allocator itself counts a peak of"


def footnotes(report: MemoryReport) -> tuple[str, ...]:
    """Whose counts these are; the same under every table of a report."""
    counted = report.allocator_peak_bytes
    unit = ByteUnit.for_largest(report.peak_bytes)
    what = "recorded elsewhere" if report.spec.recording else "one recorded step after warm-up, apart from timing"
    return (
        f"{what}; recorder: {report.recorder}",
        *([f"{ALLOCATOR_COUNTS} {unit.fixed(counted)} {unit.name}"] if counted is not None else []),
        *([f"CUDA's snapshot, for pytorch.org/memory_viz: {report.snapshot}"] if report.snapshot else []),
        *([report.note] if report.note else []),
        UNITS,
    )


def _forward_end(report: MemoryReport) -> int:
    return max((span.end - 1 for span in report.phases if span.phase == "forward"), default=0)


def operation(site: Site) -> str:
    """``mm (backward)``; empty if unknown."""
    return f"{site.op} (backward)" if site.backward else site.op


def _alike_record(each: AlikeBlocks) -> dict[str, Value]:
    block = each.block
    later = {"times": each.times, "phase": each.when or None}
    site = attributes(block.site, phase="phase", range="range", operation="op", backward="backward", frame="frame")
    return attributes(block, "bytes", "category") | site | attributes(block, "shape", "dtype") | later


def tensor_text(block: MemoryBlock) -> str:
    """``4×128×768 float32``; empty if the block is not a tensor."""
    return f"{'×'.join(map(str, block.shape)) or 'scalar'} {block.dtype}" if block.shape is not None else ""


def _saved_records(row: SavedRow) -> Iterator[dict[str, Value]]:
    def record(node: str, size: int, tensor: SavedTensor | None = None) -> dict[str, Value]:
        return {
            "module": row.modules, "alike": row.alike, "node": node,
            **attributes(tensor, range="range", dtype="dtype", shape="shape", times="count"),
            "bytes": size, "share": size / row.bytes if row.bytes else None,
        }  # fmt: skip

    for tensor, _ in row.contributors:
        yield record(tensor.node, tensor.bytes, tensor)
    if row.rest_count:
        yield record(counted(row.rest_count, "other kind"), row.rest_bytes)
    yield record("all", row.bytes)


def spaced(name: str) -> str:
    """``optimizer state`` for ``optimizer_state``."""
    return name.replace("_", " ")


def size_column(
    key: str, title: str, unit: ByteUnit, short: str = "", read: Callable[[Any], Value] | None = None
) -> Column[Any]:
    """Bytes, in a unit that a screen names above the table."""
    return Column(key, f"{title} ({unit.name})", show=unit.fixed, short=short or title, read=read)
