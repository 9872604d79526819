"""The roofline of a session's cells: which ceilings are drawn, and the cells' rates as a table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from cs336_tui.environment import Environment
from cs336_tui.export.peaks import Rate, bandwidth
from cs336_tui.export.roofline import NOT_MEASURED, roofline_table
from cs336_tui.export.tables import Table
from cs336_tui.findings.roofline import Ceiling, PeakLookup, RooflinePoint, points
from cs336_tui.peaks import peak_key
from cs336_tui.session.merge import merge, title_of
from cs336_tui.session.state import SessionState
from cs336_tui.tui import format
from cs336_tui.tui.drawing.roofline import Mark, Roof, roofline_chart
from cs336_tui.tui.pages.page import wrapped
from cs336_tui.tui.pages.sheet import Sheet, Tail
from cs336_tui.tui.panes import status
from cs336_tui.tui.sources import WantedPeak
from cs336_tui.tui.widgets.columns import Column
from cs336_tui.tui.widgets.lines import Line, Span, width_of

_SHORT = {
    "% of data sheet": "% sheet",
    "% of measured peak": "% peak",
    "intensity (FLOP/B)": "FLOP/B",
    "bandwidth (GB/s)": "GB/s",
}
_GAP = "   "
_RANKS = {"device": 9, "% sheet": 3, "FLOP/B": 4, "bound": 5, "GB/s": 7, "% of bandwidth": 6}
_LEAST_NAME = 24
"""Columns that a cell's name wants."""
_SECONDS_EACH = 10
"""About how long a peak takes to be measured, the start of its process included."""


class Roofline(NamedTuple):
    """The cells of a session that have a place under their ceilings; made on a thread."""

    points: tuple[RooflinePoint, ...] = ()
    table: Table | None = None
    sheet: Sheet = Sheet((), ())
    missing: tuple[WantedPeak, ...] = ()
    """Peaks that can be measured here and were not."""
    elsewhere: bool = False
    """Whether there are cells without a measured peak that ran on another machine or with another torch."""


def roofline_of(state: SessionState, peaks: PeakLookup, here: Environment | None) -> Roofline:
    """All that the tab shows of a session; `here` is the machine that this app runs on, None where it runs none."""
    found = points(merge([(title_of(state), state)]), cache(peaks))
    if not found:
        return Roofline()
    table = roofline_table(found)
    unmeasured = [point for point in found if point.measured is None and point.precision]
    wanted = [peak_wanted(point, here) for point in unmeasured]
    return Roofline(
        found, table, _sheet(found, table), tuple(dict.fromkeys(filter(None, wanted))), elsewhere=None in wanted
    )


def peak_wanted(point: RooflinePoint, here: Environment | None) -> WantedPeak | None:
    """The peak that a cell is held against; None where it cannot be measured here."""
    environment, device = point.result.environment, point.result.spec.device
    if here is None or environment is None or point.precision is None:
        return None
    real = point.result.cell.in_force
    threads = (real.threads if real else point.result.spec.threads) if device == "cpu" else None
    there, now = (peak_key(each, device, point.precision, threads) for each in (environment, here))
    return WantedPeak(device, point.precision, threads) if there == now else None


def _sheet(found: Sequence[RooflinePoint], table: Table) -> Sheet:
    """The table as the screen shows it: numbered as in Results, the cell last, as wide as there is room."""
    names = [_short(column.header) for column in table.columns]
    columns = [Column("#")] + [
        Column(name, column.align == "left", _RANKS.get(name, 0))
        for name, column in zip(names, table.columns, strict=True)
        if name != "cell"
    ]
    at = names.index("cell")
    numbers = [str(status.number(point.result.cell)) for point in found]
    texts = [["–" if text == NOT_MEASURED else text for text in row] for row in table.rows]
    rows = [(number, *row[:at], *row[at + 1 :]) for number, row in zip(numbers, texts, strict=True)]
    return Sheet(
        tuple(columns),
        tuple(rows),
        Tail("cell", tuple(row[at].replace("context ", "ctx ") for row in texts), least=_LEAST_NAME),
        notes=table.footnotes,
        keys=tuple(numbers),
    )


def _short(header: str) -> str:
    """``achieved (TFLOP/s)`` is ``TFLOP/s``."""
    return _SHORT.get(header, header.removeprefix("achieved (").removesuffix(")") if "achieved" in header else header)


def chosen_point(roofline: Roofline, cell: int | None) -> int:
    """The place of a cell's point; that of the last point where it has none."""
    cells = [point.result.cell.cell for point in roofline.points]
    return cells.index(cell) if cell in cells else len(cells) - 1


def chart_lines(roofline: Roofline, chosen: int, width: int, height: int) -> list[Line]:
    """The ceilings of the chosen cell and every cell of its machine; those of its precision stand out."""
    if not roofline.points:
        return []
    here = roofline.points[chosen]
    heading = _joined(
        [
            (Span(f"{format.plain(here.device_name)} · {here.precision or 'a setting without a name'}", "title"),),
            _legend("──", "measured", here.measured, "measured"),
            _legend("╌╌", "data sheet", here.sheet, "warmup"),
        ],
        width,
    )
    ceilings = [(here.sheet, "warmup", True), (here.measured, "measured", False)]
    roofs = [
        Roof(ceiling.attainable, ceiling.ridge, role, dashed)
        for ceiling, role, dashed in ceilings
        if ceiling is not None
    ]
    others = [point for point in roofline.points if point.machine == here.machine and point is not here]
    ordered = [*sorted(others, key=lambda point: point.precision == here.precision), here]
    rate = Rate.for_all([
        *(point.flops_per_s for point in ordered), *(ceiling.flops_per_s for ceiling, *_ in ceilings if ceiling),
    ])  # fmt: skip
    marks = [
        Mark(point.intensity, point.flops_per_s, status.number(point.result.cell), _role(point, here))
        for point in ordered
    ]
    unit = rate.name, rate.flops_per_s
    return [*heading, *roofline_chart(roofs, marks, width=width, height=height - len(heading), unit=unit)][:height]


def _role(point: RooflinePoint, here: RooflinePoint) -> str:
    if point is here:
        return "key"
    return "strong" if point.precision == here.precision else "muted"


def _legend(sign: str, name: str, ceiling: Ceiling | None, role: str) -> Line:
    if ceiling is None:
        return (Span(f"{name}: {'unknown' if name == 'data sheet' else 'no peak yet'}", "muted"),)
    rate = Rate.for_all([ceiling.flops_per_s])
    flops = f"{rate.show(ceiling.flops_per_s)} {rate.name}" if ceiling.flops_per_s else "FLOP/s unknown"
    return (Span(f"{sign} ", role), Span(f"{name} {flops}, {bandwidth(ceiling.bytes_per_s)} GB/s"))


def _joined(parts: Sequence[Line], width: int) -> list[Line]:
    """As many of them on a line as there is room for."""
    lines: list[Line] = []
    for part in parts:
        if lines and width_of(lines[-1]) + len(_GAP) + width_of(part) <= width:
            lines[-1] = (*lines[-1], Span(_GAP), *part)
        else:
            lines.append(part)
    return lines


def doubts(roofline: Roofline, width: int) -> list[Line]:
    """What speaks against the measured peak."""
    if not any((point.share_of_measured or 0) > 1 for point in roofline.points):
        return []
    text = "! above 100 %: the device was slower when its peak was measured; n measures it again when it is idle"
    return wrapped(text, width, "caution")


def invitation(roofline: Roofline, *, can_measure: bool, width: int) -> list[Line]:
    """What to do about peaks that were not measured; nothing where none is missing."""
    if roofline.missing and can_measure:
        names = ", ".join(f"{each.device} {each.precision}" for each in roofline.missing)
        seconds = _SECONDS_EACH * len(roofline.missing)
        return wrapped(f"Press n to measure this device's peak: {names} (about {seconds} s).", width, "strong")
    if roofline.missing or roofline.elsewhere:
        return wrapped("Peak not measured: run cs336-tui peak on the machine of these cells.", width, "muted")
    return []
