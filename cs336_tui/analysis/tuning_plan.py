"""The plan of a search before anything runs: its candidates by prediction, its rounds by forecast, its time limit."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from cs336_tui.analysis.estimates import Estimate, judge_all, total_s
from cs336_tui.analysis.next_step import MOST_ROUNDS, first_round_s
from cs336_tui.analysis.shortlist import Shortlist, needed_bytes
from cs336_tui.analysis.targets import Target
from cs336_tui.analysis.tuning import Entry
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.tuning import LeftOut, Tuning, label
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState


class Planned(NamedTuple):
    """A candidate before it is visited. `estimate` is None, and with it `needed_bytes`, if it could not be
    predicted; `needed_bytes` is what the limit is held against."""

    spec: CellSpec
    label: str
    estimate: Estimate | None
    needed_bytes: int | None
    rule: TimeRule | None


class Plan(NamedTuple):
    """A round of all candidates: `round_low_s` and `round_high_s` are the forecast of its steps, without start-up and
    compiling, of those that are predicted; None is unknown."""

    tuning: Tuning
    target: Target
    candidates: tuple[Planned, ...]
    left_out: tuple[tuple[LeftOut, int | None], ...]
    """Each with the bytes that it needs by prediction."""
    limit_bytes: int | None
    round_low_s: float | None
    round_high_s: float | None
    alike: int = 0
    """As in `Space`."""

    @property
    def visits(self) -> int:
        """Visits of the first round, as far as the forecast tells: of all candidates, or of those for which there is
        time."""
        forecast = sum(each.estimate is not None for each in self.candidates)
        if not self.round_low_s or not forecast:
            return len(self.candidates)
        in_time = int(first_round_s(self.tuning) * forecast / self.round_low_s)
        return min(max(in_time, 1), len(self.candidates))

    @property
    def most_rounds(self) -> int | None:
        """Rounds of all candidates that the budget allows at most; None is unknown."""
        return min(int(self.tuning.budget_s / self.round_low_s), MOST_ROUNDS) if self.round_low_s else None


def plan_of(tuning: Tuning, found: Shortlist, target: Target, state: SessionState | None = None) -> Plan:
    """The plan on a target; `state` is a session whose measured cells tell how fast it is."""
    predicted = [spec for spec in found.candidates if spec in found.predictions]
    judged = judge_all([found.predictions[spec] for spec in predicted], target, state, predicted)
    estimates = dict(zip(predicted, judged, strict=True))
    needed = {spec: needed_bytes(prediction, target) for spec, prediction in found.predictions.items()}
    planned = []
    for spec in found.candidates:
        estimate = estimates.get(spec)
        rule = forecast_rule(tuning, spec, estimate.low_s if estimate else None)
        planned.append(Planned(spec, label(tuning, spec), estimate, needed.get(spec), rule))
    low_s, high_s = total_s(judged) if judged else (None, None)
    left_out = tuple((each, needed.get(each.spec) if each.spec else None) for each in found.left_out)
    return Plan(
        tuning,
        target,
        tuple(planned),
        left_out,
        found.limit_bytes,
        low_s,
        high_s if len(judged) == len(planned) else None,
        found.alike,
    )


class TimeRule(NamedTuple):
    """A whole run of a candidate within its limit, s. `steps_s` are its warm-up and measured steps; None is unknown, of
    a forecast it is the least. `start_s` is what comes before them but for compiling."""

    limit_s: float
    steps_s: float | None
    start_s: float | None = None
    compile_s: float | None = None

    @property
    def left_s(self) -> float | None:
        """Seconds that are left for compiling and autotuning, and for start-up where that is unknown."""
        return None if self.steps_s is None else self.limit_s - self.steps_s - (self.start_s or 0.0)


def forecast_rule(tuning: Tuning, spec: CellSpec, least_step_s: float | None) -> TimeRule | None:
    """The rule before anything ran: only the steps are known. None without a limit."""
    run = tuning.as_run(spec)
    return None if run.within is None else TimeRule(run.within, run.steps_s(least_step_s))


def measured_rule(tuning: Tuning, entry: Entry, cells: Sequence[CellState]) -> TimeRule | None:
    """The rule by a candidate's visits; None without a limit, and without a visit that ended well."""
    run = tuning.as_run(entry.spec)
    ended = [cell for cell in cells if cell.status == "ok" and not cell.in_turns]
    steps = [each.median_s for cell in ended if (each := cell.summary(1)) and each.median_s]
    starts = [cell.until_first_step_s for cell in ended if cell.until_first_step_s is not None]
    if run.within is None or not steps:
        return None
    compile_s = entry.compile_s or 0.0
    start_s = max(fmean(starts) - compile_s, 0.0) if starts else None
    return TimeRule(run.within, run.steps_s(fmean(steps)), start_s, compile_s)
