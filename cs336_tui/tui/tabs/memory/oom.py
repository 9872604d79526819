"""Why a cell did not fit, for a window of some width."""

from __future__ import annotations

from cs336_tui.events.reports import CATEGORIES, OomReport, Prediction
from cs336_tui.session.cell_state import CellState
from cs336_tui.tui import format
from cs336_tui.tui.charts.byte_unit import ByteUnit
from cs336_tui.tui.tabs.memory.blocks import block_details, blocks_table, category_name
from cs336_tui.tui.tabs.page import Page, wrapped
from cs336_tui.tui.tabs.status import how_it_ended
from cs336_tui.tui.widgets.columns import Column, lay_out
from cs336_tui.tui.widgets.lines import Line, line


def failure_lines(cell: CellState, prediction: Prediction | None, width: int) -> list[Line]:
    """How the cell itself ended, and what it was predicted to need."""
    lines = wrapped(how_it_ended(cell) or cell.status, width, "caution")
    if cell.finished and cell.finished.error:
        lines += wrapped(cell.finished.error, width)
    if prediction:
        lines += wrapped(_expected(prediction, None, ByteUnit.for_largest(prediction.peak_bytes)), width)
    return lines


def oom_page(report: OomReport, prediction: Prediction | None, width: int) -> Page:
    """What was live when memory ran out and what for, beside the prediction; then the largest live allocations."""
    predicted = report.prediction or prediction
    unit = ByteUnit.for_largest(max(report.live_bytes, report.capacity_bytes or 0))
    rows = [*wrapped(_what_happened(report, unit), width, "strong"), *wrapped(_how_known(report), width, "muted")]
    if predicted:
        rows += wrapped(_expected(predicted, report.capacity_bytes, unit), width)
    rows += [(), *_categories(report, predicted, unit, width)]
    table, blocks = blocks_table(report.largest, unit, width)
    details: dict[int, str] = {}
    if blocks:
        rows += [
            (),
            line((f"Largest live allocations · {'observed' if report.observed else 'predicted'}", "title")),
            table,
        ]
        details = {len(rows) + place: block_details(block) for place, block in enumerate(report.largest)}
        rows += blocks
    return Page((), tuple(rows), details)


def _what_happened(report: OomReport, unit: ByteUnit) -> str:
    where = {None: "", "building": " while the model was built"}.get(report.phase, f" in {report.phase}")
    asked = (
        f"{unit.text(report.request_bytes)} was asked for" if report.request_bytes is not None else "more was asked for"
    )
    has = f" of the device's {unit.text(report.capacity_bytes)}" if report.capacity_bytes else ""
    return f"Memory ran out{where}: {asked} with {unit.text(report.live_bytes)}{has} live."


def _how_known(report: OomReport) -> str:
    how = (
        "Observed: a second attempt ran out of memory too." if report.observed
        else "Predicted, not observed: what is live is worked out, up to where it no longer fits."
    )  # fmt: skip
    return f"{how} {report.note}".strip()


def _expected(predicted: Prediction, capacity_bytes: int | None, unit: ByteUnit) -> str:
    beyond = ""
    if capacity_bytes:
        over = predicted.peak_bytes - capacity_bytes
        beyond = f", {unit.text(abs(over))} {'more' if over > 0 else 'less'} than the device has"
    return f"The whole step is predicted to need {unit.text(predicted.peak_bytes)} in {predicted.peak_phase}{beyond}."


def _categories(report: OomReport, predicted: Prediction | None, unit: ByteUnit, width: int) -> list[Line]:
    columns = (
        Column("held for", left=True),
        Column(f"live, {unit.name}"),
        Column("share", rank=2),
        Column("predicted peak", rank=1),
    )
    texts = []
    for category in CATEGORIES:
        live = report.by_category.get(category, 0)
        share = format.percent(live / report.live_bytes) if report.live_bytes else format.NOT_AVAILABLE
        peak = unit.figure(predicted.by_category.get(category, 0)) if predicted else format.NOT_YET
        texts.append((category_name(category), unit.figure(live), share, peak))
    whole = unit.figure(predicted.peak_bytes) if predicted else format.NOT_YET
    texts.append(("all", unit.figure(report.live_bytes), "", whole))
    layout = lay_out(columns, texts, width)
    return [line((layout.heading, "muted")), *(line(layout.row(row)) for row in texts)]
