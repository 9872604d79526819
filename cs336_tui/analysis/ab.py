"""The result of two cells in turns: the pairs of each round, the ratio of all, and what else differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from cs336_tui.analysis.comparison import Pair, Side, compare, not_compared
from cs336_tui.analysis.merge import Result, without_visits
from cs336_tui.analysis.referee import disqualified
from cs336_tui.config.spec import CellSpec
from cs336_tui.stats.quantities import counted
from cs336_tui.stats.ratio import LEVEL, MARGIN, Passing, Ratio, explain, outcome, paired_ratio, passing
from cs336_tui.stats.summaries import Summary

Pairs = tuple[tuple[float, float], ...]
FIRST_LOOK = 5
"""The first round of sides that are apart after which their interval may decide."""
_MORE = "take more rounds (--rounds) or steps"


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One process that timed both, or was to. `number` is from 1; `pairs` are neighbouring steps of A and B in seconds,
    in order, `ratio` is of these alone; `note` says why a round does not count, and is empty for one that does. If it
    `is_apart`, each side had a process of its own."""

    number: int
    began: bool
    a: Summary | None
    b: Summary | None
    pairs: Pairs
    ratio: Ratio | None
    note: str = ""
    is_apart: bool = False


class Exposed(msgspec.Struct, frozen=True, kw_only=True):
    """Communication that a step waits for, in seconds: its mean time less that of the same ranks without
    synchronisation, with the interval that the ratio of the two implies; without one low and high are None. `share` is
    of the step, and so are its bounds."""

    side: Literal["A", "B"]
    """The one that communicates."""
    mean_s: float
    low_s: float | None
    high_s: float | None
    step_s: float

    @property
    def share(self) -> float:
        return self.mean_s / self.step_s

    @classmethod
    def of(cls, side: Literal["A", "B"], step_s: float, silent_s: float, ratio: Ratio) -> Exposed:
        """That of a step which takes `ratio` times as long as the `silent_s` of the same ranks without communication:
        with R either bound of the ratio ``step * (1 - 1 / R)``."""
        low, high = (None if bound is None else step_s * (1 - 1 / bound) for bound in (ratio.low, ratio.high))
        return cls(side=side, mean_s=step_s - silent_s, low_s=low, high_s=high, step_s=step_s)


class Turns(Pair, frozen=True, kw_only=True):
    """A against B. `ratio`, and means and stds of `a` and `b`, are of all rounds that count. `a_judged` and `b_judged`
    count rounds in which each verdict held. `passing` says if A is slower than B by more than the share `by`; both are
    None if nobody asked."""

    rounds: tuple[Round, ...]
    a_judged: dict[str, int]
    b_judged: dict[str, int]
    level: float
    margin: float
    by: float | None = None
    passing: Passing | None = None

    @property
    def is_apart(self) -> bool:
        """True if each side of a round had a process of its own."""
        return any(each.is_apart for each in self.rounds)

    @property
    def counted(self) -> tuple[Round, ...]:
        return tuple(each for each in self.rounds if not each.note)

    @property
    def exposed(self) -> Exposed | None:
        """The communication of a side's steps that nothing hides; None unless the other is the same ranks without
        any."""
        a_s, b_s = (side.summary.mean_s if side.summary else None for side in (self.a, self.b))
        if self.ratio is None or a_s is None or b_s is None:
            return None
        if _is_without_communication(self.a.spec, self.b.spec):
            return Exposed.of("A", a_s, b_s, self.ratio)
        is_of_b = _is_without_communication(self.b.spec, self.a.spec)
        return Exposed.of("B", b_s, a_s, self.ratio.inverse) if is_of_b else None

    @property
    def communicating(self) -> Side:
        """The side whose `exposed` communication it is; without any, A."""
        return self.b if self.exposed and self.exposed.side == "B" else self.a


def turns_of(results: Sequence[tuple[Result, Result]], by: float | None = None) -> Turns:
    """The result of one round or more; one counts if both ended well in turns. With `by`, also if A is slower than B by
    more than this share: that cannot be told of a side whose time is not that of its work. Raises ValueError of no
    round."""
    if not results:
        raise ValueError("no rounds: expected at least one")
    rounds = rounds_found(results)
    counted = [both for both, each in zip(results, rounds, strict=True) if not each.note]
    sides = [[both[side] for both in counted or results] for side in (0, 1)]
    comparison = compare(*sides)
    (pair,) = comparison.pairs
    ratio = ratio_of_rounds(rounds)
    why_not = not_compared(*sides) if counted else f"A and B cannot be compared: {rounds[0].note}"
    explanation = f"{why_not}." if why_not else explain(ratio, more=_MORE)
    passed = None if by is None else "cannot tell" if why_not else passing(ratio, by)
    if by is not None:
        explanation = explanation if why_not else f"A takes {ratio} times as long as B, and may take {1 + by:g} times."
        explanation = f"{passed}: {explanation}"
    return Turns(
        a=pair.a,
        b=pair.b,
        rounds=rounds,
        ratio=ratio,
        outcome="ambiguous" if why_not else outcome(ratio),
        explanation=explanation,
        differs=(*comparison.notes, *pair.differs),
        a_judged=_judged(sides[0]),
        b_judged=_judged(sides[1]),
        level=ratio.level if ratio else LEVEL,
        margin=MARGIN,
        by=by,
        passing=passed,
    )


def is_decided(results: Sequence[tuple[Result, Result]], by: float) -> bool:
    """True if another round cannot change if A is slower than B by more than this share: the interval of all rounds
    says it, at the `FIRST_LOOK` or later, or the last round has a side that was not timed, or whose time is not that of
    its work."""
    last = results[-1]
    if not all(side.is_measured and not disqualified(side.cell) for side in last):
        return True
    return len(results) >= FIRST_LOOK and passing(ratio_of_rounds(rounds_found(results)), by) != "cannot tell"


def runs_in_turns(results: Sequence[Result]) -> tuple[tuple[tuple[Result, Result], ...], ...]:
    """The rounds of A and B among cells, in order, those of one pair of specs in one session together: neighbours that
    one process timed in turns and, where there are any, all others of these specs, which were to be rounds too."""
    alone = set(map(id, without_visits(results)))  # a race measures the same specs in turns and apart
    results = [each for each in results if each.cell.in_turns or id(each) in alone]
    pairs = [(a, b) for a, b in pairwise(results) if a.source == b.source and a.cell.cell + 1 == b.cell.cell]
    ran = [both for both in pairs if _took_turns(*both)]
    taken = {side for both in ran for side in both}
    found: dict[object, list[tuple[Result, Result]]] = {_asked(*both): [] for both in ran}
    for a, b in pairs:
        if _took_turns(a, b) or (_asked(a, b) in found and taken.isdisjoint((a, b))):
            taken |= {a, b}
            found[_asked(a, b)].append((a, b))
    return tuple(tuple(rounds) for rounds in found.values())


def rounds_found(results: Sequence[tuple[Result, Result]]) -> tuple[Round, ...]:
    """Each round as it came out."""
    return tuple(_round(number, *both) for number, both in enumerate(results, 1))


def ratio_of_rounds(rounds: Sequence[Round]) -> Ratio | None:
    """The ratio of all rounds that count; None where none does. Rounds of sides that are apart go on until the interval
    decides: after n of them its level is 1 - (1 - `LEVEL`) / n. So all looks together, from `FIRST_LOOK` on, are wrong
    on either side no more often than one interval at `LEVEL` is, as simulated over 100 rounds."""
    kept = [each for each in rounds if not each.note]
    looks = len(kept) if any(each.is_apart for each in kept) else 1
    return paired_ratio([each.pairs for each in kept], 1 - (1 - LEVEL) / looks)


def _is_without_communication(a: CellSpec, b: CellSpec) -> bool:
    """True if B is what A is on the same ranks, none of which waits for another."""
    as_b = msgspec.structs.replace(a, parallel=b.parallel, model_path=b.model_path)
    return a.ranks > 1 and (b.parallel, as_b) == ("none", b) != (a.parallel, as_b)


def _asked(a: Result, b: Result) -> tuple[int, CellSpec, CellSpec]:
    return a.source, a.spec, b.spec


def _took_turns(a: Result, b: Result) -> bool:
    is_one = a.cell.in_turns and b.cell.in_turns and a.cell.pid is not None and a.cell.pid == b.cell.pid
    return is_one or _are_apart(a, b)


def _are_apart(a: Result, b: Result) -> bool:
    """True of two cells that were queued as a round and have a process each."""
    is_round = a.cell.queued_in_turns and b.cell.queued_in_turns and a.cell.repeat == b.cell.repeat
    return is_round and a.spec != b.spec and None not in (a.cell.pid, b.cell.pid) and a.cell.pid != b.cell.pid


def _round(number: int, a: Result, b: Result) -> Round:
    a_ending, b_ending = _ending(a), _ending(b)
    is_apart = _are_apart(a, b)
    note = "; ".join(f"{name} {each}" for name, each in (("A", a_ending), ("B", b_ending)) if each)
    if a_ending == b_ending != "":
        note = f"A and B {a_ending}"
    elif not note and (
        (a.cell.pid != b.cell.pid and not is_apart) or len(a.cell.step_times_s) != len(b.cell.step_times_s)
    ):
        note = "A and B ran one after the other, not in turns"
    pairs: Pairs = () if note else tuple(zip(a.cell.step_times_s, b.cell.step_times_s, strict=True))
    return Round(
        number=number,
        began=any(side.cell.started_at is not None or side.cell.status in ("oom", "failed") for side in (a, b)),
        a=a.cell.summary(a.state.ddof) if a.is_measured else None,
        b=b.cell.summary(b.state.ddof) if b.is_measured else None,
        pairs=pairs,
        ratio=paired_ratio([pairs]) if pairs else None,
        note=note,
        is_apart=is_apart,
    )


def _ending(side: Result) -> str:
    """Why a side has no timing, after how many steps; empty when it has."""
    if side.is_measured:
        return ""
    error = side.cell.finished.error if side.cell.finished else side.cell.skipped_because
    timed = len(side.cell.step_times_s)
    return side.ending + (f" after {counted(timed, 'step')}" if timed else "") + (f": {error}" if error else "")


def _judged(side: Sequence[Result]) -> dict[str, int]:
    from cs336_tui.analysis.verdicts import judge  # loads numpy

    return dict(Counter(name for result in side if (found := judge(result.cell)) for name in found.names))
