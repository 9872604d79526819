"""The tables of the Memory tab: peaks of every cell, what blocks save and how their backward changes memory, ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from cs336_tui.config.order import is_as_predicted
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import WITHOUT_BACKWARD
from cs336_tui.config.variants import short
from cs336_tui.events.prediction import CATEGORIES, UNKNOWN_USE, MemoryBlock, Prediction
from cs336_tui.events.reports import MemoryReport, OomReport, RankMemoryReport
from cs336_tui.export.subjects.memory import block_table, saved_table, spaced, tensor_text, unit_of_blocks
from cs336_tui.export.subjects.memory_peaks import rank_memory_table, unit_of
from cs336_tui.export.writing.tables import Column
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import NONE, ByteUnit, counted
from cs336_tui.tui import format
from cs336_tui.tui.configure.preview import needs_of, run_alike
from cs336_tui.tui.format import cell_columns, told_variants
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
_SAVED_RANKS = {"range": 1, "tensor": 2, "times": 4, "node": 0}
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
_EXPLAINED = (
    "by phase and step: recorded · pred.: predicted · timed: of the timed cell · diff: pred. step to timed or step · "
    "activ.: most activations and temporary memory at once, apart from all else"
)


class SpecPeaks(NamedTuple):
    """The peaks of one spec, bytes."""

    spec: CellSpec
    recorded: Mapping[str, int | None]
    """By phase, as of `phase_peaks`; empty without a record."""
    cell: CellState | None
    """The latest cell that was timed or ran out of memory."""
    predicted: Prediction | None

    @property
    def timed_bytes(self) -> int | None:
        """The peak that the allocator counted while the cell was timed."""
        over = self.cell.finished if self.cell else None
        return over.peak_allocated_bytes if over and over.status == "ok" else None

    @property
    def largest_bytes(self) -> int:
        predicted = self.predicted.peak_bytes if self.predicted else 0
        return max(self.recorded.get("step") or 0, self.timed_bytes or 0, predicted)


def peaks_page(state: SessionState, spec: CellSpec | None, width: int, columns_page: int = 0) -> Page:
    """Recorded, timed and predicted peaks of all cells and reports; `spec`'s row is marked."""
    rows = _all_peaks(state)
    if not rows:
        records, runs = key_name("report.make"), key_name("app.run")
        return message(f"No peaks yet: {records} records a cell's memory, {runs} runs cells.", width)
    unit = ByteUnit.for_largest(max(row.largest_bytes for row in rows))
    key = run_alike(spec) if spec else None
    variants = {name: {value: short(value) for value in values} for name, values in
                told_variants(row.spec for row in rows).items()}  # fmt: skip
    ranks = {"batch": 7, "pass": 2, "precision": 1, "device": 8}
    recorded = all(row.spec.recording for row in rows)
    here = Column[SpecPeaks]("here", " ", left=True, text=lambda row: ">" if run_alike(row.spec) == key else " ")
    columns = [here, *cell_columns(lambda row: row.spec, ranks, variants, recorded=recorded), *_peak_columns(unit)]
    drawn = table_lines(shown_table(rows, columns), width, page=columns_page, binding=COLUMNS)
    details = {place: _peak_details(row) for place, row in enumerate(rows)}
    explained = wrapped(f"Peak memory, {unit.name} · {_EXPLAINED}", width, "muted")
    return Page((*explained, *drawn.heading), tuple(drawn.rows), details, drawn.pages)


def _peak_columns(unit: ByteUnit) -> tuple[Column[SpecPeaks], ...]:
    def recorded(key: str, rank: int = 0, title: str | None = None) -> Column[SpecPeaks]:
        return Column(key, title, rank=rank, text=lambda row: figure(row.recorded.get(key)))

    def predicted(key: str, rank: int, title: str) -> Column[SpecPeaks]:
        return Column(key, title, rank=rank, text=lambda row: figure(getattr(row.predicted, key, None)))

    def figure(size_bytes: int | None, unknown: str = NONE) -> str:
        return unknown if size_bytes is None else unit.figure(size_bytes)

    def timed(row: SpecPeaks) -> str:
        if row.cell is None or row.cell.status == "oom":
            return "OOM" if row.cell else NONE
        return figure(row.timed_bytes, format.NOT_AVAILABLE)

    return (
        recorded("forward", 3),
        predicted("forward_peak_bytes", 6, "pred. forward"),
        recorded("backward", 9),
        recorded("optimizer", 10),
        recorded("step"),
        predicted("peak_bytes", 1, "pred. step"),
        Column("timed", rank=4, text=timed),
        Column("diff", rank=6, text=_difference),
        recorded("activations", 2, "activ."),
        predicted("activation_peak_bytes", 5, "pred. activ."),
    )


def _all_peaks(state: SessionState) -> list[SpecPeaks]:
    """The peaks sorted as in the course's tables: by model, context, precision, pass."""
    from cs336_tui.analysis.memory import phase_peaks

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
        found.append(SpecPeaks(spec, phase_peaks(report) if report else {}, cells.get(key), predicted))

    def order(row: SpecPeaks) -> tuple[int, str, int, int, str, str]:
        spec = row.spec
        model = spec.num_layers * spec.d_model * (spec.d_model + spec.d_ff)
        return model, spec.size, spec.context_length, spec.batch_size, spec.precision, spec.pass_

    return sorted((row for row in found if row.recorded or row.cell or row.predicted), key=order)


def _difference(row: SpecPeaks) -> str:
    """Predicted to measured peak; a prediction is of the model as it is written, neither compiled nor captured."""
    recorded, predicted = row.recorded, row.predicted
    measured = row.timed_bytes or recorded.get("allocator") or recorded.get("step") or 0
    if not (predicted and measured and is_as_predicted(row.spec)):
        return NONE
    return difference(predicted.peak_bytes, measured).text.strip("()")


def _peak_details(row: SpecPeaks) -> str:
    size = format.size
    lines = [format.plain(row.spec.title), f"batch: {row.spec.batch_size}"]
    if recorded := row.recorded:
        lines += [
            f"recorded: forward {size(recorded['forward'])}, backward {size(recorded['backward'])}, "
            f"optimizer {size(recorded['optimizer'])}, whole step {size(recorded['step'])}, "
            f"activations alone {size(recorded['activations'])}",
            f"allocator's own peak over the recorded step: {size(recorded['allocator'])}",
        ]
    if row.cell and row.cell.finished:
        over = row.cell.finished
        lines.append(
            f"while timed ({over.status}): allocated {size(over.peak_allocated_bytes, format.NOT_AVAILABLE)}, "
            f"reserved {size(over.peak_reserved_bytes, format.NOT_AVAILABLE)}"
        )
    if predicted := row.predicted:
        lines += [
            f"predicted: forward {size(predicted.forward_peak_bytes)}, whole step {size(predicted.peak_bytes)} "
            f"(in {predicted.peak_phase}), activations alone {size(predicted.activation_peak_bytes)}",
            "predicted peak: " + ", ".join(f"{spaced(c)} {size(b)}" for c, b in predicted.by_category.items()),
        ]
    return "\n".join(lines)


def blocks_page(report: MemoryReport, width: int, columns_page: int) -> Page:
    """The backward of each block: gradients and saved tensors, the change that follows and the recorded one."""
    if not report.blocks:
        return message(_nothing(report, "how blocks change memory in backward"), width)
    table = on_screen(block_table(report), _BLOCK_RANKS)
    drawn = table_lines(table, width, page=columns_page, binding=COLUMNS)
    told = line((f"Memory over the backward of each Transformer block, {unit_of_blocks(report).name}", "strong"))
    details: dict[int, str] = {}
    """The amounts of each row to the byte, and what they mean."""
    for place, record in enumerate(table.records):
        sizes = {column.header: record[column.key] for column in table.columns[1:]}
        lines = (f"{title}: {NONE if size is None else f'{size:,} bytes'}" for title, size in sizes.items())
        details[place] = "\n".join((str(record["module"]), "", *lines, "", *table.footnotes))
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
    from cs336_tui.analysis.memory import AlikeBlocks, alike

    report = timeline.report
    least = level_mb * 10**6
    allocations = timeline.allocations(least, _MOST)
    total = sum(map(least.__le__, report.bytes))

    def lives(found: Allocation) -> str:
        begins = found.phase or "before"
        ends = "after" if found.died is None else timeline.phase_at(found.died) or "after"
        return begins if begins == ends else f"{begins} → {ends}"

    rows = alike(allocations, lives)
    unit = ByteUnit.for_largest(max(report.bytes, default=0))
    size, *others = _block_columns(unit, Column("when", "lives", left=True, rank=3), tensor_rank=4)
    times = Column[AlikeBlocks]("times", "×")
    drawn = table_lines(shown_table(rows, (size, times, *others)), width, page=columns_page, binding=COLUMNS)
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


def where(block: MemoryBlock) -> str:
    """The place in the model's code, else the operation; its backward is marked."""
    site = block.site
    place = format.plain(site.frame or site.op) or (format.NOT_AVAILABLE if site.phase else _before(block))
    return f"{_BACKWARD} {place}" if site.backward else place


def _before(block: MemoryBlock) -> str:
    return f"before the {'recording' if block.category == UNKNOWN_USE else 'step'}"


def _block_columns(unit: ByteUnit, when: Column[AlikeBlocks], *, tensor_rank: int) -> list[Column[AlikeBlocks]]:
    """The columns of an allocation; `when`: the column that tells when it lives."""

    def text(key: str, title: str | None, rank: int, show: Callable[[MemoryBlock], str]) -> Column[AlikeBlocks]:
        return Column(key, title, left=True, rank=rank, text=lambda row: show(row.block))

    return [
        Column("bytes", unit.name, text=lambda row: unit.figure(row.block.bytes)),
        text("category", "held for", 2, lambda block: spaced(block.category)),
        text("range", "part", 1, lambda block: block.site.range or NONE),
        text("tensor", None, tensor_rank, lambda block: tensor_text(block) or NONE),
        when,
        text("operation", None, 5, lambda block: format.plain(block.site.op) or NONE),
        text("where", f"where ({_BACKWARD} in backward)", 0, where),
    ]


def blocks_table(
    blocks: Sequence[MemoryBlock], unit: ByteUnit, width: int, columns_page: int | None = None
) -> TableLines:
    """A row for each allocation."""
    from cs336_tui.analysis.memory import AlikeBlocks

    columns = _block_columns(unit, Column("when", "phase", left=True, rank=4), tensor_rank=3)
    rows = [AlikeBlocks(block, block.site.phase or NONE) for block in blocks]
    return table_lines(shown_table(rows, columns), width, page=columns_page, binding=COLUMNS)


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
    held = _categories(report, predicted, unit, width, columns_page)
    rows = [*wrapped(happened, width, "strong"), *known, *expected, (), *held.lines]
    largest = blocks_table(report.largest, unit, width, columns_page)
    if largest.rows:
        how = "observed" if report.observed else "predicted"
        rows += [(), line((f"Largest live allocations · {how}", "title")), *largest.heading]
    details = {place: block_details(block) for place, block in enumerate(report.largest, len(rows))}
    return Page((), (*rows, *largest.rows), details, max(held.pages, largest.pages, key=len))


def _expected(predicted: Prediction, capacity_bytes: int | None, unit: ByteUnit) -> str:
    beyond = ""
    if capacity_bytes:
        over = predicted.peak_bytes - capacity_bytes
        beyond = f", {unit.text(abs(over))} {'more' if over > 0 else 'less'} than the device has"
    whole = f"The whole step is predicted to need {unit.text(predicted.peak_bytes)} in {predicted.peak_phase}{beyond}."
    if predicted.activation_peak_bytes is None:
        return whole
    return f"{whole} Activations alone: {unit.text(predicted.activation_peak_bytes)}."


def _categories(
    report: OomReport, predicted: Prediction | None, unit: ByteUnit, width: int, columns_page: int
) -> TableLines:
    whole, live = report.live_bytes, report.by_category | {"all": report.live_bytes}
    peaks = predicted.by_category | {"all": predicted.peak_bytes} if predicted else {}

    def share(name: str) -> str:
        return "" if name == "all" else format.percent(live.get(name, 0) / whole if whole else None)

    columns = (
        Column[str]("held for", left=True, text=spaced),
        Column[str](f"live, {unit.name}", text=lambda name: unit.figure(live.get(name, 0))),
        Column[str]("share", rank=2, text=share),
        Column[str]("predicted peak", rank=1,
                    text=lambda name: unit.figure(peaks.get(name, 0)) if predicted else format.NOT_YET),
    )  # fmt: skip
    return table_lines(shown_table((*CATEGORIES, "all"), columns), width, page=columns_page, binding=COLUMNS)
