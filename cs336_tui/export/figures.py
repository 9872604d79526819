"""Figures of results and of races: each function gives a `Drawing`, or an `Absent` with the reason for which there is
nothing to draw. What colours tell apart, hatches or markers do too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Sized
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from cs336_tui.analysis.effects import efficiency
from cs336_tui.analysis.fields import FIELDS, values
from cs336_tui.analysis.grouping import TELLING, groups, label, settled, telling
from cs336_tui.analysis.measures import MEASURES, Runs
from cs336_tui.analysis.merge import Result, ddof_of, measured, pooled
from cs336_tui.analysis.pivot import Pivot
from cs336_tui.analysis.published import published
from cs336_tui.analysis.roofline import curves, published_curves
from cs336_tui.analysis.tuning import Entry, EntryStatus, Race, race_of
from cs336_tui.config.tuning import COSTS
from cs336_tui.config.values import Pass
from cs336_tui.export.pivot import default_caption, figure_text
from cs336_tui.export.subjects.data_parallel import wrapper_name
from cs336_tui.export.subjects.scaling import SCALING, beside, several_ranks, times_of_one_rank
from cs336_tui.export.subjects.tuning import BASELINE
from cs336_tui.export.writing.drawing import (
    COLOURS,
    LEGEND_WIDTH,
    MARKERS,
    MOST_LINES,
    Absent,
    Drawing,
    legend_below,
    legend_columns,
    ms,
    plain_ticks,
    titled,
    wrapped,
)
from cs336_tui.export.writing.footnotes import std_kind
from cs336_tui.export.writing.texts import untaken
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW_WIDTH = 38
"""Characters of the name of a row of bars, which must leave room for the bars."""

MOST_PANELS = 24
MOST_GROUPS = 16
"""More of each than these cannot be told apart; the title then says how many there are."""

_HATCHES = ("", "///", "...", "xxx", "\\\\\\")
_LOOK_OF_PASS: Mapping[Pass, int] = {
    "forward": 0, "forward+backward": 1, "train-step": 2, "backward": 3, "inference": 4, "forward+loss": 5,
}  # fmt: skip
"""A pass looks the same in every figure, whichever other passes there are."""
_TICKS_APART = 0.5
"""Least difference of logarithms of two labelled sizes."""
MOST_ROWS = 40
"""Candidates that a page has room for; the title says how many there are."""
_IN = {"best": (COLOURS[2], "D"), "tied": (COLOURS[0], "o"), "in the race": (COLOURS[0], "o")}
"""Colour and marker of candidates that could be best."""
_NOT_IN: Mapping[EntryStatus, str] = {
    "cut": "o",
    "out": "s",
    "differs": "X",
    "disqualified": "X",
    "over the limit": "^",
}
"""The marker of a candidate that could not be best, or that the budget cut; all are grey."""
_GREY = "#767676"
_NEAR, _DECADE = 2.5, 10.0
"""Ranges of ratios, largest over smallest: below the first, ticks have equal steps; over the second they are few."""


def drawings(results: Sequence[Result]) -> tuple[Drawing | Absent, ...]:
    """Every figure that these results may have."""
    messages = (by_message(results),) if any(result.spec.is_collective for result in results) else ()
    ranks = (by_ranks(results),) if any(several_ranks(results).values()) else ()
    return passes_by_size(results), by_context(results), by_precision(results), *messages, *ranks, step_times(results)


def step_times(results: Sequence[Result]) -> Drawing | Absent:
    """A panel a cell: every step's time in order, warm-up steps hollow on a shaded ground."""
    timed = [result for result in results if result.cell.steps_done]
    if not timed:
        return Absent("step-times", "no cell has a timed step")
    shown = timed[:MOST_PANELS]
    keys = telling(timed, among=(*TELLING, "repeat"))
    columns = min(3 if len(shown) <= 15 else 4, len(shown))
    rows = math.ceil(len(shown) / columns)

    def draw(figure: Figure) -> None:
        for result, axis in zip(shown, _panels(figure, len(shown), columns), strict=True):
            _steps_panel(axis, result)
            axis.set_title(wrapped(label(result, keys) or "one cell"))
        figure.supxlabel("step (hollow, shaded: warm-up; filled: measured)")
        figure.supylabel("time (ms)")

    some = f": the first {len(shown)} of {len(timed)} cells" if len(shown) < len(timed) else ""
    title = titled(f"Step times{some}", timed)
    return Drawing("step-times", title, _on_a_page(max(4.5, 3 * columns), 1 + 2 * rows), draw)


def heat_map(found: Pivot) -> Drawing | Absent:
    """A pivot as a map, the brighter the larger; a crossing without a value says why."""
    figures = [[found.figure(row, column) for column in found.column_keys] for row in found.row_keys]
    numbers = [[math.nan if each is None or each.value is None else each.value for each in row] for row in figures]
    known = [each for row in numbers for each in row if not math.isnan(each)]
    if not known:
        return Absent("heat-map", "no crossing has a value")

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        middle = (min(known) + max(known)) / 2
        axis.imshow(numbers, cmap="viridis", aspect="auto")
        for row, several in enumerate(figures):
            for column, each in enumerate(several):
                if each is None:
                    continue
                text = each.note if each.value is None else figure_text(found, each).partition(" ±")[0]
                colour = "black" if each.value is None or each.value > middle else "white"
                axis.text(column, row, text, ha="center", va="center", color=colour, fontsize=8)
        for along, keys, fields in (
            (axis.xaxis, found.column_keys, found.columns),
            (axis.yaxis, found.row_keys, found.rows),
        ):
            along.set_ticks(range(len(keys)), [" · ".join(key) for key in keys])
            along.set_label_text(", ".join(FIELDS[field].title for field in fields))
        axis.grid(visible=False)

    size = (2.5 + 1.1 * len(found.column_keys), 1.5 + 0.4 * len(found.row_keys))
    return Drawing("heat-map", default_caption(found), size, draw)


def _first(shown: Sized, every: Sized, what: str) -> str:
    """The number that a figure shows of all, for its title; empty if it shows all."""
    return f" (the first {len(shown)} of {len(every)}{what})" if len(shown) < len(every) else ""


def _lines_size(width: float, names: Sequence[str], columns: int = 1) -> tuple[float, float]:
    """Inches of a figure with the names of its lines below it."""
    return width, 4.5 + 0.2 * sum(name.count("\n") + 1 for name in names) / columns


def _line_look(index: int) -> Any:
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}


def _on_a_page(width: float, height: float) -> tuple[float, float]:
    """No higher than fits below a heading on a page of that width."""
    return width, min(height, 1.25 * width)


def _panels(figure: Figure, number: int, columns: int) -> list[Axes]:
    """So many axes, in rows of as many columns."""
    axes = list(figure.subplots(math.ceil(number / columns), columns, squeeze=False).flat)
    for axis in axes[number:]:
        axis.set_visible(False)
    return axes[:number]


def _steps_panel(axis: Axes, result: Result) -> None:
    from matplotlib.ticker import MaxNLocator

    warmup = [1e3 * time_s for time_s in result.cell.warmup_times_s]
    steps = [1e3 * time_s for time_s in result.cell.step_times_s]
    if warmup:
        axis.axvspan(0.5, len(warmup) + 0.5, color="#eeeeee", zorder=0)
    numbers = range(1, len(warmup) + len(steps) + 1)
    axis.plot(numbers, warmup + steps, color=COLOURS[0], linewidth=0.8)
    style: Any = {"linestyle": "none", "marker": "o", "markersize": 3.5, "markeredgecolor": COLOURS[0]}
    axis.plot(numbers[: len(warmup)], warmup, markerfacecolor="white", **style)
    axis.plot(numbers[len(warmup) :], steps, markerfacecolor=COLOURS[0], **style)
    # From 0, so that noise looks as small as it is, unless a cold step would flatten all others.
    typical, slowest = median(steps or warmup), max(warmup + steps)
    if 0 < 5 * typical < slowest:
        axis.set_yscale("log")
        axis.set_ylim(typical / 2, slowest * 1.5)
        axis.minorticks_off()
        plain_ticks(axis.yaxis)
    else:
        axis.set_ylim(0, slowest * 1.15 or 1.0)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def passes_by_size(results: Sequence[Result]) -> Drawing | Absent:
    """Bars of the mean step time of each pass by size, with the std as error bars; other choices are panels."""
    name, results = "passes-by-size", [result for result in results if not result.spec.is_collective]
    if not measured(results):
        return Absent(name, "no cell has measured steps")
    tried = settled([result for result in results if result.cell.is_over])
    keys = telling(tried, but=("size", "pass"))
    panels = groups(tried, keys)
    shown = list(panels.values())[:MOST_PANELS]
    passes = values(tried, "pass")
    most_sizes = max(len(values(members, "size")) for members in panels.values())
    columns = 1 if len(shown) == 1 else 2 if len(shown) <= 4 or most_sizes > 3 else 3
    rows = math.ceil(len(shown) / columns)
    ddof = ddof_of(results)

    def draw(figure: Figure) -> None:
        for members, axis in zip(shown, _panels(figure, len(shown), columns), strict=True):
            bars, sizes = groups(members, ("size", "pass")), values(members, "size")
            for index, pass_ in enumerate(passes):
                heights = [bars.get((size, pass_), []) for size in sizes]
                _bars(axis, heights, index, len(passes), ddof)
            axis.set_xticks(range(len(sizes)), sizes)
            axis.set_xlim(-0.5, len(sizes) - 0.5)
            axis.set_ylim(bottom=0)
            axis.grid(visible=False, axis="x")
            axis.set_title(wrapped(label(members[0], keys), 40))
            axis.set_ylabel("mean step time (ms)")
        legend_below(figure)

    some = _first(shown, panels, " settings")
    title = titled(f"Step time by size and pass{some}\nerror bars: {std_kind(ddof)}", tried, ("size", "pass"))
    width = max(4.5, 1.1 * most_sizes * max(1.0, len(passes) / 2))
    return Drawing(name, title, _on_a_page(width * columns, 1 + 3 * rows), draw)


def _bars(axis: Axes, members: Sequence[Sequence[Result]], index: int, of: int, ddof: int) -> None:
    """One bar a group, the `index`th of `of` beside each other; a word where there is no time."""
    width = 0.8 / of
    for place, group in enumerate(members):
        position = place - 0.4 + width * (index + 0.5)
        if found := pooled(group, ddof):
            name, look = FIELDS["pass"].show(group[0]), _look(_LOOK_OF_PASS[group[0].spec.pass_])
            axis.bar(position, ms(found.mean_s), width, yerr=ms(found.std_s), label=name, **look)
        elif group:
            word = group[0].ending
            axis.annotate(word, (position, 0), (0, 2), textcoords="offset points", rotation=90, ha="center", fontsize=7)


def by_context(results: Sequence[Result]) -> Drawing | Absent:
    """Mean step time, and peak memory where it is known, against context length; a line for each other choice."""
    name, timed = "context-length", measured(results)
    keys = telling(timed, but=("context",))
    every = {key: group for key, group in groups(timed, keys).items() if len(values(group, "context")) > 1}
    if not every:
        return Absent(name, "no choice was timed at two context lengths")
    lines = dict(list(every.items())[:MOST_LINES])
    memories = {key: found for key, group in lines.items() if (found := list(filter(_peak_gb, group)))}
    names = [wrapped(label(group[0], keys) or group[0].spec.size_label, LEGEND_WIDTH) for group in lines.values()]
    ddof = ddof_of(results)

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, 2 if memories else 1, squeeze=False)[0]
        for index, (key, group) in enumerate(lines.items()):
            by_length = groups(group, ("context",))
            means = [found for members in by_length.values() if (found := pooled(members, ddof))]
            lengths = [members[0].spec.context_length for members in by_length.values()]
            times, stds = ([ms(found[field]) for found in means] for field in ("mean_s", "std_s"))
            axes[0].errorbar(lengths, times, yerr=stds, capsize=2, label=names[index], **_line_look(index))
            if known := groups(memories.get(key, []), ("context",)):
                lengths = [members[0].spec.context_length for members in known.values()]
                peaks = [max(map(_peak_gb, members)) for members in known.values()]
                axes[1].plot(lengths, peaks, **_line_look(index))
        ticks = sorted({result.spec.context_length for group in lines.values() for result in group})
        for axis, what in zip(axes, ("mean step time (ms)", "peak memory (GB)"), strict=False):
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks(ticks, [str(tick) for tick in ticks])
            axis.minorticks_off()
            axis.set_xlabel("context length (tokens)")
            axis.set_ylabel(what)
            plain_ticks(axis.yaxis)
        legend_below(figure)

    firsts = [group[0] for group in memories.values()]
    peaks = [MEASURES["memory"].figure(Runs.of(first))[1] or "peak allocated" for first in firsts]
    kinds = "; ".join(dict.fromkeys(f"{r.spec.device}: {kind}" for r, kind in zip(firsts, peaks, strict=True)))
    what = f"Step time{' and memory' if memories else ''} against context length{_first(lines, every, ' lines')}"
    text = f"{what}\nerror bars: {std_kind(ddof)}{f'; {kinds}' if kinds else ''}"
    title = titled(text, [result for group in lines.values() for result in group], ("context",))
    return Drawing(name, title, _lines_size(10 if memories else 6, names, legend_columns(names)), draw)


def by_precision(results: Sequence[Result]) -> Drawing | Absent:
    """Bars of the mean step time in fp32 and in each other precision of the same cell, with the speed-up over fp32."""
    name, timed = "precision", measured(results)
    keys = telling(timed, but=("precision",))
    alike = [(group, values(group, "precision")) for group in groups(timed, keys).values()]
    pairs = [group for group, found in alike if len(found) > 1 and "fp32" in found]
    if not pairs:
        return Absent(name, "no cell was timed in fp32 and in another precision")
    shown = pairs[:MOST_GROUPS]
    precisions = values([result for group in shown for result in group], "precision")
    ddof = ddof_of(results)
    names = [wrapped(label(group[0], keys) or group[0].spec.size_label, _ROW_WIDTH) for group in shown]
    inches = max(0.28 * len(precisions), 0.17 * max(name.count("\n") + 2 for name in names))

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        width = 0.8 / len(precisions)
        for index, precision in enumerate(precisions):
            for place, group in enumerate(shown):
                by_name = groups(group, ("precision",))
                base, found = (pooled(by_name.get((each,), []), ddof) for each in ("fp32", precision))
                if found is None or not found.mean_s:
                    continue
                position = place - 0.4 + width * (index + 0.5)
                spread = ms(found.std_s)
                axis.barh(position, ms(found.mean_s), width, xerr=spread, label=precision, **_look(index))
                if precision != "fp32" and base and base.mean_s:
                    end, speedup = 1e3 * (found.mean_s + (found.std_s or 0.0)), f"{base.mean_s / found.mean_s:.2f}×"
                    axis.annotate(speedup, (end, position), (4, 0), textcoords="offset points", va="center", fontsize=8)
        axis.set_yticks(range(len(shown)), names)
        axis.invert_yaxis()
        axis.set_xlim(left=0)
        axis.grid(visible=False, axis="y")
        axis.set_xlabel("mean step time (ms); ×: speed-up over fp32")
        legend_below(figure)

    text = f"fp32 against other precisions{_first(shown, pairs, '')}\nerror bars: {std_kind(ddof)}"
    title = titled(text, [result for group in shown for result in group], ("precision",))
    return Drawing(name, title, (7.5, 2 + inches * len(shown)), draw)


def _peak_gb(result: Result) -> float:
    return (MEASURES["memory"].figure(Runs.of(result))[0] or 0) / 1e9


def _look(index: int) -> Any:
    colour, hatch = COLOURS[index % len(COLOURS)], _HATCHES[index % len(_HATCHES)]
    return {"color": colour, "hatch": hatch, "edgecolor": "white", "ecolor": "#333333", "capsize": 2}


def by_message(results: Sequence[Result]) -> Drawing | Absent:
    """Bus bandwidth of collectives against the size of their messages: a line for each other choice, and a dashed one
    for what others published of the same operation, backend and number of ranks."""
    every = [curve for curve in curves(results) if len(curve.points) > 1]
    if not every:
        return Absent("busbw", "no collective was timed at two sizes")
    lines = every[:MOST_LINES]
    alike = {(line.spec.collective, line.spec.backend_in_use, line.spec.ranks): line.spec for line in lines}
    others = [(spec, curve) for spec in alike.values() for curve in published_curves(spec, published())]
    others = others[: MOST_LINES - len(lines)]
    drawn = [*lines, *(curve for _, curve in others)]
    names = [wrapped(line.name, LEGEND_WIDTH) for line in lines]
    for spec, curve in others:
        ranks = f", {spec.ranks} ranks" if len(alike) > 1 else ""
        names.append(wrapped(f"published{ranks}: {curve.name}, {curve.source}", LEGEND_WIDTH))

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for index, line in enumerate(drawn):
            style: Any = _line_look(index) | {"linestyle": "solid", "markerfacecolor": None}
            if index >= len(lines):
                style |= {"linestyle": "dashed", "markerfacecolor": "white"}
            sizes, rates = [point.bytes for point in line.points], [point.busbw / 1e9 for point in line.points]
            axis.plot(sizes, rates, label=names[index], **style)
        axis.set_xscale("log")
        ticks: dict[str, int] = {}
        for point in (point for line in drawn for point in line.points):
            if all(abs(math.log(point.bytes / tick)) > _TICKS_APART for tick in ticks.values()):
                ticks[point.size] = point.bytes
        axis.set_xticks(list(ticks.values()), list(ticks))
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.set_xlabel("bytes of the whole array")
        axis.set_ylabel("busbw (GB/s)")
        legend_below(figure)

    some, operations = _first(lines, every, " lines"), {line.spec.collective for line in every}
    of = f" of {operations.pop()}" if len(operations) == 1 else ""
    title = titled(f"Bus bandwidth{of} against size{some}", [r for r in results if r.spec.is_collective], ("size",))
    return Drawing("busbw", title, _lines_size(6, names), draw)


def by_ranks(results: Sequence[Result]) -> Drawing | Absent:
    """Step time and efficiency over the number of ranks; a line for each wrapper and other choice, of weak and of
    strong scaling."""
    name, ones, of = "scaling", times_of_one_rank(results), several_ranks(results)
    timed = [result for several in of.values() for result in measured(several)]
    keys = telling(timed, but=("ranks",))
    lines = groups(timed, keys)
    if not any(len(values(group, "ranks")) + (beside(group[0]) in ones) > 1 for group in lines.values()):
        return Absent(name, "no cell was timed on two numbers of ranks")
    shown = list(lines.values())[:MOST_LINES]
    names = [wrapped(label(group[0], keys) or wrapper_name(group[0].spec), LEGEND_WIDTH) for group in shown]
    ddof = ddof_of(results)
    kinds = " and ".join(f"{SCALING[kind].lower()} (batch {kind})" for kind in of)

    def draw(figure: Figure) -> None:
        times, shares = figure.subplots(1, 2)
        for index, group in enumerate(shown):
            spec, one_s = group[0].spec, ones.get(beside(group[0]))
            runs = [(r[0].spec, pooled(r, ddof)) for r in groups(group, ("ranks",)).values()]
            points = [(each.ranks, found.mean_s, found.std_s or 0.0) for each, found in runs if found and found.mean_s]
            points = [*([(1, one_s, 0.0)] if one_s else []), *points]
            ranks, means_s, stds_s = zip(*points, strict=True)
            look = _line_look(index)
            times.errorbar(ranks, [*map(ms, means_s)], [*map(ms, stds_s)], label=names[index], capsize=2, **look)
            if one_s:
                of_ranks = [msgspec.structs.replace(spec, ranks=number) for number in ranks]
                found = [100 * efficiency(each, one_s, mean_s) for each, mean_s in zip(of_ranks, means_s, strict=True)]
                shares.plot(ranks, found, **look)
        for axis, what in ((times, "mean step time of the slowest rank (ms)"), (shares, "efficiency (%)")):
            axis.set_xticks(sorted({1, *(result.spec.ranks for result in timed)}))
            axis.set_ylim(bottom=0)
            axis.set_xlabel("ranks")
            axis.set_ylabel(what)
        shares.axhline(100, color="#999999", linewidth=0.8, zorder=0)
        legend_below(figure)

    some = _first(shown, lines, " lines")
    text = f"Step time and efficiency over ranks{some}\n{kinds}; error bars: {std_kind(ddof)}"
    return Drawing(name, titled(text, timed, ("ranks", "batch-is")), (9, 4.5 + 0.2 * len(names)), draw)


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
            ratio, ends = entry.ratio or 1.0, _race_ends(entry)
            has_interval = entry.low is not None and entry.high is not None
            bar = [[ratio - min(ends)], [max(ends) - ratio]] if has_interval else None
            colour, marker = _IN.get(entry.status) or (_GREY, _NOT_IN.get(entry.status, "v"))
            style: Any = {"color": colour, "marker": marker, "markersize": 5, "capsize": 3, "linestyle": "none"}
            axis.errorbar(ratio, place, xerr=bar, label=entry.status, **style)
        axis.axvline(1.0, color="black", linewidth=0.8)
        axis.set_yticks(range(len(shown)), names)
        for tick, entry in zip(axis.get_yticklabels(), shown, strict=True):
            tick.set_color("black" if entry.status in _IN else _GREY)
        axis.set_ylim(len(shown) - 0.5, -0.5)
        axis.grid(visible=False, axis="y")
        axis.set_xscale("log")
        axis.minorticks_off()
        _race_ticks(axis, [ends for entry in shown for ends in _race_ends(entry)])
        axis.set_xlabel(f"{COSTS[race.tuning.goal]} over the starting point's (log axis; left of 1: better)")
        legend_below(figure)

    return Drawing("race", "\n".join(_race_title(race, len(known), shown)), (7.5, 1.8 + height), draw)


def _race_ends(entry: Entry) -> tuple[float, ...]:
    """The ratio and, if it is known, its interval."""
    return tuple(each for each in (entry.low, entry.ratio, entry.high) if each is not None)


def _race_ticks(axis: Axes, ends: Sequence[float]) -> None:
    """Plain numbers, 1 among them, at equal steps where the ratios are near to each other."""
    from matplotlib.ticker import MaxNLocator

    low, high = min(*ends, 0.95), max(*ends, 1.05)
    plain_ticks(axis.xaxis, (1, 2, 5) if high / low > _DECADE else (1, 1.5, 2, 3, 5, 7))
    if high / low < _NEAR:
        axis.xaxis.set_major_locator(MaxNLocator(7, steps=(1, 2, 5, 10)))
    axis.set_xlim(low * 0.97, high * 1.03)


def _race_title(race: Race, known: int, shown: Sequence[Entry]) -> Iterator[str]:
    some = f": the best {len(shown)}" if len(shown) < known else ""
    yield f"Race of {counted(len(race.entries), 'candidate')}{some}"
    yield f"starting point: {race.start.spec.heading}"
    if race.rounds > 1:
        bare = any(entry.low is None for entry in shown if entry.number)
        unknown = "; another one without: unknown, or too noisy" if bare else ""
        yield f"bars: simultaneous 95 % intervals, of the starting point none, as it is the {BASELINE}{unknown}"
    if left := len(race.entries) - known:
        yield f"without a ratio: {counted(left, 'candidate')}"
