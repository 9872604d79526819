"""The candidates of a search that can run on a target and fit it by prediction, and the others with the reason;
the plan before anything runs: candidates by prediction, rounds by forecast, the time limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from cs336_tui.analysis.estimates import Estimate, for_target, judge, judge_each, total_s
from cs336_tui.analysis.next_step import MOST_ROUNDS, first_round_s
from cs336_tui.analysis.targets import Target, target_here
from cs336_tui.analysis.tuning import Entry
from cs336_tui.config.axis import UserError
from cs336_tui.config.flops import step_flops
from cs336_tui.config.order import rough_peak_bytes
from cs336_tui.config.spec import AXES, CellSpec, SpecError
from cs336_tui.config.tuning import LeftOut, Space, Tuning, check_budget, check_goal, label, space_of
from cs336_tui.events.environment import DeviceInfo, Environment
from cs336_tui.events.events import TuningStarted
from cs336_tui.events.prediction import Prediction
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import gigabytes

_CORE_FLOPS = 256e9
"""FLOP/s of a core in fp32 at most: two fused multiply-adds of 16 numbers a cycle, 4 GHz."""
_MAY_MATTER = 0.5
"""Share of the limit below which a rough estimate of a peak is enough."""
_PREDICTING = 0.2
"""Share of the budget for predictions; candidates are then tried without."""
Refusal = Callable[[CellSpec], UserError | None]
"""Why a candidate cannot run on the target."""
Predict = Callable[[Sequence[CellSpec]], Mapping[CellSpec, Prediction]]
"""Predictions of those of these specs that can be predicted."""
PredictUntil = Callable[[Sequence[CellSpec], float], Mapping[CellSpec, Prediction]]
"""As `Predict`, of those that can be predicted until then, by `time.monotonic`."""


class Shortlist(Space, frozen=True, kw_only=True):
    """Candidates that a search tries on a target, the starting point first if it is one; `limit_bytes` is that of a
    peak. `predictions` are those that were looked at."""

    limit_bytes: int | None
    predictions: Mapping[CellSpec, Prediction]


def started_of(
    tuning: Tuning, environment: Environment, predict: PredictUntil, began: float | None = None
) -> TuningStarted:
    """The beginning of a race on a machine that has the device of the starting point, with the candidates that can run
    and fit. Its budget `began` then, by `time.monotonic`; None: now. Raises `SpecError` if the starting point is none
    of them, or alone."""
    began = time.monotonic() if began is None else began
    until = began + _PREDICTING * tuning.budget_s
    base = tuning.base
    environment.check(base)
    check_budget(tuning, _least_visit_s(base, environment))
    device = environment.device(base.device)
    assert device is not None, "the starting point can run here"
    target = target_here(device, environment)
    found = shortlist(tuning, target, environment.refusal, lambda specs: predict(specs, until))
    if base not in found.candidates:
        why = next(each.why for each in found.left_out if each.spec == base)
        raise SpecError("starting point", base.heading, f"{why}; choose one that can run")
    if len(found.candidates) < 2:
        raise SpecError("over", ", ".join(each.name for each in tuning.over), found.left_out[0].why)
    return TuningStarted(
        at=time.time(),
        tuning=tuning,
        candidates=found.candidates,
        left_out=found.left_out,
        limit_bytes=found.limit_bytes,
        spent_s=time.monotonic() - began,
    )


def _least_visit_s(spec: CellSpec, environment: Environment) -> float | None:
    """Seconds that the steps of a visit take at least on a CPU whose cores compute `_CORE_FLOPS`; None elsewhere, and
    of a user's own code."""
    if spec.device != "cpu" or spec.brings_own_code or spec.precision not in ("fp32", "tf32"):
        return None
    cores = min(spec.threads or environment.cpu_count, environment.cpu_count) * spec.ranks
    return spec.steps_s(step_flops(spec) / (min(cores, environment.cpu_count) * _CORE_FLOPS))


def shortlist(tuning: Tuning, target: Target, refusal: Refusal, predict: Predict, *, every: bool = False) -> Shortlist:
    """The candidates that can run and fit, by their predictions where these may matter, or all with `every`. Raises
    `SpecError` like `space_of`, for a goal that cannot be observed there, a limit that it does not have, and a budget
    shorter than a visit by forecast."""
    check_goal(tuning.goal, tuning.base.device)
    space = space_of(tuning)
    limit = limit_of_peak(tuning, target)
    refused = {spec: why for spec in space.candidates if (why := refusal(spec))}
    able = [spec for spec in space.candidates if spec not in refused]
    least = limit * _MAY_MATTER if limit else math.inf
    near = [spec for spec in able if every or _of_processes(rough_peak_bytes(spec), spec, target) >= least]
    if target.gpu and tuning.base in able and tuning.base not in near:
        near.append(tuning.base)
    predictions = {spec: for_target(found, target) for spec, found in predict(near).items()}
    if tuning.base in predictions:
        check_budget(tuning, judge(predictions[tuning.base], target, spec=tuning.base).run_low_s)
    left_out, found = list(space.left_out), []
    for spec in space.candidates:
        reason = str(refused.get(spec, ""))
        needed = needed_bytes(predictions[spec], target) if spec in predictions else 0
        if limit is not None and needed > limit:
            reason = f"by prediction it needs {gigabytes(needed)} GB, and the limit is {gigabytes(limit)} GB"
        if reason:
            left_out.append(LeftOut(label(tuning, spec), reason, spec))
        else:
            found.append(spec)
    return Shortlist(tuple(found), tuple(left_out), space.alike, limit_bytes=limit, predictions=predictions)


def limit_of_peak(tuning: Tuning, target: Target) -> int | None:
    """The most bytes that a candidate's peak may come to, as `needed_bytes` counts them; None is unknown. Raises
    `SpecError` if more is asked for than the target has."""
    capacity = target.capacity_bytes
    asked = tuning.within_bytes
    if asked is not None and capacity is not None and asked > capacity:
        raise SpecError("within", f"{gigabytes(asked)} GB", f"{target.name} has {gigabytes(capacity)} GB")
    shared = None if capacity is None else int(capacity * (tuning.within_share or 1.0))
    whole = None if capacity is None else capacity - (0 if target.kind == "cpu" else target.context_bytes)
    return min((limit for limit in (asked, shared, whole) if limit is not None), default=None)


def needed_bytes(prediction: Prediction, target: Target) -> int:
    """The peak by prediction: of a rank's tensors on a GPU; on a CPU of the processes of all ranks."""
    return _of_processes(prediction.peak_bytes, prediction.spec, target)


def lacking(device: DeviceInfo) -> Refusal:
    """Check of a device that need not be here: what it lacks, with as many of its kind as there are ranks."""

    def refusal(spec: CellSpec) -> SpecError | None:
        for field, axis in AXES.items():
            if axis.lacks and (why := axis.lacks(value := getattr(spec, field), device)):
                return SpecError(axis.name, value, why)
        return None

    return refusal


def _of_processes(tensors_bytes: int, spec: CellSpec, target: Target) -> int:
    process = target.context_bytes if target.kind == "cpu" else 0
    return (tensors_bytes + process) * (spec.ranks if target.shares_memory else 1)


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
    shortlist: Shortlist
    candidates: tuple[Planned, ...]
    left_out: tuple[tuple[LeftOut, int | None], ...]
    """Each with the bytes that it needs by prediction."""
    round_low_s: float | None
    round_high_s: float | None

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
    predicted = [(spec, found.predictions.get(spec)) for spec in found.candidates]
    estimates = judge_each(predicted, {target.device: target}, state)
    needed = {spec: needed_bytes(prediction, target) for spec, prediction in found.predictions.items()}
    planned = []
    for spec, estimate in zip(found.candidates, estimates, strict=True):
        rule = forecast_rule(tuning, spec, estimate.low_s if estimate else None)
        planned.append(Planned(spec, label(tuning, spec), estimate, needed.get(spec), rule))
    low_s, high_s = total_s(filter(None, estimates))
    left_out = tuple((each, needed.get(each.spec) if each.spec else None) for each in found.left_out)
    if None in estimates:
        high_s = None
    return Plan(tuning, target, found, tuple(planned), left_out, low_s, high_s)


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
