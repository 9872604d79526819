"""A recorded step's memory as tables: peaks, categories, phases, largest allocations, what each block saves and how its
backward changes what is live."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from cs336_tui.analysis.estimates import stream_derivation, stream_text
from cs336_tui.events.memory_report import MemoryReport, PhaseSpan, SavedTensor
from cs336_tui.events.prediction import ALL_CATEGORIES, CATEGORIES, UNKNOWN_USE, MemoryBlock, Site
from cs336_tui.export.estimates import CATEGORIES_MEAN
from cs336_tui.export.footnotes import ACTIVATIONS_MEAN
from cs336_tui.export.tables import Column, Table, Value, attributes, cell_record, known, report_table
from cs336_tui.stats.quantities import NONE, ByteUnit, Units, counted

if TYPE_CHECKING:
    from cs336_tui.analysis.memory import AlikeBlocks, BlockRow, PhasePeaks, SavedRow, Timeline

from cs336_tui.events.memory_report import OomReport

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
    found = (
        _phase_table(report, timeline),
        _category_table(report, timeline),
        _largest_table(report, timeline, min_bytes),
    )
    blocks = (block_table(report),) if report.blocks else ()
    return (*found, *((saved_table(report),) if report.saved else ()), *blocks)


def peaks_table(reports: Sequence[MemoryReport]) -> Table:
    """A row for each report: the peak of each phase and of the step, recorded, counted and predicted."""
    from cs336_tui.analysis.memory import phase_peaks

    found = tuple(map(phase_peaks, reports))
    unit = ByteUnit.for_largest(max((row.step for row in found), default=0))
    sizes = (
        "forward", "backward", "optimizer", "step", "activations", "allocator",
        "predicted_forward", "predicted_step", "predicted_activations",
    )  # fmt: skip
    titles = {name: name.replace("_", " ") for name in sizes} | {"allocator": "allocator's count"}

    def record(row: PhasePeaks) -> dict[str, Value]:
        ratio = row.predicted_step / row.step if row.predicted_step and row.step else None
        amounts = {f"{name}_bytes": getattr(row, name) for name in sizes}
        return cell_record(row.spec) | {"peak_bytes": row.step} | amounts | {"predicted_over_recorded": ratio}

    columns: tuple[Column[PhasePeaks], ...] = (
        Column("size", left=True, text=lambda row: " · ".join((row.spec.size_label, *row.spec.variants))),
        Column("context"),
        Column("batch"),
        Column("pass", left=True),
        Column("precision", left=True),
        *(size_column(f"{name}_bytes", title, unit) for name, title in titles.items()),
        Column("predicted_over_recorded", "predicted / recorded", show=known("{:.3f}", NONE)),
    )
    if all(report.spec.recording for report in reports):  # of these there is no choice, no count and no prediction
        measured = [column for column in columns[5:] if "predicted" not in column.key and "allocator" not in column.key]
        columns = (Column("recording", left=True), Column("device", left=True), *measured)
    return Table.of(
        found,
        columns,
        record=record,
        caption="Peak memory by phase",
        footnotes=_peaks_notes(reports),
        label="memory-peaks",
    )


def _phase_table(report: MemoryReport, timeline: Timeline) -> Table:
    """Each phase of the step: its peak, and what lives at its end."""
    unit = ByteUnit.for_largest(report.peak_bytes)
    columns: tuple[Column[PhaseSpan], ...] = (
        Column("phase", left=True),
        size_column("peak_bytes", "peak", unit),
        Column(
            "end_bytes",
            f"at its end ({unit.name})",
            read=lambda span: int(timeline.live_total[span.end - 1]),
            show=unit.fixed,
        ),
        size_column("activations_bytes", "activations", unit)._replace(read=timeline.activations_in),
        Column("events", rank=5, read=lambda span: span.end - span.first),
    )
    return report_table(
        report,
        report.phases,
        columns,
        "Memory of each phase",
        "memory-phases",
        footnotes=(
            "event: an allocation or a free; a phase's peak includes what is live when it begins",
            "activations: the phase's peak of activations and temporary memory alone, of what the step allocated",
            *footnotes(report),
        ),
    )


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

        return size_column(key, title, unit)._replace(read=read)

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
    return report_table(
        report,
        (*timeline.categories, "all"),
        columns,
        "What memory is held for",
        "memory-categories",
        footnotes=(
            *notes,
            CATEGORIES_MEAN,
            *([UNKNOWN_MEANS] if UNKNOWN_USE in timeline.categories else []),
            *footnotes(report),
        ),
    )


def _largest_table(report: MemoryReport, timeline: Timeline, min_bytes: int) -> Table:
    """The largest allocations of at least `min_bytes` and where they come from; equal ones are one row."""
    from cs336_tui.analysis.memory import alike

    found = alike(timeline.allocations(min_bytes))
    shown = found[:MOST_ROWS]
    level = f" of at least {min_bytes / 1e6:g} MB" if min_bytes else ""
    some = [f"the first {len(shown)} of {len(found)} rows"] if len(shown) < len(found) else []
    columns: tuple[Column[AlikeBlocks], ...] = (
        Column("bytes", "each (MB)", show=lambda size: f"{size / 1e6:.3f}"),
        Column("times"),
        Column("category", "held for", left=True, show=spaced),
        Column("phase", left=True, show=lambda phase: phase or f"before the {report.subject}"),
        Column("range", left=True),
        Column("operation", left=True, text=lambda each: operation(each.block.site)),
        Column("frame", rank=2, left=True),
        Column("tensor", rank=3, left=True, text=lambda each: tensor_text(each.block)),
    )
    return report_table(
        report,
        shown,
        columns,
        f"Largest allocations{level}",
        "memory-largest",
        record=_alike_record,
        footnotes=(
            "times: equal allocations from one place, live at once or not; a backward operation has the range and "
            "frame of its forward one",
            *some,
            *footnotes(report),
        ),
    )


def saved_table(report: MemoryReport) -> Table:
    """The tensors that each Transformer block saves for backward: the five largest contributors, the rest, the sum."""
    from cs336_tui.analysis.memory import saved_summary

    columns: tuple[Column[dict[str, Value]], ...] = (
        Column("module", "block", left=True, text=lambda each: str(each["module"]) if each["first"] else ""),
        Column("node", "saved by", rank=3, left=True),
        Column("range", left=True, show=known("{}", ""), short="part"),
        Column("tensor", rank=3, left=True, text=_saved_tensor),
        Column("times", show=known("{}", ""), short="×"),
        Column("bytes", "MB", show=lambda size: f"{size / 1e6:.3f}", short="", units=SIZES),
        Column("share", show=lambda share: NONE if share is None else f"{share * 100:.1f} %"),
    )
    return report_table(
        report,
        (
            {"first": place == 0} | record
            for row in saved_summary(report)
            for place, record in enumerate(_saved_records(row))
        ),
        columns,
        "Saved for backward by each Transformer block",
        "memory-saved",
        record=lambda each: {key: each[key] for key in each if key != "first"},
        footnotes=(
            "each storage counts once, where it is saved first; without parameters and buffers, with autocast's "
            "copies of parameters",
            *footnotes(report),
        ),
    )


def unit_of_blocks(report: MemoryReport) -> ByteUnit:
    """The unit of `block_table`."""
    from cs336_tui.analysis.memory import block_rows

    return ByteUnit.for_largest(max(max(row.gradient_bytes, row.saved_bytes or 0) for row in block_rows(report)))


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
    return report_table(
        report,
        block_rows(report),
        columns,
        "Memory over the backward of each Transformer block",
        "memory-blocks",
        footnotes=(
            "expected change: gradients minus saved; difference: the change minus this",
            "gradients: of the block's parameters, each as large as its parameter; saved: what the block saved for "
            "backward, now freed",
            "change + saved: the gradients by memory alone",
            "a block's backward begins when the gradient of its output is known and ends when that of its input is; "
            "blocks that are recomputed together are one row",
            *footnotes(report),
        ),
    )


def memory_document(report: MemoryReport, *, arrays: bool = False) -> dict[str, Any]:
    """The report for programs, in bytes; every single allocation only with `arrays`."""
    from cs336_tui.analysis.memory import Timeline, activation_peak, alike, block_rows, saved_summary

    timeline = Timeline(report)
    end, peak = timeline.at(_forward_end(report), n=0), timeline.at(report.peak_event)
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
        "blocks": [row._asdict() for row in block_rows(report)],
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


def _peaks_notes(reports: Iterable[MemoryReport]) -> Iterator[str]:
    yield "forward: the peak while forward runs; step: the peak of the whole recorded step"
    yield ACTIVATIONS_MEAN
    own = [report for report in reports if not report.spec.recording]
    if own:
        yield "recorded after warm-up, apart from timing; a training step begins with the gradients of the one before"
    yield "recorders: " + ", ".join(dict.fromkeys(report.recorder for report in reports))
    yield "devices: " + ", ".join(dict.fromkeys(f"{r.device_name}, torch {r.torch}" for r in reports))
    yield from dict.fromkeys(report.note for report in reports if report.note)
    yield UNITS


def _forward_end(report: MemoryReport) -> int:
    return max((span.end - 1 for span in report.phases if span.phase == "forward"), default=0)


def operation(site: Site) -> str:
    """``mm (backward)``; empty if unknown."""
    return f"{site.op} (backward)" if site.backward else site.op


def _alike_record(each: AlikeBlocks) -> dict[str, Value]:
    block = each.block
    later = {"times": each.times, "phase": each.phase or None}
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


def _saved_tensor(record: dict[str, Value]) -> str:
    shape = record["shape"]
    return f"{'×'.join(map(str, shape))} {record['dtype']}" if isinstance(shape, tuple) else ""


def spaced(name: str) -> str:
    """``optimizer state`` for ``optimizer_state``."""
    return name.replace("_", " ")


def size_column(key: str, title: str, unit: ByteUnit, short: str = "") -> Column[Any]:
    """Bytes, in a unit that a screen names above the table."""
    return Column(key, f"{title} ({unit.name})", show=unit.fixed, short=short or title)


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
