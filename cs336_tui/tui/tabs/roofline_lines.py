"""The points of the Roofline tab with their table, and the lines of its drawing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from cs336_tui.analysis.grouping import TELLING, label, shown, telling
from cs336_tui.analysis.merge import Result, merge, title_of
from cs336_tui.analysis.roofline import AGAIN, Ceiling, PeakLookup, RooflinePoint, doubt, points
from cs336_tui.events.environment import Environment
from cs336_tui.events.peaks import BUSY_CORES, WRONG_PEAK, DevicePeak, PeakKey, peak_key
from cs336_tui.export.peaks import NOISY
from cs336_tui.export.roofline import left_out, roofline_table
from cs336_tui.export.tables import Column, Table
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import NONE, NOT_MEASURED, Rate, bandwidth
from cs336_tui.tui import format
from cs336_tui.tui.charts.roofline import CellPoint, Roof, roofline_chart
from cs336_tui.tui.format import told_variants
from cs336_tui.tui.keys import key_name
from cs336_tui.tui.requests import WantedPeak
from cs336_tui.tui.tabs import status
from cs336_tui.tui.widgets.columns import Sheet, on_screen
from cs336_tui.tui.widgets.lines import Line, Span, joined, wrapped

_RANKS = {
    "device": 9,
    "share_of_sheet": 3,
    "share_of_measured": 2,
    "intensity": 4,
    "bound": 5,
    "min_bytes_per_s": 7,
    "min_share_of_bandwidth": 6,
}
_MOST_NAME = 48
"""Most columns that are kept free for a cell's name."""
_ALWAYS = ("size", "context", "pass", "precision")
"""Fields that name a cell if the cells differ in them."""
_SECONDS_EACH = 10
"""About the time to measure a peak, with the start of its process."""


class Roofline(NamedTuple):
    """The cells of a session that are points, and their peaks; made on a thread."""

    points: tuple[RooflinePoint, ...] = ()
    table: Table | None = None
    sheet: Sheet = Sheet(Table(columns=(), rows=()))
    missing: tuple[WantedPeak, ...] = ()
    """Peaks that are not measured and can be measured here."""
    elsewhere: bool = False
    """True if a cell without a measured peak ran on another machine or with another torch."""
    peaks: tuple[DevicePeak | None, ...] = ()
    """The measured peak of each point's device and precision."""
    left_out: tuple[str, ...] = ()
    """The reasons why measured cells are no points."""


def roofline_of(state: SessionState, peaks: PeakLookup, here: Environment | None) -> Roofline:
    """All that the tab shows of a session; `here`: this machine, None if the app runs no cells."""
    find = cache(peaks)
    results = merge([(title_of(state), state)])
    found = points(results, find)
    absent = left_out(results)
    if not found:
        return Roofline(left_out=absent)
    table = roofline_table(found, left_out=absent)
    measured = tuple(find(known[1]) if (known := _peak_of(point)) else None for point in found)
    wanted = [peak_wanted(point, here) for point in found if point.measured is None and point.precision]
    missing = tuple(dict.fromkeys(filter(None, wanted)))
    sheet = _sheet(found, table, measured)
    return Roofline(found, table, sheet, missing, elsewhere=None in wanted, peaks=measured, left_out=absent)


def peak_wanted(point: RooflinePoint, here: Environment | None) -> WantedPeak | None:
    """The peak of a cell's device and precision; None if it cannot be measured here."""
    if here is None or (known := _peak_of(point)) is None:
        return None
    wanted, there = known
    return wanted if peak_key(here, *wanted) == there else None


def _peak_of(point: RooflinePoint) -> tuple[WantedPeak, PeakKey] | None:
    result, precision = point.result, point.precision
    if result.environment is None or precision is None:
        return None
    threads = result.cell.in_force.threads if result.cell.in_force else result.spec.threads
    wanted = WantedPeak(result.spec.device, precision, threads if result.spec.device == "cpu" else None)
    return wanted, peak_key(result.environment, *wanted)


def _sheet(found: Sequence[RooflinePoint], table: Table, peaks: Sequence[DevicePeak | None]) -> Sheet:
    """The table as the screen shows it: numbered as in Results, the cell's name last."""
    measured = {"share_of_measured": lambda text: NONE if text == NOT_MEASURED else text}
    exported = on_screen(table.without("cell"), _RANKS, shows=measured)
    numbers = [str(status.number(point.result.cell)) for point in found]
    names, shared = _names([point.result for point in found])
    shown = Table(
        columns=(Column("#"), *exported.columns, Column("cell", left=True)),
        rows=tuple((number, *row, name) for number, row, name in zip(numbers, exported.rows, names, strict=True)),
        footnotes=(*([f"all cells: {shared}"] if shared else []), *_notes(table, peaks)),
    )
    return Sheet(shown, keys=tuple(numbers), rest=min(max(map(len, names)), _MOST_NAME))


def _names(results: Sequence[Result]) -> tuple[tuple[str, ...], str]:
    """A name for each cell by what it does not share, and the name of what all share."""
    more = telling(results, but=(*_ALWAYS, "device", "machine"), among=(*TELLING, "repeat"))
    keys = (*(key for key in _ALWAYS if len({shown(result, (key,)) for result in results}) > 1), *more)
    told = told_variants(result.spec for result in results)
    unusual = tuple(key for key, values in told.items() if len(values) == 1 and key not in keys)
    if not keys:
        return tuple(_name(result, (*_ALWAYS, *unusual)) for result in results), ""
    shared = (*(key for key in _ALWAYS if key not in keys), *unusual)
    return tuple(_name(result, keys) for result in results), _name(results[0], shared)


def _name(result: Result, keys: Sequence[str]) -> str:
    return label(result, keys).replace("context ", "ctx ")


def _notes(table: Table, peaks: Sequence[DevicePeak | None]) -> list[str]:
    """The table's footnotes without the advice above the drawing."""
    said = {doubt(peak): disturbed for peak in peaks if peak and (disturbed := _disturbed(peak))}
    notes = [note for note in table.footnotes if not note.startswith("above 100 % of the measured peak")]
    notes = [note.replace(f", {AGAIN}", "") for note in notes]
    for advised, plain in said.items():
        notes = [note.replace(advised, plain) for note in notes]
    return notes


def chart_lines(roofline: Roofline, chosen: int, width: int, height: int) -> list[Line]:
    """The ceilings of the chosen cell, and all cells of its machine; those of its precision in bold."""
    if not roofline.points:
        return []
    here = roofline.points[chosen]
    heading = joined(
        [
            (Span(f"{format.plain(here.device_name)} · {here.precision or 'a setting without a name'}", "title"),),
            _legend("──", "measured", here.measured, "measured", doubted=bool(_doubts_of(roofline.peaks[chosen]))),
            _legend("╌╌", "data sheet", here.sheet, "warmup"),
        ],
        width,
    )
    ceilings = [(here.sheet, "warmup", True), (here.measured, "measured", False)]
    roofs = [Roof(ceiling.attainable, ceiling.ridge, role, dashed) for ceiling, role, dashed in ceilings if ceiling]
    others = [point for point in roofline.points if point.machine == here.machine and point is not here]
    alike, unlike = ([p for p in others if (p.precision == here.precision) is same] for same in (True, False))
    rate = Rate.for_all(each.flops_per_s for each in (*others, here, here.sheet, here.measured) if each)
    marks = [
        CellPoint(point.intensity, point.flops_per_s, status.number(point.result.cell), role)
        for role, of in (("muted", unlike), ("strong", alike), ("key", [here]))
        for point in of
    ]
    unit = rate.name, rate.flops_per_s
    return [*heading, *roofline_chart(roofs, marks, width=width, height=height - len(heading), unit=unit)][:height]


def _legend(sign: str, name: str, ceiling: Ceiling | None, role: str, *, doubted: bool = False) -> Line:
    if ceiling is None:
        return (Span(f"{name}: {'unknown' if name == 'data sheet' else 'no peak yet'}", "muted"),)
    rate = Rate.for_all([ceiling.flops_per_s])
    mark = "~" if doubted else ""
    flops = f"{rate.show(ceiling.flops_per_s)}{mark} {rate.name}" if ceiling.flops_per_s else "FLOP/s unknown"
    return (Span(f"{sign} ", role), Span(f"{name} {flops}, {bandwidth(ceiling.bytes_per_s)} GB/s"))


def doubts(roofline: Roofline, chosen: int, *, can_measure: bool, width: int) -> list[Line]:
    """The doubts about the measured peak of the chosen cell, and what to do."""
    if not roofline.points:
        return []
    peak, here = roofline.peaks[chosen], roofline.points[chosen]
    said = _doubts_of(peak)
    sign = "! ~ measured peak in doubt: " if said else "! "
    alike = [each for each in roofline.points if (each.machine, each.precision) == (here.machine, here.precision)]
    most = max((point.share_of_measured or 0 for point in alike), default=0.0)
    if most > WRONG_PEAK:
        said.append(f"it is wrong: a cell achieved {most * 100:.3g} % of it")
    elif most > 1:
        said.append("above 100 %: the device was slower when its peak was measured")
    if not said:
        return []
    again = f"{key_name('roofline.measure')} measures it again" if can_measure else "measure it again on its machine"
    return wrapped(f"{sign}{'; '.join(said)}; {again} when the machine is idle", width, "caution")


def _doubts_of(peak: DevicePeak | None) -> list[str]:
    """The load beside a measurement, and the scatter of its timings if it is too large."""
    unsettled = f"the 95 % interval of its median is wider than ± {NOISY * 100:g} %"
    doubts = (_disturbed(peak), unsettled if peak.best.spread > NOISY else "") if peak else ()
    return [text for text in doubts if text]


def _disturbed(peak: DevicePeak) -> str:
    """The load beside a CPU's measurement; a GPU's other users are not observed."""
    busy = peak.busy_cores
    if peak.device != "cpu" or busy is None or busy < BUSY_CORES:
        return ""
    kept = f"{busy:.1f} core{'s' * (f'{busy:.1f}' != '1.0')}"
    return f"other processes kept {kept} busy meanwhile, so that it may be too low"


def invitation(roofline: Roofline, *, can_measure: bool, width: int) -> list[Line]:
    """Advice on peaks that are not measured."""
    if roofline.missing and can_measure:
        names = ", ".join(f"{each.device} {each.precision}" for each in roofline.missing)
        seconds = _SECONDS_EACH * len(roofline.missing)
        press = f"Press {key_name('roofline.measure')} to measure this device's peak"
        return wrapped(f"{press}: {names} (about {seconds} s).", width, "strong")
    if roofline.missing or roofline.elsewhere:
        return wrapped("Peak not measured: run cs336-tui peak on the machine of these cells.", width, "muted")
    return []
