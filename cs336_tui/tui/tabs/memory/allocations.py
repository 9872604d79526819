"""A memory report in words and tables, for a window of some width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cs336_tui.events.reports import Block, MemoryReport, Prediction
from cs336_tui.tui import format
from cs336_tui.tui.charts.blocks import bar
from cs336_tui.tui.charts.byte_unit import ByteUnit
from cs336_tui.tui.tabs.memory.blocks import BACKWARD, NONE, block_details, category_name, tensor, where
from cs336_tui.tui.tabs.memory.peaks import difference
from cs336_tui.tui.tabs.page import Page, message, wrapped
from cs336_tui.tui.widgets.columns import Column, lay_out
from cs336_tui.tui.widgets.lines import Line, Span, line

if TYPE_CHECKING:
    from cs336_tui.analysis.memory import Allocation, SavedRow, Timeline

_MOST = 1_000
"""So many allocations are listed."""


def summary(report: MemoryReport, prediction: Prediction | None) -> Line:
    """Whose figures these are, and the peak: as recorded, as the allocator counts it, as predicted."""
    unit = ByteUnit.for_largest(report.peak_bytes)
    found = next((span.phase for span in report.phases if span.first <= report.peak_event < span.end), "")
    spans = [
        Span(f"peak {unit.text(report.peak_bytes)}", "strong"),
        Span(f" in {found}" if found else " before the step"),
        Span(f" · allocator's own {unit.text(report.allocator_peak_bytes)}"),
    ]
    if prediction:
        spans.append(Span(f" · predicted {unit.text(prediction.peak_bytes)} "))
        spans.append(difference(prediction.peak_bytes, report.allocator_peak_bytes or report.peak_bytes))
    spans.append(Span(f" · recorded by: {report.recorder}", "muted"))
    return tuple(spans)


def about(report: MemoryReport, width: int) -> list[Line]:
    """Where the record comes from and lies, and what it lacks."""
    lines = wrapped(f"{report.recorder} · {report.device_name} · torch {report.torch}", width, "muted")
    if report.snapshot:
        lines += wrapped(f"snapshot, for pytorch.org/memory_viz: {report.snapshot}", width, "text", "  ")
    return [*lines, *(wrapped(report.note, width, "muted") if report.note else [])]


def largest_page(timeline: Timeline, level_mb: int, width: int) -> Page:
    """The allocations of the step of at least `level_mb`; those alike in all but their moment are one row."""
    report = timeline.report
    least = level_mb * 10**6
    allocations = timeline.allocations(least, _MOST)
    total = sum(map(least.__le__, report.bytes))
    groups: dict[tuple[Block, str, str], list[Allocation]] = {}
    for found in allocations:
        ends = "" if found.died is None else timeline.phase_at(found.died)
        groups.setdefault((found.block, found.phase, ends), []).append(found)
    unit = ByteUnit.for_largest(max(report.bytes, default=0))
    columns = (
        Column(unit.name),
        Column("×"),
        Column("held for", left=True, rank=2),
        Column("part", left=True, rank=1),
        Column("tensor", left=True, rank=4),
        Column("lives", left=True, rank=3),
        Column("operation", left=True, rank=5),
        Column(f"where ({BACKWARD} in backward)", left=True),
    )
    texts = [
        (
            unit.figure(block.bytes), str(len(alike)), category_name(block.category), block.site.range or NONE,
            tensor(block.dtype, block.shape) or NONE, _life(begins, ends), format.plain(block.site.op) or NONE,
            where(block.site),
        )
        for (block, begins, ends), alike in groups.items()
    ]  # fmt: skip
    layout = lay_out(columns, texts, width)
    listed = f"the largest {len(allocations):,} of {total:,}" if total > len(allocations) else f"{total:,}"
    above = f"Allocations of at least {level_mb} MB" if level_mb else "All allocations"
    heading = (
        line((above, "strong"), ("  < >", "key"),
             (f" · {listed}; {len(report.bytes):,} in all", "muted")),
        line((layout.heading, "muted")),
    )  # fmt: skip
    if not texts:
        return Page(heading, (line(("Nothing is that large; < shows smaller ones.", "muted")),))
    details = {
        place: _lives(block, alike, report) for place, ((block, _, _), alike) in enumerate(groups.items())
    }  # fmt: skip
    return Page(heading, tuple(line(layout.row(row)) for row in texts), details)


def _life(begins: str, ends: str) -> str:
    begins, ends = begins or "before", ends or "after"
    return begins if begins == ends else f"{begins} → {ends}"


def _lives(block: Block, alike: Sequence[Allocation], report: MemoryReport) -> str:
    def life(found: Allocation) -> str:
        begins = f"event {found.born + 1:,}" if found.born else "before the step"
        return f"{begins} to " + (f"event {found.died + 1:,}" if found.died is not None else "after the step")

    together = sum(found.block.bytes for found in alike)
    lines = [block_details(block), "", f"{len(alike)} alike, {together:,} bytes if all lived at once; they live from"]
    return "\n".join([*lines, *(f"  {life(found)}" for found in alike), f"of {report.events:,} events"])


def saved_page(report: MemoryReport, width: int) -> Page:
    """What each Transformer block saves for backward, its five largest contributors and their shares."""
    from cs336_tui.analysis.memory import saved_summary

    rows = saved_summary(report)
    if not rows:
        why = (
            f"Nothing is saved for backward: {report.spec.pass_} has no backward."
            if report.spec.pass_ in ("inference", "forward")
            else "This record does not say what is saved for backward."
        )
        return message(why, width)
    blocks = len(report.saved)
    total = sum(block.bytes for block in report.saved)
    unit = ByteUnit.for_largest(max(row.bytes for row in rows))
    held = f"{ByteUnit.for_largest(total).text(total)} in {blocks} Transformer block{'s' * (blocks != 1)}"
    heading = (line((f"Saved for backward: {held}", "strong"), (" · parameters left out", "muted")),)
    lines: list[Line] = []
    for row in rows:
        lines += [*_saved_rows(row, unit, width), ()]
    return Page(heading, tuple(lines[:-1]))


def _saved_rows(row: SavedRow, unit: ByteUnit, width: int) -> Iterable[Line]:
    columns = (
        Column("%"),
        Column(unit.name),
        Column("×", rank=4),
        Column("saved by", left=True),
        Column("part", left=True, rank=1),
        Column("tensor", left=True, rank=2),
    )
    texts = [
        (
            f"{found.share * 100:.1f}", unit.figure(found.tensor.bytes), str(found.tensor.count),
            format.plain(found.tensor.node), found.tensor.range or NONE, tensor(found.tensor.dtype, found.tensor.shape),
        )
        for found in row.contributors
    ]  # fmt: skip
    if row.rest_count:
        share = row.rest_bytes / row.bytes if row.bytes else 0.0
        texts.append((f"{share * 100:.1f}", unit.figure(row.rest_bytes), "", f"{row.rest_count} other kinds", "", ""))
    room = max(width // 6, 0)
    layout = lay_out(columns, texts, width - room - 2)
    yield line((f"{row.modules}: {unit.text(row.bytes)}", "title"))
    yield line(" " * (room + 2), (layout.heading, "muted"))
    for text in texts:
        yield line((f"{bar(float(text[0]) / 100, room)}  ", "memory"), layout.row(text))
