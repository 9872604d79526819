"""The cost of running side by side, in step time: a row a lane, and a sentence."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from cs336_tui.events.environment import Environment
from cs336_tui.export.selftest import machine_of
from cs336_tui.export.tables import Column, Source, Table, attributes
from cs336_tui.selftest.programs import SelftestCell
from cs336_tui.selftest.side_by_side import LaneCost, LaneRun
from cs336_tui.selftest.turns import SETTLE_S
from cs336_tui.stats.quantities import MILLISECONDS, UNKNOWN, counted

SMALL = 2.0
"""Cost in percent up to which an interval that reaches 0 is called none."""


class SideBySide(msgspec.Struct, frozen=True, kw_only=True):
    """The cell and the machine, every step time, and the cost of each lane and of all."""

    work: SelftestCell
    environment: Environment
    run: LaneRun
    costs: tuple[LaneCost, ...]


def lanes_table(found: SideBySide) -> Table:
    """A row a lane, then all; the last footnote is the sentence."""
    columns: tuple[Source[LaneCost], ...] = (
        Column("lane", left=True, read=lambda each: each.lane.lane if each.lane else None, text=_name),
        Column("device", left=True, read=lambda each: each.lane.device if each.lane else None, text=_place),
        lambda each: {
            "cores": " ".join(map(str, each.lane.cores)) if each.lane else None,
            "lanes": len(found.run.lanes),
        },
        Column("steps_alone", "steps alone"),
        Column("steps_beside", "steps beside"),
        Column("alone_s", "alone (ms)", show=_time),
        Column("beside_s", "beside others (ms)", show=_time),
        lambda each: attributes(each.ratio, "ratio", "low", "high"),
        Column("ratio", "beside over alone [95 %]", text=_ratio),
    )
    return Table.of(
        found.costs,
        columns,
        caption=f"Step times beside {_others(found)}, over those alone: {found.work.title}",
        footnotes=(*_notes(found), sentence(found)),
        label="side-by-side",
    )


def sentence(found: SideBySide) -> str:
    """The cost in plain words, with the machine."""
    ratio, lanes = found.costs[-1].ratio, len(found.run.lanes)
    place = machine_of(found.environment, found.run.lanes[0].device)
    if ratio is None or ratio.low is None or ratio.high is None:
        return f"the cost of neighbours cannot be told: too few rounds with steps of all lanes; on {place}."
    together = f"{counted(lanes, 'lane')} together make {lanes / ratio.ratio:.2f} times the steps of one"
    low, high = ((bound - 1) * 100 for bound in (ratio.low, ratio.high))
    if low <= 0 <= high:
        said = "no cost of neighbours is to be seen" if high <= SMALL else "whether neighbours cost time cannot be told"
        said += f": beside {_others(found)} a step takes between {_share(low)} and {_share(high)} of its time alone"
        said += "" if high <= SMALL else " (more rounds or a quieter machine narrow that)"
    else:
        change = (ratio.ratio - 1) * 100
        said = (
            f"beside {_others(found)} a step takes {abs(change):.1f} % {'longer' if change > 0 else 'less'} than alone "
        )
        said += f"[{low:+.1f} %, {high:+.1f} %]"
    return f"{said}; {together}; on {place}."


def _share(change: float) -> str:
    return f"{100 + change:.1f} %"


def _others(found: SideBySide) -> str:
    return f"the same cell in {counted(len(found.run.lanes) - 1, 'other lane')}"


def _notes(found: SideBySide) -> Iterator[str]:
    run = found.run
    ratio = found.costs[-1].ratio
    method = ratio.method if ratio else "too few rounds for an interval"
    yield (
        f"turns of {run.turn_s:.2f} s: each lane alone, all, all, each alone, the other cells' processes stopped; "
        f"{counted(run.plan.rounds, 'round')} in each of {counted(run.plan.starts, 'start')}; ratios round by "
        f"round, their geometric mean; intervals: {method}"
    )
    sides = [turn for rounds in run.starts for each in rounds for turns in each.values() for turn in turns]
    settling, taken = sum(len(turn.settling) for turn in sides), sum(len(turn.counted) for turn in sides)
    yield f"not counted: {settling} of {settling + taken} steps, which began within {SETTLE_S:g} s of a turn's begin"
    yield "cells run in lanes of cs336-tui bench, with its pinning and sampling, which go on while a cell is alone"


def _name(each: LaneCost) -> str:
    return "all" if each.lane is None else str(each.lane.lane)


def _place(each: LaneCost) -> str:
    if each.lane is None:
        return ""
    cores = ", ".join(map(str, each.lane.cores))
    return f"{each.lane.device} (core{'s' * (len(each.lane.cores) > 1)} {cores})" if cores else each.lane.device


def _time(mean_s: float | None) -> str:
    return MILLISECONDS.time(mean_s, mean_s=mean_s, std_s=None)


def _ratio(each: LaneCost) -> str:
    return UNKNOWN if each.ratio is None else f"{each.ratio.ratio:.3f} {each.ratio.bounds('.3f')}"
