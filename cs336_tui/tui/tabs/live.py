"""The Live pane: the running cell, or the cell that was chosen last; and the Log tab: starts, output and failures of
cells, and notices, newest last."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cs336_tui.analysis.eta import Outlook, eta_words, outlook_of
from cs336_tui.analysis.measures import tokens_per_s
from cs336_tui.config.flops import algbw, busbw
from cs336_tui.config.values import phases_of
from cs336_tui.events.events import CellFinished, CellSkipped, CellStarted, ChildOutput, Event, Notice
from cs336_tui.events.peaks import WRONG_PEAK
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats import quantities
from cs336_tui.tui import format
from cs336_tui.tui.charts import bars
from cs336_tui.tui.charts.steps import step_chart
from cs336_tui.tui.format import title_rows
from cs336_tui.tui.judging import Assessment, Judging
from cs336_tui.tui.keys import key_name, tab_name
from cs336_tui.tui.requests import requests_of
from cs336_tui.tui.tabs import status
from cs336_tui.tui.tabs.status import interval_words, trust_lines
from cs336_tui.tui.widgets.lines import Line, Lines, Span, facts, labelled, line, spread, width_of, wrapped
from cs336_tui.tui.widgets.rows import Rows

LOG_ROWS = 5000
"""Most rows of the Log that are kept; the session log has all."""
_STEP_COLUMNS = 25
_PHASE_COLUMNS = 9
_FIRST_PLACES = 20
_TITLE_ROWS_FROM = 14
"""Height from which a long title may take two rows."""
_STRIP_ROWS = 2
"""Height of the pane above another one that has the screen."""
_CHART_ROWS = (9, 14)
"""Fewest and most rows of the chart, the last of which names its parts; the most are more in half of a higher pane."""
_KEY_COLUMNS = 9
_LEAST_STEPS = 4
"""Fewest rows of the table of steps, with the blank and the heading above it."""
_AIRY_FROM = 22
"""Height from which blank rows part what belongs together, where there is room."""
_RANKS_IN_ROWS = ((34, 8), (22, 4), (0, 2))
"""Most rows for the strips of ranks, by the least height of the pane; fewer where the bars of phases need them."""


class Around(NamedTuple):
    """The state of the run around a cell."""

    outlook: Callable[[], Outlook]
    """The time of all cells, if known, which a race decides as it goes on."""
    held: bool = False
    """True if the queue is paused."""
    left: str = ""
    """The cells that a stopped run left, in words."""
    race: str = ""
    """The race that the session has, in words."""


class LivePane(Lines):
    """Shows one cell: its progress, mean and std, steps and phases. A click opens everything known of it."""

    zoomed = False
    """True if the axis of the chart goes around the data, instead of from zero."""
    _cell: CellState | None = None

    def on_click(self) -> None:
        if self._cell is not None:
            requests_of(self).read_cell(self._cell)

    def show(
        self,
        state: SessionState,
        cell: CellState | None,
        judging: Judging | None,
        around: Around,
        invitation: Callable[[], tuple[str, Mapping[str, str]]],
    ) -> None:
        """Paint the cell, or if there is none the invitation: advice, and what keys do first."""
        self._cell = cell
        if cell is None:
            (advice, offers), width = invitation(), self.content_size.width
            keys = [row for offer in offers.items() for row in labelled(*offer, width, _KEY_COLUMNS)]
            said = [line(("Nothing has run yet.", "strong")), (), *wrapped(advice, width, "muted")]
            self.paint([(), *said, (), *keys])
            return
        found = judging.of(state, cell) if judging else None
        self.paint(live_lines(state, cell, *self.content_size, around, zoomed=self.zoomed, found=found))


def live_lines(
    state: SessionState,
    cell: CellState,
    width: int,
    height: int,
    around: Around | None = None,
    *,
    zoomed: bool = False,
    found: Assessment | None = None,
) -> list[Line]:
    """The pane's rows for a cell, at most `height`, all figures of them of one state; `found`: its verdicts. The chart,
    the phases and the ranks have their rows before the first step."""
    around = around or Around(partial(outlook_of, state))
    if cell.spec.recording:
        title = [line((row, "title")) for row in title_rows(cell.spec.title, width, 2)]
        told = wrapped(status.RECORDED_ELSEWHERE, width, "muted")
        return [*title, _where(state, cell, None, around), (), *told][:height]
    where, headline = _where(state, cell, found, around), _headline(state, cell, found, width)
    if height <= _STRIP_ROWS:
        return [spread(where, line((cell.spec.title, "title")), width), headline][:height]
    airy, race = height >= _AIRY_FROM, around.race
    lines = [
        *(line((row, "title")) for row in title_rows(cell.spec.title, width, 2 if height >= _TITLE_ROWS_FROM else 1)),
        *_lanes(state, cell, width),
        where,
        spread(line((race, "strong")), line((tab_name("race"), "muted")), width)
        if race
        else _progress(state, around, width),
        headline,
    ]
    if problem := status.how_it_ended(cell):
        errors = status.error_lines(cell, width, 6 if airy or not cell.steps_done else 2)
        lines += [_rates(state, cell, found, width), line((f"✗ {problem}", "bad")), *errors]
    else:
        lines += [
            *trust_lines(cell, found, width, 1 + (airy and cell.spec.ranks == 1)),
            _rates(state, cell, found, width),
        ]
    phases, ranks = _below(cell, width, height, height - len(lines) - _CHART_ROWS[0])
    rest = height - len(lines) - len(phases) - len(ranks)
    spare = rest - _CHART_ROWS[0]
    above_chart, above_phases, above_ranks = ([()] * (airy and spare > place) for place in range(3))
    rest -= sum(map(len, (above_chart, above_phases, above_ranks)))
    if cell.steps_done or not cell.is_over:
        fewest, most = _CHART_ROWS[0], max(_CHART_ROWS[1], height // 2)
        chart_height = min(max(rest // 2, fewest), most, rest)
        chart_height = min(rest, most) if rest - chart_height < _LEAST_STEPS else chart_height
        lines += [*above_chart, *_chart(cell, state.ddof, width, chart_height, zoomed=zoomed)]
    lines += [*above_phases, *phases, *above_ranks[: len(ranks)], *ranks]
    return lines[:height] + _steps(cell, state.ddof, width, height - len(lines))


def _below(cell: CellState, width: int, height: int, room: int) -> tuple[list[Line], list[Line]]:
    """The phases and the ranks in `room` rows: bars, else figures; strips over as many rows as there are for them."""
    means = {} if cell.spec.is_collective else phase_times(cell)  # its one phase is its step
    expected = () if cell.spec.is_collective or cell.is_over else phases_of(cell.spec.pass_, cell.spec.accumulate)
    drawn = bars.phase_bars(means, width=width)
    drawn = [*drawn, *[()] * (len(expected) - len(drawn))]
    several = [_ranks(cell, width, rows) for least, rows in _RANKS_IN_ROWS if height >= least and cell.spec.ranks > 1]
    figures = bars.phase_lines(means or dict.fromkeys(expected, 0.0), width=width)
    figures = figures if means else [()] * len(figures)
    choices = [(phases, ranks) for phases in (drawn, figures) for ranks in several or [[]]]
    fallback = (figures, several[-1][:1] if several else [])
    return next(((phases, ranks) for phases, ranks in choices if len(phases) + len(ranks) <= room), fallback)


def _chart(cell: CellState, ddof: int, width: int, height: int, *, zoomed: bool) -> list[Line]:
    spec, warm, timed, running = cell.spec, cell.warmup_times_s, cell.step_times_s, cell.running
    mean_s, std_s = (running.mean, running.std(ddof)) if running.n else (None, None)
    ended = cell.is_over or cell.stage == "finishing"
    warmed = ended or cell.stage == "measuring"
    places = _places(len(warm), spec.warmup_steps, is_open=spec.warmup_is_open, is_over=warmed)
    most = _places(len(timed), spec.measure_steps, is_open=spec.steps_are_open, is_over=ended)
    room = {"warmup_total": places, "measured_total": most, "width": width, "height": height}
    return step_chart(warm, timed, **room, mean_s=mean_s, std_s=std_s, zoomed=zoomed)


def _places(done: int, most: int, *, is_open: bool, is_over: bool) -> int:
    """The places for steps in the chart; while their number is open they double as steps come."""
    if is_over or not is_open:
        return done if is_open else most
    doublings = (max(done - 1, 0) // _FIRST_PLACES).bit_length()
    return min(_FIRST_PLACES << doublings, most)


def phase_times(cell: CellState) -> dict[str, float]:
    """The time of each phase, s, of what the headline gives: the mean of the measured steps, until there are any the
    latest warm-up step."""
    if measured := cell.phase_times_s:
        return {name: sum(times) / len(times) for name, times in measured.items() if times}
    return {name: times[-1] for name, times in cell.times.warmup_phases_s.items() if times}


def _ranks(cell: CellState, width: int, rows: int) -> list[Line]:
    """The slowest rank and the mean skew in a line, then the strips, over so many rows at most: of the means once the
    cell is over, until then of the last step."""
    measured, steps = cell.times.rank_s, cell.times.rank_s or cell.times.warmup_rank_s
    if not steps:
        return []
    what, times_s = "last step" if measured else "last warm-up step", tuple(times_s[-1] for times_s in steps)
    if measured and cell.is_over:
        what, times_s = "mean", tuple(sum(times_s) / len(times_s) for times_s in measured)
    head = line((f"ranks, {what} ms · slowest ", "muted"), (f"{bars.SLOWEST}{bars.slowest_of(times_s)}", "caution"))
    if measured:
        head += line((" · mean skew ", "muted"), format.ms(cell.skew.mean, cell.skew.std()))
    return [head, *bars.rank_strips(times_s, width=width, rows=rows)]


def _where(state: SessionState, cell: CellState, found: Assessment | None, around: Around) -> Line:
    here = f"cell {status.number(cell)}/{len(state.cells)} · "
    held = around.held
    if cell.status != "running":
        said = "the queue is paused" if held else around.left
        return (Span(here), status.status(cell, found), *([Span(f" · {said}", "caution")] if said else []))
    eta_s = None if held or around.race else around.outlook().ends.last_s
    these = "these" if state.side_by_side and len(state.running) > 1 else "this"
    rest = f" · paused after {these}" if held else f" · {eta_words(eta_s)}" if eta_s is not None else ""
    return line(here, (status.stage(cell, state.last_at), "strong"), (rest, "caution" if held else "text"))


def _lanes(state: SessionState, cell: CellState, width: int) -> list[Line]:
    """The lane, device and job of a cell that runs beside others, and how to look at another."""
    if not state.side_by_side:
        return []
    others = len(state.running) - (cell.cell in state.running)
    how = line((f"{key_name('app.follow_next')} shows {format.plural(others, 'other')}", "muted")) if others else ()
    return [spread(line((status.where(state, cell), "strong")), how, width)]


def _progress(state: SessionState, around: Around, width: int) -> Line:
    """The share of the session's time that has passed, and the steps of all cells that are done; the share of these
    once nothing runs or waits and no time decides how many there are."""
    specs = (cell.spec for cell in state.cells.values() if cell.status != "skipped")
    counted = all(spec.warmup_for is None and spec.steps_for is None for spec in specs)
    done, total = state.steps_done, state.steps_total
    told, of = f"{done}/{total} steps" if counted else format.plural(done, "step"), ""
    share: float | None = done / max(total, 1)
    if not counted or state.running or state.waiting:
        share, of = around.outlook().share, " of the time"
    return bars.share_bar(share or 0.0, told if share is None else f"{int(share * 100):3d} %{of} · {told}", width)


def _headline(state: SessionState, cell: CellState, found: Assessment | None, width: int) -> Line:
    if cell.running.n:
        mean = line((format.mean_std(cell.running.mean, cell.running.std(state.ddof), cell.running.n), "strong"))
        interval = interval_words(found)
        longer = (line(f"mean {each}") for each in (interval, interval.partition(" (")[0]) if each)
        return max((facts(mean, [each], width) for each in longer), key=width_of, default=mean)
    if cell.warmup_times_s:
        latest = cell.warmup_times_s[-1]
        return line((f"{format.ms(latest)} ms", "warmup"), (" latest warm-up step, not measured", "muted"))
    return line(("no step finished yet" if not cell.is_over else "no step was measured", "muted"))


def _rates(state: SessionState, cell: CellState, found: Assessment | None, width: int) -> Line:
    """Rates and peaks, the most important first: those that the row has room for."""
    parts = [f"{format.rate(per_s)} tokens/s"] if (per_s := tokens_per_s(cell.spec, cell.running.mean)) else []
    if cell.spec.is_collective and (step_s := cell.running.mean):
        shown = [quantities.bandwidth(rate(cell.spec, step_s)) for rate in (algbw, busbw)]
        parts.append(f"algbw {shown[0]}, busbw {shown[1]} GB/s")
    if found and found.limit:
        parts.append(f"{format.flops(found.limit.flops_per_s)}FLOP/s")
    if found and (share := found.share_of_peak(cell.running.mean)) is not None:
        peak = "a wrong peak" if share > WRONG_PEAK else "peak"
        parts.append(f"{format.percent(share)} of " + (peak if found.peak_is_measured else "spec"))
    if (prepared := cell.prepared) and prepared.compile_s is not None:
        parts.append(f"compiled in {prepared.compile_s:.1f} s")
    if prepared and prepared.capture_s is not None:
        parts.append(f"captured in {prepared.capture_s:.2f} s")
    if finished := cell.finished:
        if finished.before_backward_bytes is not None:
            parts.append(f"before backward {format.fine_size(finished.before_backward_bytes)}")
        if finished.peak_allocated_bytes is not None:
            parts.append(f"peak allocated {format.size(finished.peak_allocated_bytes)}")
        if finished.peak_rss_bytes is not None:
            parts.append(f"peak RSS {format.size(finished.peak_rss_bytes)}")
    else:
        alone = state.devices[-1][0] if state.devices and not state.side_by_side else None
        sample = state.samples.get(cell.cell, alone)
        if sample is not None and (rss := sample.host.child_rss_bytes) is not None:
            parts.append(f"RSS {format.size(rss)}{' a rank at most' * (cell.spec.ranks > 1)}")
    if cell.num_params is not None and not cell.spec.is_collective:
        parts.append(f"{quantities.count(cell.num_params)} parameters")
    first, *more = map(line, parts or [""])
    return facts(first, more, width)


def _steps(cell: CellState, ddof: int, width: int, height: int) -> list[Line]:
    """The last steps under a heading. A full table drops half of its rows at once: fewer rows are sent again."""
    rows = height - 2
    warm, count = len(cell.warmup_times_s), len(cell.warmup_times_s) + len(cell.step_times_s)
    if rows < 2 or not count:
        return []
    by_phase = {} if cell.spec.is_collective else cell.phase_times_s or cell.times.warmup_phases_s
    names = list(by_phase)[: max(width - _STEP_COLUMNS, 0) // _PHASE_COLUMNS]
    room, std = max(rows // 2, 1), cell.running.std(ddof)
    first = math.ceil(max(count - rows, 0) / room) * room
    heading = f"{'step':>5} {'kind':<9}{'ms':>10}" + "".join(
        f"{bars.SHORT_NAMES.get(name, name):>{_PHASE_COLUMNS}.{_PHASE_COLUMNS - 1}}" for name in names
    )
    lines: list[Line] = [(), line((heading, "muted"))]
    measured = ("measured", cell.step_times_s, cell.phase_times_s)
    warming = ("warm-up", cell.warmup_times_s, cell.times.warmup_phases_s)
    for index in range(first, count):
        at = index - warm if index >= warm else index
        kind, times, phases = measured if index >= warm else warming
        figures = f"{format.ms(times[at], std):>10}"
        for name in names:
            values = phases.get(name, ())
            figures += f"{format.ms(values[at], std) if at < len(values) else '':>{_PHASE_COLUMNS}}"
        lines.append(line((f"{at + 1:>5} ", "muted"), (f"{kind:<9}", kind.replace("-", "")), figures))
    return lines


class LogPane(Rows):
    """Each row starts with its cell's number. The newest row stays in sight until the user scrolls up."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(cursor=False, follow=True, id=id)

    def show(self, rows: Collection[Line], log: Path | None) -> None:
        """Paint a session's rows; `log`: its path, None if there is none."""
        text, path, room = "The session log is ", str(log or ""), self.content_size.width
        if len(text) + len(path) > room:
            path = f"…{path[len(text) + 1 - room :]}"
        where = [line((text + path, "muted"))] if log else []
        if rows:
            self.fill((*where, *rows))
        else:
            self.fill((), [(), line(("Nothing yet. What a cell prints, and notices, appear here.", "muted")), *where])


def log_rows(event: Event, state: SessionState) -> Sequence[Line]:
    """The rows of an event, which `state` includes, in the Log tab."""
    match event:
        case Notice():
            return _rows(Span("  ! ", "caution"), event.text)
        case ChildOutput():
            cell = state.cells.get(event.cell) if event.cell is not None else None
            return _rows(_label(cell), event.text)
        case CellStarted() if cell := state.cells.get(event.cell):
            return [line(_label(cell), (f"▶ {cell.spec.title}", "muted"))]
        case CellSkipped() if cell := state.cells.get(event.cell):
            return [line(_label(cell), (f"» skipped: {format.plain(event.reason)}", "muted"))]
        case CellFinished(status="failed" | "killed" | "oom") if cell := state.cells.get(event.cell):
            ended = status.how_it_ended(cell) or event.status  # nothing to say of a cell that waits again already
            return [line(_label(cell), (f"✗ {ended}", "bad")), *_rows(_label(cell), event.error or "")]
        case _:
            return []


def _label(cell: CellState | None) -> Span:
    return Span(f"{status.number(cell):>3} " if cell else "  · ", "muted")


def _rows(label: Span, text: str) -> list[Line]:
    return [(label, Span(format.plain(row))) for row in text.splitlines()]
