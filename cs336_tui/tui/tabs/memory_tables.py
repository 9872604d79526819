"""The tables of the Memory tab: peaks of every cell, what blocks save and how their backward changes memory, ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import WITHOUT_BACKWARD
from cs336_tui.events.prediction import UNKNOWN_USE, MemoryBlock, Prediction
from cs336_tui.events.reports import MemoryReport, OomReport, RankMemoryReport
from cs336_tui.export.subjects.memory import (
    allocation_columns,
    block_table,
    saved_table,
    spaced,
    tensor_text,
    unit_of_blocks,
)
from cs336_tui.export.subjects.memory_peaks import (
    CellPeaks,
    oom_table,
    peaks_table,
    rank_memory_table,
    unit_of,
    unit_of_peaks,
)
from cs336_tui.export.writing.tables import Column, Table
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import NONE, ByteUnit, counted
from cs336_tui.tui import format
from cs336_tui.tui.configure.preview import needs_of, run_alike
from cs336_tui.tui.format import CELL_KEYS, cell_columns, told_variants, unique_names
from cs336_tui.tui.keys import key_name
from cs336_tui.tui.tabs.status import how_it_ended
from cs336_tui.tui.widgets.columns import TableLines, on_screen, shown_table, table_lines
from cs336_tui.tui.widgets.lines import Line, Span, bar, line, paragraphs, wrapped
from cs336_tui.tui.widgets.rows import Page, message

if TYPE_CHECKING:
    from cs336_tui.analysis.memory import AlikeBlocks, Allocation, Timeline

COLUMNS = "memory.columns"
"""The binding that turns pages of columns: the keys of other tables move in the timeline here."""
_BACKWARD = "∂"
"""Marks the backward of a place in the code."""
_CLOSE = 0.03
"""A prediction within this share of the measured peak is good."""
_MOST = 1_000
"""Most allocations that are listed."""
_BLOCKS_EXPLAINED = (
    "expected: gradients come, saved tensors go · diff: change less expected, in bytes · live: before and after"
)
_BLOCK_RANKS = {"seen_gradient_bytes": 2, "peak_bytes": 3, "before_bytes": 4, "after_bytes": 4, "forward_bytes": 5}
_ALLOCATION_RANKS = {"category": 2, "phase": 3, "range": 1, "operation": 5, "frame": 0, "tensor": 4}
_HELD_RANKS = {"share": 2, "predicted_bytes": 1}
_SAVED_RANKS = {"range": 1, "tensor": 2, "times": 4, "node": 0}
_PEAK_RANKS = {
    "batch": 7, "pass": 2, "precision": 1, "device": 8, "forward_bytes": 3, "backward_bytes": 9, "optimizer_bytes": 10,
    "activations_bytes": 2, "allocator_bytes": 8, "predicted_forward_bytes": 6, "predicted_step_bytes": 1,
    "predicted_activations_bytes": 5, "predicted_over_recorded": 7, "timed_bytes": 4, "predicted_over_timed": 6,
}  # fmt: skip
_RANKS_OF_RANKS = {
    "parameters_bytes": 3,
    "gradients_bytes": 2,
    "optimizer_state_bytes": 1,
    "activations_bytes": 1,
    "communication_bytes": 2,
    "buffers_bytes": 7,
    "rest_bytes": 6,
    "live_bytes": 1,
    "predicted_live_bytes": 5,
    "peak_bytes": 1,
    "predicted_peak_bytes": 4,
}
_ALSO_NAMED = ("parallel", "optimizer")
"""Fields in which cells that are shown together may differ."""


def peaks_page(state: SessionState, spec: CellSpec | None, width: int, columns_page: int = 0) -> Page:
    """Recorded, timed and predicted peaks of all cells and reports; `spec`'s row is marked."""
    rows = _all_peaks(state)
    if not rows:
        records, runs = key_name("report.make"), key_name("app.run")
        return message(f"No peaks yet: {records} records a cell's memory, {runs} runs cells.", width)
    exported, key = peaks_table(rows), run_alike(spec) if spec else None
    variants = {field: unique_names(shown) for field, shown in told_variants(row.spec for row in rows).items()}
    recorded = all(row.spec.recording for row in rows)
    here = Column[CellPeaks]("here", " ", left=True, text=lambda row: ">" if run_alike(row.spec) == key else " ")
    cells = shown_table(rows, [here, *cell_columns(lambda row: row.spec, _PEAK_RANKS, variants, recorded=recorded)])
    peaks = on_screen(exported.without(*CELL_KEYS, "recording"), _PEAK_RANKS)
    peaks = peaks.without(*(column.key for column in peaks.columns if {*peaks.texts(column.key)} == {NONE}))
    table = msgspec.structs.replace(
        peaks,
        columns=(*cells.columns, *peaks.columns),
        rows=tuple(cell + sizes for cell, sizes in zip(cells.rows, peaks.rows, strict=True)),
    )
    drawn = table_lines(table, width, page=columns_page, binding=COLUMNS)
    details = {place: "\n".join(_peak_details(row, exported, place)) for place, row in enumerate(rows)}
    heading = (line((f"Peak memory, {unit_of_peaks(rows).name}", "strong")), *drawn.heading)
    return Page(heading, (*drawn.rows, (), *paragraphs(table.footnotes, width, "muted", "  ")), details, drawn.pages)


def _all_peaks(state: SessionState) -> list[CellPeaks]:
    """The peaks sorted as in the course's tables: by model, context, precision, pass."""
    reports = {run_alike(report.spec): report for report in state.contents(MemoryReport)}
    cells: dict[CellSpec, CellState] = {}
    specs: dict[CellSpec, CellSpec] = {key: report.spec for key, report in reports.items()}
    for cell in state.cells.values():
        specs.setdefault(run_alike(cell.spec), cell.spec)
        if cell.status in ("ok", "oom"):
            cells[run_alike(cell.spec)] = cell
    found = []
    for key, spec in specs.items():
        report, predicted = reports.get(key), state.predictions.get(needs_of(spec))
        if report:
            predicted = predicted or report.prediction
        found.append(CellPeaks(spec, report, predicted, cells.get(key)))

    def order(row: CellPeaks) -> tuple[int, str, int, int, str, str]:
        spec = row.spec
        model = spec.num_layers * spec.d_model * (spec.d_model + spec.d_ff)
        return model, spec.size, spec.context_length, spec.batch_size, spec.precision, spec.pass_

    return sorted((row for row in found if row.report or row.run or row.prediction), key=order)


def _peak_details(row: CellPeaks, table: Table, place: int) -> Iterator[str]:
    """Everything about the peaks of a cell."""
    yield f"{format.plain(row.spec.title)} · batch {row.spec.batch_size}"
    yield ""
    yield from _in_bytes(table, place)
    if row.run and (over := row.run.finished):
        allocated = format.size(over.peak_allocated_bytes, format.NOT_AVAILABLE)
        reserved = format.size(over.peak_reserved_bytes, format.NOT_AVAILABLE)
        yield f"while timed ({over.status}): allocated {allocated}, reserved {reserved}"
    if predicted := row.prediction:
        held = ", ".join(f"{spaced(name)} {format.size(size)}" for name, size in predicted.by_category.items())
        yield f"predicted peak, in {predicted.peak_phase}: {held}"


def _in_bytes(table: Table, place: int) -> Iterator[str]:
    """The amounts of a row to the byte."""
    for column in table.columns:
        if column.key.endswith("_bytes"):
            size = table.records[place][column.key]
            name, _, _ = column.header.partition(" (")
            yield f"{name}: {NONE if size is None else f'{size:,} bytes'}"


def blocks_page(report: MemoryReport, width: int, columns_page: int) -> Page:
    """The backward of each block: gradients and saved tensors, the change that follows and the recorded one."""
    if not report.blocks:
        return message(_nothing(report, "how blocks change memory in backward"), width)
    table = on_screen(block_table(report), _BLOCK_RANKS)
    drawn = table_lines(table, width, page=columns_page, binding=COLUMNS)
    told = line((f"Memory over the backward of each Transformer block, {unit_of_blocks(report).name}", "strong"))
    details = {
        place: "\n".join((str(record["module"]), "", *_in_bytes(table, place), "", *table.footnotes))
        for place, record in enumerate(table.records)
    }
    explained = wrapped(_BLOCKS_EXPLAINED, width, "muted")
    return Page((told, *explained, *drawn.heading), tuple(drawn.rows), details, drawn.pages)


def _nothing(report: MemoryReport, what: str) -> str:
    if report.spec.recording:
        return f"A recording does not say {what}: it does not tell blocks apart."
    if report.spec.pass_ in WITHOUT_BACKWARD:
        return f"Nothing is saved for backward: {report.spec.pass_} has no backward."
    return f"This record does not say {what}."


def saved_page(report: MemoryReport, width: int, columns_page: int) -> Page:
    """Memory that each Transformer block saves for backward: its five largest contributors, with bars of shares."""
    from cs336_tui.analysis.memory import saved_summary

    if not report.saved:
        return message(_nothing(report, "what is saved for backward"), width)
    blocks, total = len(report.saved), sum(block.bytes for block in report.saved)
    held = f"{ByteUnit.for_largest(total).text(total)} in {counted(blocks, 'Transformer block')}"
    saved = (line((f"Saved for backward: {held}", "strong"), (" · parameters left out", "muted")),)
    table, drawn = on_screen(saved_table(report).without("module"), _SAVED_RANKS), list[TableLines]()
    room = width // 6
    """Of a bar beside each row."""
    for row in saved_summary(report):
        shares = [share for _, share in row.contributors]
        if row.rest_count:
            shares.append(row.rest_bytes / row.bytes if row.bytes else 0.0)
        title = f"{row.modules}: {ByteUnit.for_largest(row.bytes).text(row.bytes)}"
        own = msgspec.structs.replace(table, rows=table.rows[: len(shares)])
        lines = table_lines(own, width - room - 2, page=columns_page, binding=COLUMNS)
        names = [(Span(" " * (room + 2)), *heading) for heading in lines.heading]
        bars = [Span(f"{bar(share, room)}  ", "memory") for share in shares]
        rows = [(share, *each) for share, each in zip(bars, lines.rows, strict=True)]
        drawn.append(lines._replace(heading=[line((title, "title")), *names], rows=rows))
        table = msgspec.structs.replace(table, rows=table.rows[len(shares) + 1 :])  # without their sum
    parts = [each for part in drawn for each in (*part.lines, ())]
    return Page(saved, tuple(parts[:-1]), pages=max((part.pages for part in drawn), key=len))


def ranks_page(reports: Sequence[RankMemoryReport], own: RankMemoryReport, width: int, columns_page: int) -> Page:
    """Memory of each rank, by a cell's `own` report and those of cells that differ from it in how their ranks share a
    step, with notes on what it means. The first line of the heading ends the title."""
    same = {field: getattr(own.spec, field) for field in _ALSO_NAMED}
    beside = [each for each in reports if msgspec.structs.replace(each.spec, **same) == own.spec] or [own]
    table = on_screen(rank_memory_table(beside).without("size"), _RANKS_OF_RANKS)
    notes = ("params: parameters, state: optimizer state, comm.: communication", *table.footnotes)
    drawn = table_lines(table, width, page=columns_page, binding=COLUMNS)
    heading = (line((f" of each rank, {unit_of(beside).name}", "muted")), *drawn.heading)
    return Page(heading, (*drawn.rows, (), *paragraphs(notes, width, "muted")), pages=drawn.pages)


def difference(predicted: int, measured: int) -> Span:
    """The error of a prediction as a share of the measured peak: ``(+0.7 %)``."""
    if not measured:
        return Span("")
    share = predicted / measured - 1
    percent = f"{share * 100:+.1f}"
    return Span(f"({percent.replace('-0.0', '+0.0')} %)", "good" if abs(share) <= _CLOSE else "caution")


def largest_page(timeline: Timeline, level_mb: int, width: int, columns_page: int) -> Page:
    """The allocations of at least `level_mb` MB; those that differ only in their moments are one row."""
    from cs336_tui.analysis.memory import alike

    report = timeline.report
    least = level_mb * 10**6
    allocations = timeline.allocations(least, _MOST)
    total = sum(map(least.__le__, report.bytes))

    def lives(found: Allocation) -> str:
        begins = found.phase or "before"
        ends = "after" if found.died is None else timeline.phase_at(found.died) or "after"
        return begins if begins == ends else f"{begins} → {ends}"

    rows = alike(allocations, lives)
    drawn = _allocations(rows, report.subject, width, columns_page)
    listed = f"the largest {len(allocations):,} of {total:,}" if total > len(allocations) else f"{total:,}"
    above = f"Allocations of at least {level_mb} MB" if level_mb else "All allocations"
    keys = key_name("memory.level", "memory.level_up")
    told = line((above, "strong"), (f"  {keys}", "key"), (f" · {listed}; {len(report.bytes):,} in all", "muted"))
    none = f"No allocation that large; {key_name('memory.level')} shows smaller ones."
    details = {place: _lives(row, report) for place, row in enumerate(rows)}
    return Page((told, *drawn.heading), tuple(drawn.rows) or (line((none, "muted")),), details, drawn.pages)


def _lives(row: AlikeBlocks, report: MemoryReport) -> str:
    lines = [f"{row.times} alike, {row.total_bytes:,} bytes if all were live at once; they are live from"]
    for found in row.allocations:
        begins = f"event {found.born + 1:,}" if found.born else f"before the {report.subject}"
        ends = f"event {found.died + 1:,}" if found.died is not None else f"after the {report.subject}"
        lines.append(f"  {begins} to {ends}")
    return "\n".join([block_details(row.block), "", *lines, f"of {report.events:,} events"])


def _before(block: MemoryBlock) -> str:
    return f"before the {'recording' if block.category == UNKNOWN_USE else 'step'}"


def _where(row: AlikeBlocks) -> str:
    """The place in the model's code, else the operation; its backward is marked."""
    site = row.block.site
    place = site.frame or site.op or (format.NOT_AVAILABLE if site.phase else _before(row.block))
    return f"{_BACKWARD} {place}" if site.backward else place


def _allocations(rows: Sequence[AlikeBlocks], subject: str, width: int, columns_page: int | None) -> TableLines:
    """A row for each, with its place last: it is of any length. Of those that have a life it is shown, not the phase
    alone."""
    have_lives = any(row.allocations for row in rows)
    columns = [
        column._replace(title=f"where ({_BACKWARD} in backward)", read=None, text=_where)
        if column.key == "frame" else column
        for column in allocation_columns(subject)
        if column.key != "times" or have_lives
    ]  # fmt: skip
    titles = {"phase": "lives"} if have_lives else {}
    exported = Table.of(rows, columns, record=lambda _: {})
    table = on_screen(exported, _ALLOCATION_RANKS, titles=titles, last="frame")
    return table_lines(table, width, page=columns_page, binding=COLUMNS)


def blocks_table(
    blocks: Sequence[MemoryBlock], subject: str, width: int, columns_page: int | None = None
) -> TableLines:
    """A row for each allocation."""
    from cs336_tui.analysis.memory import AlikeBlocks

    return _allocations([AlikeBlocks(block, block.site.phase) for block in blocks], subject, width, columns_page)


def block_details(block: MemoryBlock) -> str:
    site = block.site
    facts = {
        "size": f"{block.bytes:,} bytes ({ByteUnit.for_largest(block.bytes).text(block.bytes)})",
        "held for": spaced(block.category),
        "tensor": tensor_text(block) or "unknown, such as a workspace",
        "operation": site.op or format.NOT_AVAILABLE,
        "first frame": site.frame or "unknown",
        "part of the model": site.range or "none",
        "phase": site.phase or _before(block),
        "in backward": "yes; the frame is the forward operation's" if site.backward else "no",
    }
    return "\n".join(f"{name}: {value}" for name, value in facts.items())


def failure_lines(cell: CellState, prediction: Prediction | None, width: int) -> list[Line]:
    """The end of the cell, and its predicted peak."""
    lines = wrapped(how_it_ended(cell) or cell.status, width, "caution")
    if cell.finished and cell.finished.error:
        lines += wrapped(cell.finished.error, width)
    if prediction:
        lines += wrapped(_expected(prediction, None, ByteUnit.for_largest(prediction.peak_bytes)), width)
    return lines


def oom_page(report: OomReport, prediction: Prediction | None, width: int, columns_page: int) -> Page:
    """Live memory by category when memory ran out, beside the prediction, and the largest live allocations."""
    predicted = report.prediction or prediction
    unit = ByteUnit.for_largest(max(report.live_bytes, report.capacity_bytes or 0))
    why = (
        "Observed: a second run was out of memory, too." if report.observed
        else "Predicted, not observed: live memory up to the point where it no longer fits."
    )  # fmt: skip
    known = wrapped(f"{why} {report.note}", width, "muted")
    expected = wrapped(_expected(predicted, report.capacity_bytes, unit), width) if predicted else []
    when = {None: "", "building": " while the model was built"}.get(report.phase, f" in {report.phase}")
    asked = "more" if report.request_bytes is None else unit.text(report.request_bytes)
    has = f" of the device's {unit.text(report.capacity_bytes)}" if report.capacity_bytes else ""
    happened = f"Memory ran out{when}: {asked} was asked for with {unit.text(report.live_bytes)}{has} live."
    table = oom_table(msgspec.structs.replace(report, prediction=predicted))
    held = table.rows_at(place for place, record in enumerate(table.records) if record["kind"] == "category")
    drawn = table_lines(on_screen(held.without("where"), _HELD_RANKS), width, page=columns_page, binding=COLUMNS)
    rows = [*wrapped(happened, width, "strong"), *known, *expected, (), *drawn.lines]
    largest = blocks_table(report.largest, "step", width, columns_page)
    if largest.rows:
        how = "observed" if report.observed else "predicted"
        rows += [(), line((f"Largest live allocations · {how}", "title")), *largest.heading]
    details = {place: block_details(block) for place, block in enumerate(report.largest, len(rows))}
    return Page((), (*rows, *largest.rows), details, max(drawn.pages, largest.pages, key=len))


def _expected(predicted: Prediction, capacity_bytes: int | None, unit: ByteUnit) -> str:
    beyond = ""
    if capacity_bytes:
        over = predicted.peak_bytes - capacity_bytes
        beyond = f", {unit.text(abs(over))} {'more' if over > 0 else 'less'} than the device has"
    whole = f"The whole step is predicted to need {unit.text(predicted.peak_bytes)} in {predicted.peak_phase}{beyond}."
    if predicted.activation_peak_bytes is None:
        return whole
    return f"{whole} Activations alone: {unit.text(predicted.activation_peak_bytes)}."
