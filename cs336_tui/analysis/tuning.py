"""A race as its session tells it: who is in, by how much, and why the others are not. Pure functions of the session's
state, so that a resumed and a replayed race look as the live one did."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Literal, NamedTuple

from cs336_tui.analysis.agreement import Agreement, agreement, agreement_key
from cs336_tui.analysis.contention import waiting_share
from cs336_tui.analysis.measures import energy_of, largest, peak_bytes
from cs336_tui.analysis.referee import checked_word, disqualified
from cs336_tui.config.spec import CellSpec, SpecError
from cs336_tui.config.tuning import BUDGET_ENDED, NOT_AFFORDED, Goal, LeftOut, Tuning, label
from cs336_tui.events.reports import AgreementReport
from cs336_tui.session.state import SessionState, Visited, visits_of
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import gigabytes, is_too_noisy
from cs336_tui.stats.racing import SPREAD, InTurns, Standing, Visit, standings, visit_of

EntryStatus = Literal[
    "best", "tied", "in the race", "out", "cut", "differs", "disqualified", "over the limit", "oom", "failed",
    "skipped", "waiting", "not visited",
]  # fmt: skip
"""``tied``: not told apart from the best when the race ended; ``out``: worse than the best by its interval; ``cut``: it
could be best, but the budget does not allow another visit of it; ``differs``: its logits or gradients are not the
starting point's; ``disqualified``: its time is not that of its work (`referee`); ``skipped``: never tried, as another
candidate showed that it cannot run; ``waiting``: not visited yet, and may be in the first round; ``not visited``: it
will not be."""
BARRED: Collection[EntryStatus] = ("differs", "disqualified", "over the limit", "oom", "failed", "skipped")
"""Statuses of those that cannot be best, whatever their steps take."""
NO_START = "the starting point could not be measured"
_MEMORY_SPREAD = 0.002
"""Standard deviation of log peaks that is assumed for goal ``memory``: they hardly vary."""
_SAME_WORK = Agreement(True, "logits and gradients are computed as the starting point's")
_agreement = lru_cache(maxsize=512)(agreement)


class Entry(NamedTuple):
    """A candidate in the race. `ratio` is its cost over the starting point's with a simultaneous interval, which is
    None of one visit, where it is too noisy to say something, and of the starting point itself; `cost` is in the unit
    of the goal; each is None before it is known. `why` says why it is not in the race or, of the best, why its results
    may be wrong."""

    number: int
    spec: CellSpec
    label: str
    status: EntryStatus
    ratio: float | None
    low: float | None
    high: float | None
    cost: float | None
    visits: int
    cells: tuple[int, ...]
    """The session's cells that are its visits, turns among them."""
    peak_bytes: int | None
    compile_s: float | None
    agreement: Agreement | None
    """None while it is not checked."""
    why: str = ""

    @property
    def is_alive(self) -> bool:
        return self.status in ("best", "tied", "in the race", "waiting")


class Race(NamedTuple):
    """A race, its entries best first, then those that are out."""

    tuning: Tuning
    entries: tuple[Entry, ...]
    left_out: tuple[LeftOut, ...]
    limit_bytes: int | None
    rounds: int
    """Rounds that were begun; without turns."""
    began_at: float
    spent_s: float
    """Seconds of the budget that are used, as far as the session tells."""
    ended: str
    """The reason of its end; empty while it goes on."""
    standings: tuple[Standing, ...] = ()
    """Of those that could be best and those that are worse or differ, best first."""

    @property
    def best(self) -> Entry | None:
        """None before one was measured."""
        return next((entry for entry in self.entries if entry.status == "best"), None)

    @property
    def start(self) -> Entry:
        """The starting point."""
        return next(entry for entry in self.entries if entry.number == 0)


def race_of(state: SessionState) -> Race | None:
    """The session's race; None if it has none."""
    begun = state.tuning
    if begun is None:
        return None
    tuning, visited = begun.tuning, visits_of(state)
    checks = checks_of(state)
    visits = dict(sorted(_measured(visited, tuning.goal)))  # in the order in which they ran
    lost = {n: found for n, cells in visited.items() if (found := _lost(cells, visits, tuning.goal, begun.limit_bytes))}
    barred = {number for number, check in checks.items() if check and check.agrees is False} | lost.keys() & {0}
    kept = [visit for visit in visits.values() if visit.candidate == 0 or visit.candidate not in lost]
    standings_: tuple[Standing, ...] = ()
    if any(visit.candidate == 0 for visit in kept):  # the reference, even if it cannot be best
        spread, turns = _MEMORY_SPREAD if tuning.goal == "memory" else SPREAD, tuple(_in_turns(visited, tuning.goal))
        standings_ = standings(kept, turns, barred=barred, spread=spread)
    rounds = max((cell.repeat for cells in visited.values() for cell in solo(cells)), default=0)
    in_last = {number for number, cells in visited.items() if any(cell.repeat == rounds for cell in solo(cells))}
    best = _best(standings_, in_last, {*barred, *lost})
    end = state.races[-1].ended
    is_over = end is not None
    ranked, entries = {each.candidate: each for each in standings_}, []
    for number, spec in enumerate(begun.candidates):
        cells, standing = visited.get(number, ()), ranked.get(number)
        measured = [cell for cell in cells if cell.status == "ok"]
        alone = list(solo(measured))
        low, high = (standing.low, standing.high) if standing and number else (None, None)
        if low is not None and high is not None and is_too_noisy(low, high):
            low = high = None
        costs = [visits[cell.cell].cost for cell in alone if cell.cell in visits]
        compiled = [cell.prepared.compile_s for cell in measured if cell.prepared and cell.prepared.compile_s]
        entry = Entry(
            number=number,
            spec=spec,
            label=label(tuning, spec),
            status="waiting",
            ratio=standing.ratio if standing else None,
            low=low,
            high=high,
            cost=fmean(costs) if costs else None,
            visits=len(measured),
            cells=tuple(cell.cell for cell in cells),
            peak_bytes=largest(map(visit_peak_bytes, alone)),
            compile_s=fmean(compiled) if compiled else None,
            agreement=checks[number],
        )
        if number in lost:
            status, why = lost[number]
        elif number == best:
            doubts = (_doubt(entry.agreement, is_over=is_over), _unequal_checks(cells, visited.get(0, ())))
            status, why = "best", "; ".join(filter(None, doubts))
        elif standing is None and number not in barred and (is_over or rounds > 1):
            cut_off = (cell.skipped_because for cell in cells if cell.skipped_because)
            status, why = "not visited", next(cut_off, NOT_AFFORDED if standings_ else NO_START)
        else:
            status, why = _status(entry, standing, barred, in_last=number in in_last, is_over=is_over)
        entries.append(entry._replace(status=status, why=why))
    entries.sort(key=_place)
    return Race(
        tuning=tuning,
        entries=tuple(entries),
        left_out=begun.left_out,
        limit_bytes=begun.limit_bytes,
        rounds=rounds,
        began_at=begun.at - begun.spent_s,
        spent_s=state.races[-1].spent_s,
        ended=end.reason if end else "",
        standings=standings_,
    )


def visit_peak_bytes(cell: CellState) -> int | None:
    """The peak of a visit; None in turns, which have a peak of both."""
    return None if cell.in_turns else peak_bytes(cell)


def solo(cells: Sequence[CellState]) -> Iterator[CellState]:
    """The visits that were not in turns."""
    return (cell for cell in cells if not cell.in_turns)


def checks_of(state: SessionState) -> dict[int, Agreement | None]:
    """The comparison of each candidate with the starting point; None while there is none."""
    assert state.tuning is not None
    base, *_ = candidates = state.tuning.candidates
    made = {
        report.spec: report.content if isinstance(report.content, AgreementReport) else report.error or report.status
        for report in state.reports.values()
        if report.kind == "agreement" and report.status not in (None, "cancelled")
    }
    found: dict[int, Agreement | None] = {}
    for number, spec in enumerate(candidates):
        try:
            key, of_base = agreement_key(spec, base), agreement_key(base, base)
        except SpecError as error:
            found[number] = Agreement(None, f"could not be checked: {error}")
            continue
        own, start = made.get(key), made.get(of_base)
        found[number] = _SAME_WORK if key == of_base else _agreement(own, start) if own and start else None
    return found


def unchecked(state: SessionState, numbers: Sequence[int]) -> tuple[CellSpec, ...]:
    """The reports that are still needed to compare these candidates with the starting point."""
    assert state.tuning is not None
    base, checks = state.tuning.candidates[0], checks_of(state)
    wanted = [state.tuning.candidates[number] for number in numbers if checks[number] is None]
    done = ("ok", "oom", "failed", "killed")
    made = {report.spec for report in state.reports.values() if report.kind == "agreement" and report.status in done}
    keys = dict.fromkeys(agreement_key(spec, base) for spec in ([base, *wanted] if wanted else ()))
    return tuple(key for key in keys if key not in made)


def _measured(visited: Visited, goal: Goal) -> Iterator[tuple[int, Visit]]:
    """The measurements, by their cells. One in which threads waited for a core is that less certain: in another they
    may wait less."""
    for number, cells in visited.items():
        for cell in solo(cells):
            if cell.status == "ok" and (costs := _costs(cell, goal)):
                visit = visit_of(number, cell.repeat, costs)
                waited = (waiting_share(cell) or 0.0) if goal != "memory" else 0.0
                yield cell.cell, visit._replace(error=math.hypot(visit.error, waited))


def _costs(cell: CellState, goal: Goal) -> Sequence[float]:
    """The costs of a finished visit's steps in the unit of the goal, or its one cost where steps have none of their
    own; empty if it is unknown."""
    if goal == "memory":
        return [peak] if (peak := visit_peak_bytes(cell)) else []
    if goal == "tokens/J":
        return [1 / per_joule] if (per_joule := energy_of(cell).tokens_per_joule) else []
    return [time_s * _per_step(cell, goal) for time_s in cell.step_times_s]


def _in_turns(visited: Visited, goal: Goal) -> Iterator[InTurns]:
    """The rounds in turns of each pair of candidates that both ended well."""
    by_process: dict[tuple[int, float], list[tuple[int, CellState]]] = {}
    for number, cells in visited.items():
        for cell in cells:
            if cell.in_turns and cell.status == "ok" and cell.pid is not None and cell.started_at is not None:
                by_process.setdefault((cell.pid, cell.started_at), []).append((number, cell))
    rounds: dict[tuple[int, int], list[tuple[tuple[float, float], ...]]] = {}
    for sides in by_process.values():
        if len(sides) == 2:
            (a, of_a), (b, of_b) = sorted(sides, key=lambda side: side[0])
            costs = ([time_s * _per_step(cell, goal) for time_s in cell.step_times_s] for cell in (of_a, of_b))
            rounds.setdefault((a, b), []).append(tuple(zip(*costs, strict=False)))
    for (a, b), pairs in rounds.items():
        yield InTurns(a, b, tuple(pairs))


def _per_step(cell: CellState, goal: Goal) -> float:
    """The cost of a second of its step."""
    tokens = cell.spec.tokens_per_step * cell.spec.ranks
    return 1 / tokens if goal == "tokens/s" and tokens else 1.0


def _lost(
    cells: Sequence[CellState], visits: Collection[int], goal: Goal, limit_bytes: int | None
) -> tuple[EntryStatus, str] | None:
    """The status and reason of a candidate that cannot be best, whatever its steps take."""
    for cell in solo(cells):
        end = cell.finished
        if cell.status in ("oom", "failed", "killed"):
            why = end.error if end and end.error else cell.status
            if cell.status == "killed" and "timeout" in why:
                why = f"{why}; a longer budget gives it more time"
            return ("oom" if cell.status == "oom" else "failed"), why
        if cell.status == "skipped" and not was_cut_off(cell):
            return "skipped", cell.skipped_because or ""
        if cell.status == "ok" and cell.cell not in visits:
            return "failed", energy_of(cell).why if goal == "tokens/J" else "its cost could not be read"
        if why := disqualified(cell):
            return "disqualified", why
        peak = visit_peak_bytes(cell)
        if limit_bytes is not None and peak is not None and peak > limit_bytes:
            over = f"its peak of {gigabytes(peak)} GB is over the limit of {gigabytes(limit_bytes)} GB"
            return "over the limit", over
    return None


def was_cut_off(cell: CellState) -> bool:
    """True of a visit that the budget did not allow."""
    return cell.status == "skipped" and (cell.skipped_because or "").startswith(BUDGET_ENDED)


def _best(found: Sequence[Standing], in_last: Collection[int], excluded: Collection[int]) -> int | None:
    """The first that may be best among those of the last round, whose cost is known best; else among all."""
    allowed = [each.candidate for each in found if each.candidate not in excluded]
    return next((number for number in allowed if number in in_last), allowed[0] if allowed else None)


def _doubt(check: Agreement | None, *, is_over: bool) -> str:
    """Why the logits and gradients of the best are not known to be right; empty if they are, and while a check may
    follow."""
    if check is None:
        return "its logits and gradients may differ: they were not checked" if is_over else ""
    return "" if check.agrees else f"its logits and gradients may differ: {check.why}"


def _unequal_checks(best: Sequence[CellState], start: Sequence[CellState]) -> str:
    """Says that the results of one were checked, and the other's were not; empty if they are alike, or not known."""
    own, other = (
        {checked_word(cell) for cell in cells if cell.finished and cell.finished.audit} for cells in (best, start)
    )
    unequal = own and other and ("checked" in own) != ("checked" in other)
    return (
        f"its results are {', '.join(sorted(own))}, the starting point's {', '.join(sorted(other))}" if unequal else ""
    )


def _status(
    entry: Entry, standing: Standing | None, barred: Collection[int], *, in_last: bool, is_over: bool
) -> tuple[EntryStatus, str]:
    """Of a candidate that is not lost and not the best."""
    if entry.number in barred:
        return "differs", entry.agreement.why if entry.agreement else ""
    if standing is None:
        return "waiting", ""
    if standing.is_out:
        return "out", f"{standing.behind - 1:+.1%} of the best"
    if not in_last:
        return "cut", "the budget does not allow another visit of it"
    return ("tied" if is_over else "in the race"), ""


_ORDER = {"best": 0, "tied": 1, "in the race": 1, "cut": 2, "out": 3, "differs": 4, "waiting": 6, "not visited": 7}


def _place(entry: Entry) -> tuple[int, float, int]:
    return _ORDER.get(entry.status, 5), entry.ratio or 0.0, entry.number
