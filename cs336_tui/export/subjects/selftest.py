"""Step times over those of a bare script, and of cells side by side over those of one alone: each a table with a
sentence on what they come to."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from cs336_tui.events.environment import Environment
from cs336_tui.export.writing.tables import Column, Source, Table, attributes, known
from cs336_tui.selftest.programs import APP, BARE, SAMPLING_S, SelftestCell
from cs336_tui.selftest.side_by_side import LaneCost, LaneRun
from cs336_tui.selftest.turns import SETTLE_S, Plan, ProgramRatio, SelftestResult, Taken, Tolerances
from cs336_tui.stats.quantities import MILLISECONDS, UNKNOWN, counted
from cs336_tui.stats.ratio import Ratio

SMALL = 2.0
"""Cost of neighbours in percent up to which an interval that reaches 0 is called none."""


class Selftest(msgspec.Struct, frozen=True, kw_only=True):
    """The programs and the machine, every step time, and the result."""

    work: SelftestCell
    environment: Environment
    taken: Taken
    outcome: SelftestResult
    keep_memory: bool = False


def selftest_table(selftest: Selftest) -> Table:
    """A row a program; the last footnote is the sentence."""
    outcome = selftest.outcome
    marks = outcome.marks

    def judged(row: ProgramRatio) -> ProgramRatio | None:
        """The row, but for the control's."""
        return None if row is outcome.control else row

    columns: tuple[Source[ProgramRatio], ...] = (
        Column("program", left=True, read=lambda row: row.name),
        Column("steps"),
        lambda row: attributes(row, "bare_steps", "mean_s", "std_s") | attributes(outcome, "bare_mean_s", "bare_std_s"),
        Column("ms ± std", text=lambda row: _time(row.mean_s, row.std_s)),
        lambda row: attributes(row.means, "ratio", "low", "high", prefix="means_") | {"means_mark": marks.mean},
        Column("means over bare [95 %]", text=lambda row: _ratio(row.means)),
        lambda row: attributes(judged(row), "means_judged"),
        Column("means_judged", _mean_mark(marks), left=True, show=known("{}", "")),
        lambda row: attributes(row.stds, "ratio", "low", "high", prefix="stds_") | {"stds_mark": marks.std},
        Column("stds over bare [95 %]", text=lambda row: _ratio(row.stds)),
        lambda row: attributes(judged(row), "stds_judged", "judged") | {"outcome": outcome.judged},
        Column("stds_judged", _std_mark(marks), left=True, show=known("{}", "")),
    )
    said = sentence(selftest)
    caption = f"Step times over those of a bare script: {selftest.work.title}"
    notes = (*_notes(selftest), said)
    found = Table.of((outcome.control, *outcome.rows), columns, caption=caption, footnotes=notes, label="selftest")
    bare = (BARE, str(outcome.control.bare_steps), _time(outcome.bare_mean_s, outcome.bare_std_s), "1", "", "1", "")
    return msgspec.structs.replace(found, rows=(bare, *found.rows), findings=(said,))


def sentence(selftest: Selftest) -> str:
    """The result in a sentence, with the machine."""
    outcome = selftest.outcome
    marks = f"means {_mean_mark(outcome.marks)}, stds {_std_mark(outcome.marks)}"
    match outcome.judged:
        case "pass":
            names = " and ".join([", ".join(row.name for row in outcome.rows[:-1]), outcome.rows[-1].name])
            said = f"{names} time steps as a bare script does ({marks})"
        case "fail":
            said = f"{', '.join(_failures(outcome))} ({marks})"
        case _ if outcome.noisy_means or outcome.noisy_stds:
            said = "this machine is too noisy now to tell: " + "; ".join(_noise(outcome))
        case _:
            means = [row.name for row in outcome.rows if row.means_judged == "cannot tell"]
            stds = [row.name for row in outcome.rows if row.stds_judged == "cannot tell"]
            open_ = [f"{what} ({'; '.join(names)})" for what, names in (("means", means), ("stds", stds)) if names]
            said = f"intervals reach past the mark or are unknown, of {' and '.join(open_)} ({marks}); "
            said += "a quieter machine narrows them"
    return f"{outcome.judged}: {said}; on {machine_of(selftest.environment, selftest.work.device)}."


def machine_of(env: Environment, name: str) -> str:
    """The device of this name, the machine and the versions."""
    device = env.device(name)
    gpu = f"{device.label} ({device.name})" if device is not None and device.name != "cpu" else name
    parts = [gpu, f"{env.cpu}, {counted(env.cpu_count, 'core')}", env.os, f"Python {env.python}"]
    parts.append(f"torch {env.torch or UNKNOWN}")
    if env.driver and gpu != "cpu":
        parts.append(f"driver {env.driver}")
    return ", ".join([*parts, f"cs336-tui {env.app}"])


def _failures(outcome: SelftestResult) -> Iterator[str]:
    for row in outcome.rows:
        if row.means_judged == "fail":
            yield f"{row.name} takes {_ratio(row.means)} times as long as the bare script"
        if row.stds_judged == "fail":
            yield f"the std of {row.name} is {_ratio(row.stds)} of the bare script's"


def _noise(outcome: SelftestResult) -> Iterator[str]:
    for what, is_noisy, ratio, mark in (
        ("means", outcome.noisy_means, outcome.control.means, _mean_mark(outcome.marks)),
        ("stds", outcome.noisy_stds, outcome.control.stds, _std_mark(outcome.marks)),
    ):
        if is_noisy:
            yield f"the {what} of two copies of the bare script are {_ratio(ratio)} of each other (mark: {mark})"


def _method(plan: Plan, ratio: Ratio | None) -> str:
    """The rounds of each start, and how their ratios become an interval."""
    method = ratio.method if ratio else "too few rounds for an interval"
    rounds = f"{counted(plan.rounds, 'round')} in each of {counted(plan.starts, 'start')}"
    return f"{rounds}; ratios round by round, their geometric mean; intervals: {method}"


def _notes(selftest: Selftest) -> Iterator[str]:
    taken, outcome = selftest.taken, selftest.outcome
    method = _method(taken.plan, outcome.control.means)
    yield f"turns of {taken.turn_s:.2f} s, one program at a time, the others stopped; {method}"
    turns = [turn for rounds in taken.starts for each in rounds for turn in each.values()]
    settling, counting = sum(len(turn.settling) for turn in turns), sum(len(turn.counted) for turn in turns)
    yield (
        f"not counted: {settling} of {settling + counting} steps, which began within {SETTLE_S:g} s of their turn's "
        "begin (the others had had the caches); nor the step during which a turn ended"
    )
    yield (
        f"control: the bare script again; its ratio is what this machine adds to any. Devices are sampled every "
        f"{SAMPLING_S:g} s by bench and the app. std: within turns"
    )
    if all(row.name != APP for row in outcome.rows):
        yield "the app is left out: Textual is not installed"
    if selftest.keep_memory:
        yield "the bare scripts were told to keep freed memory (malloc), as cells do"
    if short := sum(len(turn.counted) < 2 for turn in turns):
        yield f"{short} of {len(turns)} turns hold fewer than 2 counted steps and are in no ratio"
    yield from _noise(outcome)


def _mean_mark(marks: Tolerances) -> str:
    return f"within {marks.mean * 100:g} %"


def _std_mark(marks: Tolerances) -> str:
    return f"at most {marks.std:g}"


def _ratio(ratio: Ratio | None) -> str:
    return UNKNOWN if ratio is None else f"{ratio.ratio:.3f} {ratio.bounds('.3f')}"


def _time(mean_s: float | None, std_s: float | None = None) -> str:
    mean = MILLISECONDS.time(mean_s, mean_s=mean_s, std_s=std_s)
    return mean if std_s is None else f"{mean} ± {MILLISECONDS.time(std_s, mean_s=mean_s, std_s=std_s)}"


class SideBySide(msgspec.Struct, frozen=True, kw_only=True):
    """The cell and the machine, every step time, and the cost of each lane and of all."""

    work: SelftestCell
    environment: Environment
    run: LaneRun
    costs: tuple[LaneCost, ...]


def lanes_table(found: SideBySide) -> Table:
    """A row a lane, then all; the last footnote is the sentence."""

    def place(each: LaneCost) -> str:
        if each.lane is None:
            return ""
        cores = ", ".join(map(str, each.lane.cores))
        word = "cores" if len(each.lane.cores) > 1 else "core"
        return f"{each.lane.device} ({word} {cores})" if cores else each.lane.device

    columns: tuple[Source[LaneCost], ...] = (
        Column("lane", left=True, read=lambda each: each.lane.lane if each.lane else None, show=known("{}", "all")),
        Column("device", left=True, read=lambda each: each.lane.device if each.lane else None, text=place),
        lambda each: {"cores": " ".join(map(str, each.lane.cores)) if each.lane else None},
        lambda _: {"lanes": len(found.run.lanes)},
        Column("steps_alone", "steps alone"),
        Column("steps_beside", "steps beside"),
        Column("alone_s", "alone (ms)", show=_time),
        Column("beside_s", "beside others (ms)", show=_time),
        lambda each: attributes(each.ratio, "ratio", "low", "high"),
        Column("ratio", "beside over alone [95 %]", text=lambda each: _ratio(each.ratio)),
    )
    caption = f"Step times beside {_others(found)}, over those alone: {found.work.title}"
    notes = (*_lanes_notes(found), lanes_sentence(found))
    return Table.of(found.costs, columns, caption=caption, footnotes=notes, label="side-by-side")


def lanes_sentence(found: SideBySide) -> str:
    """The cost in plain words, with the machine."""
    ratio, lanes = found.costs[-1].ratio, len(found.run.lanes)
    place = machine_of(found.environment, found.run.lanes[0].device)
    if ratio is None or ratio.low is None or ratio.high is None:
        return f"the cost of neighbours cannot be told: too few rounds with steps of all lanes; on {place}."
    together = f"{counted(lanes, 'lane')} together make {lanes / ratio.ratio:.2f} times the steps of one"
    low, high = ((bound - 1) * 100 for bound in (ratio.low, ratio.high))
    if low <= 0 <= high:
        said = "no cost of neighbours is to be seen" if high <= SMALL else "whether neighbours cost time cannot be told"
        said += f": beside {_others(found)} a step takes between {100 + low:.1f} % and {100 + high:.1f} % of its time "
        said += "alone" if high <= SMALL else "alone (more rounds or a quieter machine narrow that)"
    else:
        change = (ratio.ratio - 1) * 100
        took = f"{abs(change):.1f} % {'longer' if change > 0 else 'less'} than alone"
        said = f"beside {_others(found)} a step takes {took} [{low:+.1f} %, {high:+.1f} %]"
    return f"{said}; {together}; on {place}."


def _others(found: SideBySide) -> str:
    return f"the same cell in {counted(len(found.run.lanes) - 1, 'other lane')}"


def _lanes_notes(found: SideBySide) -> Iterator[str]:
    run = found.run
    yield (
        f"turns of {run.turn_s:.2f} s: each lane alone, all, all, each alone, the other cells' processes stopped; "
        f"{_method(run.plan, found.costs[-1].ratio)}"
    )
    sides = [turn for rounds in run.starts for each in rounds for turns in each.values() for turn in turns]
    settling, taken = sum(len(turn.settling) for turn in sides), sum(len(turn.counted) for turn in sides)
    yield f"not counted: {settling} of {settling + taken} steps, which began within {SETTLE_S:g} s of a turn's begin"
    yield "cells run in lanes of cs336-tui bench, with its pinning and sampling, which go on while a cell is alone"
