"""A race as a sentence, as tables and as data, with the gain of each searched choice; and the plan of a search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from cs336_tui.analysis.agreement import COMPARED
from cs336_tui.analysis.estimates import duration_range, time_range, timed_flops
from cs336_tui.analysis.findings import Gain, gains_of, together
from cs336_tui.analysis.next_step import NONE_LEFT, first_round_s
from cs336_tui.analysis.shortlist import Plan, Planned, TimeRule, measured_rule
from cs336_tui.analysis.tuning import BARRED, Entry, EntryStatus, Race
from cs336_tui.config.choices import command_of
from cs336_tui.config.spec import AXES
from cs336_tui.config.tuned_sweep import sweep_of_candidate
from cs336_tui.config.tuning import COSTS, Goal, LeftOut, choice_words, value_words
from cs336_tui.export.writing.tables import Column, Source, Table, attributes, known
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import TOO_NOISY, UNKNOWN, counted, duration, gigabytes, named
from cs336_tui.stats.ratio import Ratio

_OF_START: Mapping[Goal, str] = {
    "step": "the starting point's time a step",
    "tokens/s": "the starting point's time a token",
    "tokens/J": "the starting point's energy a token",
    "memory": "the starting point's peak of memory",
}
_ALIKE: Mapping[EntryStatus, str] = {"oom": "out of memory", "over the limit": "its peak is over the limit"}
"""Reasons whose words differ in nothing but sizes."""
_MOST_REASONS = 3
"""The most reasons that are told."""
BASELINE = "baseline"
"""Stands for the interval of the starting point, to which all ratios are."""


def finding(race: Race) -> str:
    """The result in a plain sentence; without a best why the race ended, and the most common reason of candidates."""
    best = race.best
    if best is None:
        why, names = next(iter(_reasons(race).items()), ("", []))
        often = [f"{why} ({len(names)} of {len(race.entries)})"] if why else []
        if race.ended == NONE_LEFT:
            return f"{': '.join(['No candidate could be measured', *often])}."
        told = "; ".join([*filter(None, [race.ended]), *often])
        return f"No candidate has a result{f': {told}' if told else ''}."
    tied = [entry for entry in race.entries if entry.status in ("tied", "in the race") and entry is not best]
    names = [entry.label if entry.number else "the starting point" for entry in tied]
    beside = f"; not told apart from it: {named(names)}" if tied else ""
    if best.number == 0:
        others = sum(entry.visits > 0 for entry in race.entries) - 1
        return f"No other of {counted(others, 'measured candidate')} beats the starting point{beside}."
    unsure = ""
    if best.low is None or best.high is None:
        unsure = f" ({TOO_NOISY})" if best.visits > 1 else " (one visit each, so there is no interval)"
    doubt = f" In doubt: {best.why}." if best.why else ""
    return f"{_takes(race, best)}{unsure}{beside}.{doubt}"


def _takes(race: Race, best: Entry) -> str:
    """``attention sdpa takes 0.71 [0.70, 0.73] of the starting point's time a step``."""
    return f"{best.label} takes {factor_words(best, 2)} of {_OF_START[race.tuning.goal]}"


def preset_line(race: Race, best: Entry) -> str:
    """The line of a preset that the best candidate is saved as."""
    doubt = f"; in doubt: {best.why}" if best.why else ""
    return f"found by tune, goal {race.tuning.goal}: {_takes(race, best) if best.number else best.label}{doubt}"


def failure_lines(race: Race) -> Iterator[str]:
    """The most common reasons why candidates have no result, each with its candidates."""
    reasons = _reasons(race)
    for why, names in list(reasons.items())[:_MOST_REASONS]:
        yield f"{why}: {named(names)}"
    if (more := len(reasons) - _MOST_REASONS) > 0:
        yield f"{counted(more, 'other reason')}: cs336-tui export --report race has them all"


def _reasons(race: Race) -> dict[str, list[str]]:
    """Why candidates were lost, each reason with their names, the most common first; not why the race ended."""
    found: dict[str, list[str]] = {}
    for entry in race.entries:
        if entry.status in BARRED and not race.ended.endswith(f": {entry.why}"):
            found.setdefault(_ALIKE.get(entry.status) or entry.why, []).append(entry.label)
    return dict(sorted(found.items(), key=lambda reason: -len(reason[1])))


def next_lines(race: Race) -> Iterator[str]:
    """The command that runs the best candidate alone, and how it becomes a preset."""
    if race.best is not None:
        yield f"run it: {command_of(sweep_of_candidate(race.tuning, race.best.spec))}"
        yield "keep it: with --save-preset NAME a search saves its best as a preset of your own"


def race_table(race: Race, cells: Mapping[int, CellState] | None = None) -> Table:
    """A row a candidate, best first, with its ratio to the starting point; below what was not tried, and why. `cells`
    are the session's, which tell what a limit of the whole run leaves for compiling."""
    rules = _rules(race, cells)
    left_s = {number: rule.left_s for number, rule in rules.items()}
    columns: list[Source[Entry]] = [
        Column("candidate", left=True, read=lambda entry: entry.label),
        Column("status", left=True),
        Column("ratio", show=ratio_words),
        lambda entry: attributes(entry, "low", "high", "cost", "visits", "peak_bytes", "compile_s"),
        Column("interval", text=interval_words),
        Column("visits", rank=4),
        Column("peak", "peak (GB)", rank=2, text=lambda e: gigabytes(e.peak_bytes)),
    ]
    if any(entry.compile_s for entry in race.entries):
        columns.append(Column("compile", "compile (s)", rank=3, text=lambda e: known("{:.1f}", "")(e.compile_s)))
    if rules:
        show = known("{:.0f}")
        columns.append(Column("left", "left to compile (s)", rank=2, text=lambda e: show(left_s.get(e.number))))
    columns += [
        Column("why", left=True, rank=5, read=lambda entry: entry.why or None, text=lambda entry: entry.why),
        lambda entry: attributes(entry.agreement, agrees="agrees", agreement="why"),
        lambda entry: {"left_to_compile_s": left_s[entry.number]} if entry.number in left_s else {},
    ]
    findings, candidates = tuple(_findings(race, rules)), counted(len(race.entries), "candidate")
    caption = f"Race of {candidates}: {COSTS[race.tuning.goal]} over the starting point's"
    notes = [
        f"starting point: {race.start.spec.heading}",
        "ratio: cost over the starting point's, the baseline; intervals hold for all candidates together with 95 %",
    ]
    if any(entry.agreement for entry in race.entries):
        notes.append(f"logits and gradients compared: {COMPARED}")
    if race.limit_bytes is not None:
        notes.append(f"limit of a peak: {gigabytes(race.limit_bytes)} GB")
    unseen = sum(entry.status == "not visited" for entry in race.entries)
    found = Table.of(race.entries, columns, caption=caption, footnotes=[*notes, *findings], label="race")
    return msgspec.structs.replace(found, findings=findings, behind=unseen)


def race_document(race: Race, cells: Mapping[int, CellState] | None = None) -> dict[str, Any]:
    """The race as data: the best spec, the ranking, the starting point, what was left out and how it ended; in seconds,
    bytes and joules."""
    tuning, best, records = race.tuning, race.best, race_table(race, cells).records
    return {
        "best": best.spec if best else None,
        "ranking": [{"spec": each.spec, **record} for each, record in zip(race.entries, records, strict=True)],
        "baseline": race.start.spec,
        "finding": finding(race),
        "command": command_of(sweep_of_candidate(tuning, best.spec)) if best else None,
        "goal": tuning.goal,
        "over": {each.name: each.values for each in tuning.over},
        "left_out": [msgspec.structs.asdict(each) for each in race.left_out],
        "limit_bytes": race.limit_bytes,
        "budget_s": tuning.budget_s,
        "spent_s": race.spent_s,
        "rounds": race.rounds,
        "ended": race.ended or None,
    }


def left_out_lines(left_out: Iterable[LeftOut]) -> Iterator[str]:
    """A line a reason, with the combinations that it leaves out."""
    by_reason: dict[str, list[str]] = {}
    for each in left_out:
        by_reason.setdefault(each.why, []).append(each.words)
    for why, words in by_reason.items():
        first, *others = (each.split(", ") for each in words)
        common = ", ".join(part for part in first if all(part in other for other in others))
        several = f"{common} ({counted(len(words), 'combination')})" if others and common else ""
        yield f"not tried: {several or named(words)}: {why}"


def ratio_words(ratio: float | None, unknown: str = UNKNOWN) -> str:
    """A ratio to the starting point, with three decimals below 10, else three digits."""
    return unknown if ratio is None else f"{ratio:.{_decimals(ratio)}f}"


def interval_words(entry: Entry) -> str:
    """The interval of the ratio, as fine as that; of the starting point the word for it."""
    if not entry.number and entry.ratio is not None:
        return BASELINE
    if entry.low is None or entry.high is None:
        return ""
    decimals = _decimals(entry.high)
    return f"[{entry.low:.{decimals}f}, {entry.high:.{decimals}f}]"


def _decimals(ratio: float) -> int:
    return 3 if ratio < 10 else 1 if ratio < 100 else 0


def _rules(race: Race, cells: Mapping[int, CellState] | None) -> dict[int, TimeRule]:
    """The limit of the whole run as far as it is known, by candidate; empty if there is none."""
    if cells is None:
        return {}
    visits = ((entry, [cells[number] for number in entry.cells if number in cells]) for entry in race.entries)
    found = ((entry.number, measured_rule(race.tuning, entry, of)) for entry, of in visits)
    return {number: rule for number, rule in found if rule}


def _findings(race: Race, rules: Mapping[int, TimeRule]) -> Iterator[str]:
    if race.ended:
        yield f"the race ended after {counted(race.rounds, 'round')}: {race.ended}"
    if rules:
        limit_s = next(iter(rules.values())).limit_s
        yield (
            f"left to compile: the {duration(limit_s)} of a whole run less its steps and the measured start-up; "
            "a candidate that compiles longer is over it"
        )
    for entry in race.entries:
        if entry.status == "differs":
            yield f"differs: {entry.label}: {entry.why}"
    if unseen := [entry for entry in race.entries if entry.status == "not visited"]:
        names = named([entry.label for entry in unseen])
        yield f"not visited: {counted(len(unseen), 'candidate')} ({names}): {unseen[0].why}"
    yield from left_out_lines(race.left_out)


def gains_table(race: Race) -> Table | None:
    """A row a value of a choice: its ratio of costs alone, and beside the best candidate's other choices. None without
    a best candidate that changes something, or another value to compare."""
    gains = gains_of(race)
    if not any(gain.alone or gain.beside for gain in gains):
        return None
    columns: list[Source[Gain]] = [
        lambda gain: {"choice": AXES[gain.field].option},
        lambda gain: {"value": value_words(gain.value) if isinstance(gain.value, tuple) else gain.value},
        lambda gain: {"in_best": gain.is_best},
        Column("choice", left=True, text=lambda gain: choice_words({gain.field: gain.value})),
        lambda gain: attributes(gain.alone, "ratio", "low", "high", prefix="alone_"),
        lambda gain: attributes(gain.beside, "ratio", "low", "high", prefix="beside_"),
        Column("alone", text=lambda gain: factor_words(gain.alone)),
        Column(
            "beside", "beside the best's others", text=lambda gain: factor_words(gain.beside), short="beside the others"
        ),
        Column("interacts", left=True, show={None: UNKNOWN, True: "yes", False: "not shown"}.__getitem__),
        Column("in_best", "in the best", left=True, show={True: "yes", False: ""}.__getitem__),
    ]
    notes = [
        "alone: in place of the starting point's value; below 1 it gains",
        "beside: the same where all other choices are the best candidate's; n/a: one of the cells was not measured",
        "interacts: both intervals exclude each other, so that the choice gains another ratio beside the others",
    ]
    if both := together(race, gains):
        product = UNKNOWN if both.product is None else f"{both.product:.3f}"
        notes.append(f"together: {factor_words(both.ratio)}; the product of what its choices gain alone: {product}")
    caption = "What each choice gains: cost with it over cost without it"
    return Table.of(gains, columns, caption=caption, footnotes=notes, label="gains")


def factor_words(factor: Ratio | Entry | None, decimals: int = 3) -> str:
    """A ratio with its interval: ``0.712 [0.703, 0.721]``."""
    if factor is None or factor.ratio is None:
        return UNKNOWN
    low, high, form = factor.low, factor.high, f".{decimals}f"
    bounds = "" if low is None or high is None else f" [{low:{form}}, {high:{form}}]"
    return f"{factor.ratio:{form}}{bounds}"


def plan_heading(plan: Plan) -> str:
    """The search in a sentence."""
    tuning, left = plan.tuning, len(plan.left_out)
    out = f", {counted(left, 'combination')} left out" if left else ""
    alike, limit_bytes = plan.shortlist.alike, plan.shortlist.limit_bytes
    out += f", {counted(alike, 'combination')} like another" if alike else ""
    limit = "" if limit_bytes is None else f" within {gigabytes(limit_bytes)} GB"
    return (
        f"{counted(len(plan.candidates), 'candidate')} on {plan.target.name}{limit}{out}; goal: {COSTS[tuning.goal]}."
    )


def plan_table(plan: Plan) -> Table:
    """A row a candidate with its prediction; below what is left out, and the plan."""

    def tflop(each: Planned) -> str:
        return f"{timed_flops(each.estimate.prediction) / 1e12:.4g}" if each.estimate else UNKNOWN

    def step(each: Planned) -> str:
        return time_range(each.estimate.low_s, each.estimate.high_s) if each.estimate else UNKNOWN

    columns: list[Source[Planned]] = [
        Column("candidate", left=True, read=lambda each: each.label),
        Column("needed", "needs (GB)", text=lambda e: UNKNOWN if e.needed_bytes is None else gigabytes(e.needed_bytes)),
        Column("tflop", "TFLOP a step", rank=2, text=tflop),
        Column("step", "step", left=True, rank=1, text=step),
    ]
    if any(each.estimate is None for each in plan.candidates):
        columns.append(Column("note", left=True, text=lambda each: "" if each.estimate else "not predicted"))
    columns += [
        lambda each: attributes(each, "needed_bytes"),
        lambda each: {"flops": timed_flops(each.estimate.prediction) if each.estimate else None},
        lambda each: attributes(each.estimate, "low_s", "high_s", "run_low_s", "run_high_s", "basis"),
        lambda each: attributes(each.rule, left_to_compile_at_most_s="left_s") if each.rule else {},
    ]
    lines, caption = tuple(plan_lines(plan)), f"Candidates on {plan.target.name}"
    found = Table.of(plan.candidates, columns, caption=caption, label="tuning-plan")
    return msgspec.structs.replace(found, footnotes=lines, findings=lines)


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
    tuning, records = plan.tuning, plan_table(plan).records
    return {
        "baseline": tuning.base,
        "goal": tuning.goal,
        "over": {each.name: each.values for each in tuning.over},
        "device": plan.target.name,
        "limit_bytes": plan.shortlist.limit_bytes,
        "candidates": [{"spec": each.spec, **of} for each, of in zip(plan.candidates, records, strict=True)],
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


def _round_line(plan: Plan) -> str:
    tuning, most = plan.tuning, plan.most_rounds
    visits = counted(len(plan.candidates), "visit")
    if plan.round_low_s is None:
        took = "how long it takes is unknown until a cell was measured here (--session takes one's speed)"
    else:
        took = duration_range(plan.round_low_s, plan.round_high_s)
        took += " of steps by forecast, beside start-up and compiling"
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
