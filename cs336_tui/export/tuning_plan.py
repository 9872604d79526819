"""The plan of a search as sentences, as a table and as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from cs336_tui.analysis.estimates import duration_range, time_range, timed_flops
from cs336_tui.analysis.first_round import first_round_s
from cs336_tui.analysis.tuning_plan import Plan, Planned
from cs336_tui.config.tuning import COSTS
from cs336_tui.export.tables import Column, Table, Value, attributes
from cs336_tui.export.tuning import left_out_lines
from cs336_tui.stats.quantities import UNKNOWN, counted, duration, gigabytes


def plan_heading(plan: Plan) -> str:
    """The search in a sentence."""
    tuning, left = plan.tuning, len(plan.left_out)
    out = f", {counted(left, 'combination')} left out" if left else ""
    out += f", {counted(plan.alike, 'combination')} like another" if plan.alike else ""
    limit = "" if plan.limit_bytes is None else f" within {gigabytes(plan.limit_bytes)} GB"
    return (
        f"{counted(len(plan.candidates), 'candidate')} on {plan.target.name}{limit}{out}; goal: {COSTS[tuning.goal]}."
    )


def plan_table(plan: Plan) -> Table:
    """A row a candidate with its prediction; below what is left out, and the plan."""
    columns: list[Column[Planned]] = [
        Column("candidate", left=True, text=lambda each: each.label),
        Column("needed", "needs (GB)", text=lambda e: UNKNOWN if e.needed_bytes is None else gigabytes(e.needed_bytes)),
        Column("tflop", "TFLOP a step", rank=2, text=_tflop),
        Column("step", "step", left=True, rank=1, text=_step),
    ]
    if any(each.estimate is None for each in plan.candidates):
        columns.append(Column("note", left=True, text=lambda each: "" if each.estimate else "not predicted"))
    lines = tuple(plan_lines(plan))
    found = Table.of(
        plan.candidates,
        columns,
        record=planned_record,
        caption=f"Candidates on {plan.target.name}",
        footnotes=lines,
        label="tuning-plan",
    )
    return msgspec.structs.replace(found, findings=lines)


def plan_lines(plan: Plan) -> Iterator[str]:
    """Notes: candidates left out, rounds that the budget allows, and time that a limit of the whole run leaves."""
    yield f"starting point: {plan.tuning.base.heading}"
    if not plan.target.shares_memory and any(each.spec.ranks > 1 for each in plan.candidates):
        yield "needs, TFLOP: of each rank, on a GPU of its own"
    yield from left_out_lines(each for each, _ in plan.left_out)
    yield _round_line(plan)
    if plan.visits < len(plan.candidates):
        in_time = f"first round: about {plan.visits} of these visits, in {duration(first_round_s(plan.tuning))}"
        yield (
            f"{in_time}. The starting point first, then each value by itself, then the combinations whose values "
            "gained most; give more time, or search less, to visit all"
        )
    yield from _rule_lines(plan)


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as data, in bytes, seconds and FLOPs."""
    tuning = plan.tuning
    return {
        "baseline": tuning.base,
        "goal": tuning.goal,
        "over": {each.name: each.values for each in tuning.over},
        "device": plan.target.name,
        "limit_bytes": plan.limit_bytes,
        "candidates": [{"spec": each.spec, **planned_record(each)} for each in plan.candidates],
        "left_out": [
            {"words": each.words, "why": each.why, "spec": each.spec, "needed_bytes": needed}
            for each, needed in plan.left_out
        ],
        "plan": {
            "visits": plan.visits,
            "warmup_steps": tuning.base.warmup_steps,
            "measure_steps": None if tuning.base.steps_for else tuning.base.measure_steps,
            "measure_for_s": tuning.base.steps_for,
            **attributes(plan, "round_low_s", "round_high_s", "most_rounds"),
            "budget_s": tuning.budget_s,
        },
    }


def planned_record(each: Planned) -> dict[str, Value]:
    """A candidate as data; None is unknown."""
    found = each.estimate
    return {
        "candidate": each.label,
        "needed_bytes": each.needed_bytes,
        "flops": timed_flops(found.prediction) if found else None,
        **attributes(found, "low_s", "high_s", "run_low_s", "run_high_s", "basis"),
        **({"left_to_compile_at_most_s": each.rule.left_s} if each.rule else {}),
    }


def _round_line(plan: Plan) -> str:
    tuning, most = plan.tuning, plan.most_rounds
    visits = counted(len(plan.candidates), "visit")
    if plan.round_low_s is None:
        took = "how long it takes is unknown until a cell was measured here (--session takes one's speed)"
    else:
        took = (
            f"{duration_range(plan.round_low_s, plan.round_high_s)} of steps by forecast, beside start-up and compiling"
        )
    rounds = "" if most is None else f", at most {counted(most, 'round')} of all"
    which = "first round" if plan.visits == len(plan.candidates) else "a round of all"
    return f"{which}: {visits} of {tuning.visit_words}; {took}; budget {duration(tuning.budget_s)}{rounds}"


def _rule_lines(plan: Plan) -> Iterator[str]:
    """The time that the limit of the whole run leaves for compiling, where it has one."""
    rules = [each.rule for each in plan.candidates if each.rule]
    known = [rule for rule in rules if rule.left_s is not None and rule.steps_s is not None]
    if not rules:
        return
    limit = duration(rules[0].limit_s)
    if not known:
        yield f"of the {limit} of a whole run an unknown rest is left for compiling: no step was forecast"
        return
    steps = {round(rule.steps_s or 0.0) for rule in known}
    left = {round(rule.left_s or 0.0) for rule in known}
    took, rest = (" to ".join(dict.fromkeys(map(duration, (min(each), max(each))))) for each in (steps, left))
    yield (
        f"of the {limit} of a whole run from empty caches its steps take at least {took}, so that at most {rest} is "
        "left for start-up, compiling and autotuning; what these take is unknown until they are measured on such a GPU"
    )


def _tflop(each: Planned) -> str:
    return f"{timed_flops(each.estimate.prediction) / 1e12:.4g}" if each.estimate else UNKNOWN


def _step(each: Planned) -> str:
    return time_range(each.estimate.low_s, each.estimate.high_s) if each.estimate else UNKNOWN
