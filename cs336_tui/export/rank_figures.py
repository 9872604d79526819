"""Figures of several ranks: bandwidth of collectives by size, step time and efficiency by number of ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from cs336_tui.analysis.collectives import curves, published_curves
from cs336_tui.analysis.communication import efficiency
from cs336_tui.analysis.fields import values
from cs336_tui.analysis.grouping import groups, label, telling
from cs336_tui.analysis.merge import Result, ddof_of, measured, pooled
from cs336_tui.analysis.published import published
from cs336_tui.export.data_parallel import wrapper_name
from cs336_tui.export.drawing import (
    COLOURS,
    LEGEND_WIDTH,
    MARKERS,
    MOST_LINES,
    Absent,
    Drawing,
    legend_below,
    ms,
    titled,
    wrapped,
)
from cs336_tui.export.footnotes import std_kind
from cs336_tui.export.rank_scaling import SCALING, beside, several_ranks, times_of_one_rank

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_APART = 0.5
"""Least difference of logarithms of two labelled sizes."""


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
            axis.plot(
                [point.bytes for point in line.points],
                [point.busbw / 1e9 for point in line.points],
                color=COLOURS[index % len(COLOURS)],
                marker=MARKERS[index % len(MARKERS)],
                label=names[index],
                linestyle="solid" if index < len(lines) else "dashed",
                markerfacecolor=None if index < len(lines) else "white",
            )
        axis.set_xscale("log")
        ticks: dict[str, int] = {}
        for point in (point for line in drawn for point in line.points):
            if all(abs(math.log(point.bytes / tick)) > _APART for tick in ticks.values()):
                ticks[point.size] = point.bytes
        axis.set_xticks(list(ticks.values()), list(ticks))
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.set_xlabel("bytes of the whole array")
        axis.set_ylabel("busbw (GB/s)")
        legend_below(figure)

    some = f" (the first {len(lines)} of {len(every)} lines)" if len(lines) < len(every) else ""
    operations = {line.spec.collective for line in every}
    of = f" of {operations.pop()}" if len(operations) == 1 else ""
    title = titled(f"Bus bandwidth{of} against size{some}", [r for r in results if r.spec.is_collective], ("size",))
    return Drawing("busbw", title, (6, 4.5 + 0.2 * sum(name.count("\n") + 1 for name in names)), draw)


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
            look = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
            stds = [ms(std_s) for std_s in stds_s]
            times.errorbar(ranks, [ms(mean_s) for mean_s in means_s], stds, label=names[index], capsize=2, **look)
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

    some = f" (the first {len(shown)} of {len(lines)} lines)" if len(shown) < len(lines) else ""
    said = f"Step time and efficiency over ranks{some}\n{kinds}; error bars: {std_kind(ddof)}"
    return Drawing(name, titled(said, timed, ("ranks", "batch-is")), (9, 4.5 + 0.2 * len(names)), draw)
