"""The figure of a race: a row a candidate with its ratio to the starting point and the ratio's interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from cs336_tui.analysis.tuning import Entry, EntryStatus, Race, race_of
from cs336_tui.config.tuning import COSTS
from cs336_tui.export.drawing import COLOURS, Absent, Drawing, legend_below, plain_ticks, wrapped
from cs336_tui.export.texts import untaken
from cs336_tui.export.tuning import BASELINE
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 40
"""Candidates that a page has room for; the title says how many there are."""
_ROW_WIDTH = 38
_IN = {"best": (COLOURS[2], "D"), "tied": (COLOURS[0], "o"), "in the race": (COLOURS[0], "o")}
"""Colour and marker of candidates that could be best."""
_NOT_IN: Mapping[EntryStatus, str] = {"cut": "o", "out": "s", "differs": "X", "over the limit": "^"}
"""The marker of a candidate that could not be best, or that the budget cut; all are grey."""
_GREY = "#767676"
_NEAR, _DECADE = 2.5, 10.0
"""Ranges of ratios, largest over smallest: below the first, ticks have equal steps; over the second they are few."""


def race_figures(states: Sequence[SessionState]) -> tuple[Drawing | Absent, ...]:
    """The figure of each session that has a race, each under a name of its own."""
    found: dict[str, Drawing | Absent] = {}
    for race in filter(None, map(race_of, states)):
        name = untaken("race", found)
        found[name] = race_figure(race)._replace(name=name)
    return tuple(found.values())


def race_figure(race: Race) -> Drawing | Absent:
    """Candidates best first, ratios on a logarithmic axis; those without a ratio are counted in the title."""
    known = [entry for entry in race.entries if entry.ratio is not None]
    if not known:
        return Absent("race", "no candidate was measured")
    shown = known[:MOST_ROWS]
    names = [wrapped(entry.label, _ROW_WIDTH) for entry in shown]
    height = sum(0.14 + 0.14 * (name.count("\n") + 1) for name in names)

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for place, entry in enumerate(shown):
            _row(axis, place, entry)
        axis.axvline(1.0, color="black", linewidth=0.8)
        axis.set_yticks(range(len(shown)), names)
        for tick, entry in zip(axis.get_yticklabels(), shown, strict=True):
            tick.set_color("black" if entry.status in _IN else _GREY)
        axis.set_ylim(len(shown) - 0.5, -0.5)
        axis.grid(visible=False, axis="y")
        axis.set_xscale("log")
        axis.minorticks_off()
        _ticks(axis, [ends for entry in shown for ends in _ends(entry)])
        axis.set_xlabel(f"{COSTS[race.tuning.goal]} over the starting point's (log axis; left of 1: better)")
        legend_below(figure)

    return Drawing("race", "\n".join(_title(race, len(known), shown)), (7.5, 1.8 + height), draw)


def _row(axis: Axes, place: int, entry: Entry) -> None:
    ratio, has_interval = entry.ratio or 1.0, entry.low is not None and entry.high is not None
    colour, marker = _IN.get(entry.status) or (_GREY, _NOT_IN.get(entry.status, "v"))
    axis.errorbar(
        ratio,
        place,
        xerr=[[ratio - min(_ends(entry))], [max(_ends(entry)) - ratio]] if has_interval else None,
        color=colour,
        marker=marker,
        markersize=5,
        capsize=3,
        linestyle="none",
        label=entry.status,
    )


def _ends(entry: Entry) -> tuple[float, ...]:
    """The ratio and, if it is known, its interval."""
    return tuple(each for each in (entry.low, entry.ratio, entry.high) if each is not None)


def _ticks(axis: Axes, ends: Sequence[float]) -> None:
    """Plain numbers, 1 among them, at equal steps where the ratios are near to each other."""
    from matplotlib.ticker import MaxNLocator

    low, high = min(*ends, 0.95), max(*ends, 1.05)
    plain_ticks(axis.xaxis, (1, 2, 5) if high / low > _DECADE else (1, 1.5, 2, 3, 5, 7))
    if high / low < _NEAR:
        axis.xaxis.set_major_locator(MaxNLocator(7, steps=(1, 2, 5, 10)))
    axis.set_xlim(low * 0.97, high * 1.03)


def _title(race: Race, known: int, shown: Sequence[Entry]) -> Iterator[str]:
    some = f": the best {len(shown)}" if len(shown) < known else ""
    yield f"Race of {counted(len(race.entries), 'candidate')}{some}"
    yield f"starting point: {race.start.spec.heading}"
    if race.rounds > 1:
        bare = any(entry.low is None for entry in shown if entry.number)
        unknown = "; another one without: unknown, or too noisy" if bare else ""
        yield f"bars: simultaneous 95 % intervals, of the starting point none, as it is the {BASELINE}{unknown}"
    if left := len(race.entries) - known:
        yield f"without a ratio: {counted(left, 'candidate')}"
