"""The Roofline tab: a drawing and a table of the session's cells under the peaks of their device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import ClassVar, NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.events import Resize

from cs336_tui.analysis.grouping import ALWAYS, label, shown
from cs336_tui.analysis.merge import Result, merge, title_of
from cs336_tui.analysis.roofline import AGAIN, Ceiling, PeakLookup, RooflinePoint, doubt, points
from cs336_tui.events.environment import Environment
from cs336_tui.events.peaks import BUSY_CORES, WRONG_PEAK, DevicePeak, PeakKey, WantedPeak, peak_key
from cs336_tui.export.subjects.roofline import NOISY, left_out, naming_keys, roofline_table
from cs336_tui.export.writing.tables import Column, Table
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import NONE, NOT_MEASURED, Rate, bandwidth, percent
from cs336_tui.tui import format
from cs336_tui.tui.background import Works
from cs336_tui.tui.charts.roofline import CellPoint, Roof, roofline_chart, session_bandwidths
from cs336_tui.tui.format import told_variants
from cs336_tui.tui.keys import bind, key_name, tab_name
from cs336_tui.tui.requests import requests_of
from cs336_tui.tui.sources import PeakView
from cs336_tui.tui.tabs import status
from cs336_tui.tui.widgets.columns import Copied, Laid, Sheet, copied_table, on_screen
from cs336_tui.tui.widgets.lines import Line, Lines, Span, joined, line, paragraphs, wrapped
from cs336_tui.tui.widgets.rows import Rows, WideRows

_BESIDE = 100
"""Width from which the table is beside the drawing, not under it."""
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
_SECONDS_EACH = 10
"""About the time to measure a peak, with the start of its process."""


_OF_COLLECTIVES = "A collective computes nothing; its busbw over size is drawn here once two sizes are timed."
_OF_RECORDINGS = (
    "Recorded elsewhere: no step was timed, and the model's FLOPs are not known, so there is no point here."
)


class RooflinePane(Container, Works["Roofline"]):
    """Draws the machine and the precision of the cell under the table's cursor."""

    DEFAULT_CSS = """
    RooflinePane {
        layout: vertical;
        #roofline-chart { height: 3fr; width: 1fr; }
        #roofline-rows { height: 2fr; width: 1fr; }
        &.-beside { layout: horizontal; }
        &.-beside #roofline-chart { height: 1fr; width: 1fr; margin-right: 2; }
        &.-beside #roofline-rows { height: 1fr; width: 1fr; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [bind("make", "measure", "Measure the peak", "roofline.measure")]

    _view: PeakView | None = None
    _in_sight: CellState | None = None
    _laid: Laid | None = None

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._chart = Lines(id="roofline-chart")
        self._rows = WideRows(id="roofline-rows")

    def compose(self) -> ComposeResult:
        yield self._chart
        yield self._rows

    def on_resize(self, event: Resize) -> None:
        self.set_class(event.size.width >= _BESIDE, "-beside")

    def show(self, state: SessionState, in_sight: CellState | None, view: PeakView) -> None:
        """Paint; without focus the cursor is on the cell `in_sight`."""
        could = self._wanted
        self._view, self._in_sight = view, in_sight
        if self.is_outdated((state, status.settled_of(state), view.version, id(view.here))):
            make = partial(roofline_of, state, view.find, view.here)
            self.work_out(make, partial(self._take, state, is_first=self.worked_out is None))
        if not self._rows.has_focus:
            self._follow()
        self._paint(state)
        if self._wanted != could:
            self.refresh_bindings()

    def _follow(self) -> None:
        if self.worked_out is not None:
            cells = [point.result.cell.cell for point in self.worked_out.points]
            here = self._in_sight.cell if self._in_sight else None
            self._rows.cursor = cells.index(here) if here in cells else len(cells) - 1

    def _take(self, state: SessionState, *, is_first: bool) -> None:
        assert self.worked_out is not None
        self._laid = Laid(self.worked_out.sheet, 12)
        if is_first:
            self._follow()
        self._paint(state)
        self.refresh_bindings()

    def _paint(self, state: SessionState) -> None:
        chart, rows, roofline = self._chart, self._rows, self.worked_out
        width, height = chart.content_size
        if roofline is None or self._laid is None or not roofline.points:
            cells = [cell for cell in state.cells.values() if cell.spec.is_collective and roofline is not None]
            drawn: Sequence[Line] = ()
            if cells:  # which compute nothing: busbw over size
                here = next((cell for cell in cells if cell is self._in_sight), cells[-1])
                drawn = session_bandwidths(state, status.settled_of(state), here.spec, width, height)
            chart.paint(drawn or self._without(state, width))
            rows.pages = ()
            rows.fill(())
            return
        chosen = min(rows.cursor, len(roofline.points) - 1)
        said = self._said(roofline, chosen, width)
        chart.paint([*said, *chart_lines(roofline, chosen, width, height - len(said))])
        self._laid = laid = self._laid.at(max(rows.content_size.width, 12), rows.columns_page)
        rows.pages = laid.pages
        heading = [*laid.above, laid.heading]
        rows.draw_from(len(laid), lambda first, last: (heading, laid.lines(first, last)), heading_rows=len(heading))

    def _without(self, state: SessionState, width: int) -> list[Line]:
        """In place of a roofline: why there is none."""
        if self.worked_out is None:
            return [line(("making the roofline ...", "muted"))]
        if absent := self.worked_out.left_out:
            return paragraphs((f"! {text}" for text in absent), width, "caution")
        if any(cell.spec.is_collective for cell in state.cells.values()):
            return wrapped(_OF_COLLECTIVES, width, "muted")
        if state.is_recorded:
            return wrapped(_OF_RECORDINGS, width, "muted")
        how = "The running cell is the first; it is shown here when it ends."
        if state.running_cell is None:
            press = f"Choose cells in {tab_name('configure')} and press {key_name('app.run')}"
            how = f"{press}; each cell that succeeds is a point here."
        return [line(("No cell has been measured yet.", "strong")), (), *wrapped(how, width, "muted")]

    def _said(self, roofline: Roofline, chosen: int, width: int) -> list[Line]:
        """The measurement that runs, its problem, and what to do."""
        view = self._view
        if view is not None and view.progress:
            return wrapped(view.progress, width, "strong")
        said = wrapped(f"! {view.problem}", width, "caution") if view and view.problem else []
        said += doubts(roofline, chosen, can_measure=bool(self._wanted) and not roofline.missing, width=width)
        if roofline.missing and self._wanted:
            names = ", ".join(f"{each.device} {each.precision}" for each in roofline.missing)
            seconds = _SECONDS_EACH * len(roofline.missing)
            press = f"Press {key_name('roofline.measure')} to measure this device's peak"
            said += wrapped(f"{press}: {names} (about {seconds} s).", width, "strong")
        elif roofline.missing or roofline.elsewhere:
            said += wrapped("Peak not measured: run cs336-tui peak on the machine of these cells.", width, "muted")
        return said

    @property
    def _wanted(self) -> tuple[WantedPeak, ...]:
        """The peaks that the key measures: all that are missing, else that of the cell under the cursor again."""
        roofline, view = self.worked_out, self._view
        if roofline is None or view is None or view.here is None or view.progress or not roofline.points:
            return ()
        if roofline.missing:
            return roofline.missing
        again = roofline.measurable[min(self._rows.cursor, len(roofline.points) - 1)]
        return (again,) if again else ()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        return action != "measure" or bool(self._wanted)

    def action_measure(self) -> None:
        if wanted := self._wanted:
            requests_of(self).measure_peaks(wanted)

    def copied(self) -> Copied | None:
        """The whole table."""
        table = self.worked_out.table if self.worked_out else None
        return copied_table("The roofline", table) if table else None

    @on(Rows.Moved)
    @on(Rows.Chosen)
    def _tell(self, message: Rows.Moved | Rows.Chosen) -> None:
        message.stop()
        points = self.worked_out.points if self.worked_out else ()
        if message.index < len(points):
            cell = points[message.index].result.cell
            requests_of(self).choose_cell(cell)
            if isinstance(message, Rows.Chosen):
                requests_of(self).read_cell(cell)


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
    measurable: tuple[WantedPeak | None, ...] = ()
    """The same, to be measured; None if it cannot be measured here."""
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
    known = [_peak_of(point) for point in found]
    measured = tuple(find(peak[1]) if peak else None for peak in known)
    measurable = tuple(peak[0] if peak and here and peak_key(here, *peak[0]) == peak[1] else None for peak in known)
    wanted = [peak for point, peak in zip(found, measurable, strict=True) if point.measured is None and point.precision]
    missing = tuple(dict.fromkeys(filter(None, wanted)))
    return Roofline(found, table, _sheet(found, table, measured), missing, None in wanted, measured, measurable, absent)


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
    names, shared = _names(found)
    shown = Table(
        columns=(Column("#"), *exported.columns, Column("cell", left=True)),
        rows=tuple((number, *row, name) for number, row, name in zip(numbers, exported.rows, names, strict=True)),
        footnotes=(*([f"all cells: {shared}"] if shared else []), *_notes(table, peaks)),
    )
    return Sheet(shown, keys=tuple(numbers), rest=min(max(map(len, names)), _MOST_NAME))


def _names(found: Sequence[RooflinePoint]) -> tuple[tuple[str, ...], str]:
    """A name for each cell by what it does not share, and the name of what all share."""
    results = [point.result for point in found]
    alike = {key for key in ALWAYS if len({shown(result, (key,)) for result in results}) == 1}
    keys = tuple(key for key in naming_keys(found) if key not in alike)
    told = told_variants(result.spec for result in results)
    unusual = tuple(key for key, values in told.items() if len(values) == 1 and key not in keys)
    if not keys:
        return tuple(_name(result, (*ALWAYS, *unusual)) for result in results), ""
    shared = (*(key for key in ALWAYS if key in alike), *unusual)
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
    title = f"{format.plain(here.device_name)} · {here.precision or 'a setting without a name'}"
    solid = _legend("──", "measured", here.measured, "measured", doubted=bool(_doubts_of(roofline.peaks[chosen])))
    dashed = _legend("╌╌", "data sheet", here.sheet, "warmup")
    heading = joined([line((title, "title")), solid, dashed], width)
    ceilings = [(here.sheet, "warmup", True), (here.measured, "measured", False)]
    roofs = [Roof(ceiling.attainable, ceiling.ridge, role, dashes) for ceiling, role, dashes in ceilings if ceiling]
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
        said.append(f"it is wrong: a cell achieved {percent(most)} % of it")
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
