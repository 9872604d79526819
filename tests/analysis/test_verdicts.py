"""Verdicts: given if they hold, with a reason, never without evidence, and right on series of known truth, a part of
what `python -m benchmarks.verdicts` judges."""

import math
import time
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.verdicts import FLAT as FLAT_KINDS
from benchmarks.verdicts import (
    KINDS,
    LEAST_ACCEPTABLE,
    MOST_FALSE,
    MOST_HIDDEN,
    is_acceptable,
    is_hidden,
    outcomes,
    said,
)
from cs336_tui.analysis.judgement import SHAPES, Check, Judgement, VerdictName
from cs336_tui.analysis.measures import energy_of
from cs336_tui.analysis.verdicts import judge
from cs336_tui.events.environment import GpuProcess, GpuSample, HostSample
from cs336_tui.events.events import DeviceSampled
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import TOO_NOISY, is_too_noisy
from tests.analysis.judging import (
    AT,
    FLAT,
    GPU,
    ON_CPU,
    QUIET,
    SERIES,
    VERDICTS,
    a_cell,
    evidence,
    sample,
    series,
)
from tests.samples import a_spec, session_start, state_of


def noisy(spread: float, n: int = 20) -> list[float]:
    """Steps without any course, whose mean the noise leaves open."""
    return [0.1 * math.exp(spread * value) for value in np.random.default_rng(5).normal(size=n)]


def test_a_quiet_cell_is_steady_and_every_verdict_was_looked_for() -> None:
    found = judge(a_cell(FLAT, FLAT[:5], samples=[sample()] * 4))
    assert tuple(check.name for check in found.checks) == VERDICTS
    assert (found.names, found.label, found.is_doubted) == (("steady",), "steady", False)
    assert found.not_observable == ()
    assert found.sentence.startswith("steady: no change of 1 % or more in 60 steps (noise 0.")
    assert found.warmup_advice == "no warm-up step was needed"
    assert found.interval.low < np.mean(FLAT) < found.interval.high
    assert all(check.evidence for check in found.checks)


@pytest.mark.parametrize(
    ("truth", "name", "said"),
    [
        ("warm-up", "still-warming", "raise --warmup to "),
        ("drift", "drifting", "steps get gradually slower, by "),
        ("warm-up, throttle", "drifting", " on steps are 6.0 % slower"),
        ("bimodal", "two-levels", "describes neither"),
        ("two spikes", "outliers", "2 steps stand out, by up to "),
    ],
)
def test_the_series_is_told_as_it_is(truth: str, name: VerdictName, said: str) -> None:
    found = judge(a_cell(series(truth, 100), FLAT[:5], samples=[sample()]))
    assert name in found.names
    assert said in found.sentence
    assert found.is_doubted
    assert "steady" not in found.names
    if truth == "drift":  # told once, and no number of warm-up steps is given
        assert evidence(found, "drifting")[1].count("%") == 1
        assert "still-warming" not in found.names
        assert found.warmup_advice == "not known: the steps drift"


FALLING = [0.1 * (1 + 0.5 * math.exp(-step / 3)) for step in range(60)]


def test_a_warmup_that_is_asked_for_would_have_done() -> None:
    found = judge(a_cell(FALLING[2:], FALLING[:2]))
    advice = found.holding[0].advice
    needed = int(advice.removeprefix("raise --warmup to "))
    assert found.warmup_advice == f"still falling after 2; {needed} warm-up steps would have been enough"
    assert judge(a_cell(FALLING[needed:], FALLING[:needed])).names == ("steady",)


def test_warm_up_steps_of_other_work_were_not_just_enough() -> None:
    found = judge(a_cell(FLAT, [3.54 * time_s for time_s in FLAT[:5]]))
    assert found.warmup_advice.startswith("not known: steps go from "), found.warmup_advice


def test_no_fewer_warmup_steps_are_asked_for_than_the_measured_ones_show() -> None:
    """A first step that is very slow hides, beside it, how long the others go on to fall."""
    rng = np.random.default_rng(138)
    tau, size, noise = rng.uniform(2, 8), rng.uniform(0.05, 0.5), rng.choice([0.01, 0.03, 0.08])
    first = rng.uniform(1, 10)
    falling = [0.1 * (1 + size * math.exp(-step / tau)) * math.exp(noise * rng.normal()) for step in range(60)]
    found = judge(a_cell(falling[1:], [falling[0] * first]))
    holds, why = evidence(found, "still-warming")
    assert holds
    slow = int(why.removeprefix("the first ").split()[0])
    assert int(found.holding[0].advice.removeprefix("raise --warmup to ")) >= 1 + slow


@pytest.mark.parametrize(("most", "said"), [(2, "did not settle"), (50, "stopped too early")])
def test_an_automatic_warmup_that_was_not_enough_is_answered_with_a_number(most: int, said: str) -> None:
    by_hand = judge(a_cell(FALLING[2:], FALLING[:2])).holding[0].advice.removeprefix("raise --warmup to ")
    found = judge(a_cell(FALLING[2:], FALLING[:2], spec={"warmup_auto": True, "warmup_steps": most}))
    assert found.holding[0].advice == f"--warmup auto {said}; try --warmup {by_hand}"


@pytest.mark.parametrize(
    ("times_s", "spec", "advice"),
    [
        (noisy(0.4), {}, "more steps, such as --steps auto"),
        (noisy(0.4), {"steps_auto": 0.01}, "a quieter machine, or a larger --steps auto:MAX"),
        ([0.1] * 3, {"steps_for": 0.1, "measure_steps": 100_000, "warmup_for": 0.025, "warmup_steps": 100_000},
         "--steps above 100ms"),
    ],
)  # fmt: skip
def test_too_few_steps_are_not_answered_with_what_was_asked_for(
    times_s: list[float], spec: dict[str, Any], advice: str
) -> None:
    (check,) = (check for check in judge(a_cell(times_s, spec=spec)).holding if check.name == "too-few-steps")
    assert check.advice == advice
    assert check.evidence.startswith("95 % CI ± " if len(times_s) > 3 else "3 measured steps, and at least 10")


def test_a_mean_that_is_open_by_half_of_itself_is_not_fixed_and_an_interval_that_says_nothing_not_printed() -> None:
    found = judge(a_cell(noisy(0.8)))
    assert found.interval.half_share >= 0.5
    assert "95 % CI too wide (± " in found.sentence
    assert " % of the mean) with n=20 (more steps" in found.sentence
    found = judge(a_cell([*[0.001] * 6, 1.0, *[0.001] * 5]))
    assert is_too_noisy(found.interval.low, found.interval.high)
    assert "95 % CI too wide (too noisy) with n=12" in found.sentence
    assert found.interval.half_width == TOO_NOISY
    calm = judge(a_cell(noisy(0.01)))
    assert calm.interval.half_width == f"{calm.interval.half_share * 100:.2g}"


def test_steps_that_get_faster_throughout_ask_for_more_warmup() -> None:
    falling = [time_s * (1.1 - 0.1 * step / 99) for step, time_s in enumerate(series("flat", 100))]
    assert "raise --warmup well above 0" in judge(a_cell(falling)).sentence


def test_of_too_few_steps_nothing_else_is_said_of_the_series() -> None:
    found = judge(a_cell(FLAT[:4], samples=[sample()]))
    assert found.names == ("too-few-steps",)
    assert found.sentence == (
        "too-few-steps: 4 measured steps, and at least 10 are needed to tell whether they are steady (--steps 30)."
    )
    assert tuple(check.name for check in found.not_observable) == SERIES[:-1]
    assert judge(a_cell(FLAT[:9])).interval is None
    assert judge(a_cell(FLAT[:10])).interval is not None
    found = judge(a_cell([0.0] * 20))
    assert found.label == "too-few-steps"
    assert "not above 0" in found.sentence
    assert evidence(found, "launch-bound")[0] is None


def test_only_a_cell_that_ended_well_with_steps_is_judged() -> None:
    assert judge(a_cell(FLAT, status="cancelled")) is None
    assert judge(a_cell([], spec={"measure_steps": 1})) is None
    assert judge(state_of(session_start([a_spec()])).cells[0]) is None


@settings(deadline=None, max_examples=40)
@given(times_s=st.lists(st.just(0.0) | st.floats(1e-7, 1e4), min_size=1, max_size=40), gpu=st.booleans())
def test_something_holds_of_every_cell(times_s: list[float], gpu: bool) -> None:
    found = judge(a_cell(times_s, spec={} if gpu else ON_CPU))
    assert found.label
    assert found.is_doubted == (found.names not in (("steady",), ("steady", "launch-bound")))
    assert tuple(check.name for check in found.checks) == VERDICTS


def test_spikes_that_were_limited_are_owned_up_to_and_what_the_cell_remarked_stands_beside_its_number() -> None:
    spiky = [0.05 * (1.5 if step in (20, 40) else 1 + 0.001 * (step % 3)) for step in range(60)]
    found = judge(a_cell(spiky))
    assert "2 spikes were clipped for this analysis only; mean and std include them" in found.notes
    assert found.interval.mean == pytest.approx(np.mean(spiky))
    cell = a_cell(FLAT)
    cell.finished = msgspec.structs.replace(cell.finished, remarks=("stopped after 60 steps",))
    assert judge(cell).notes[0] == "stopped after 60 steps"


def test_a_long_cell_is_judged_quickly() -> None:
    cell = a_cell(series("warm-up, throttle", 10_000), series("warm-up", 20))
    judge(a_cell(FLAT))
    began = time.process_time()
    assert judge(cell).is_doubted
    assert time.process_time() - began < 3, "the mark is 1 s; `python -m benchmarks.judging` measures it"


def several_gpus(*others: GpuSample, at: float = AT, energy_j: float = 0.0) -> DeviceSampled:
    gpu = msgspec.structs.replace(GPU, energy_j=energy_j)
    return DeviceSampled(at=at, host=QUIET, gpu=gpu, other_gpus=others)


def test_gpus_of_all_ranks_are_judged() -> None:
    ranks = {"ranks": 3, "parallel": "ddp"}

    def of(*others: GpuSample) -> CellState:
        return a_cell(FLAT, samples=[several_gpus(*others)], spec=ranks)

    hot = msgspec.structs.replace(GPU, clock_reasons=("hw thermal slowdown",), sm_clock_mhz=900)
    throttled, said = evidence(judge(of(GPU, hot)), "throttled")
    assert throttled
    assert said == "hw thermal slowdown in 1 (GPU of rank 2) of 1 sample while measuring, SM clock down to 900 MHz"
    used = msgspec.structs.replace(GPU, other_processes=(GpuProcess(pid=7, name="other"),))
    assert evidence(judge(of(used, GPU)), "contended") == (True, "also on the GPU: other (7)")
    assert evidence(judge(of(GPU, GPU)), "throttled")[0] is False
    untold = GpuSample(uuid="GPU-lost")
    for name in ("throttled", "contended"):
        assert evidence(judge(of(GPU, untold)), name)[0] is None
    assert evidence(judge(of(GPU)), "throttled") == (None, "not every rank's GPU was sampled")


def test_energy_of_several_ranks_is_of_all_their_gpus() -> None:
    def at(seconds: float, *joules: float) -> DeviceSampled:
        others = (msgspec.structs.replace(GPU, energy_j=each) for each in joules[1:])
        return several_gpus(*others, at=AT + seconds, energy_j=joules[0])

    spec = {"ranks": 2, "parallel": "ddp", "batch_size": 4, "context_length": 128}
    found = energy_of(a_cell([2.0] * 10, samples=[at(0, 10, 500), at(10, 110, 900)], spec=spec))
    assert found.joules_per_step == 100
    assert found.tokens_per_joule == pytest.approx(2 * 4 * 128 / 100)


def test_noise_that_leaves_the_mean_loose_is_not_steady_and_a_series_that_goes_somewhere_not_too_short() -> None:
    found = judge(a_cell(noisy(0.5, 30)))
    assert ("too-few-steps" in found.names, "steady" in found.names) == (True, False)
    assert "95 % CI ± " in found.sentence
    assert "steady" in [check.name for check in found.not_observable] or "outliers" in found.names
    falling = judge(a_cell([0.1 * (1.5 - 0.5 * step / 59) for step in range(60)]))
    assert falling.interval.half_share > 0.05
    assert "too-few-steps" not in falling.names


def test_a_gradient_scaler_hides_whether_the_host_bounds_the_step_beside_which_a_profile_stands() -> None:
    spec = {"device": "cuda:0", "pass_": "train-step", "precision": "fp16-mixed"}
    cell = a_cell([0.010] * 20, spec=spec, host_share=0.95)
    assert evidence(judge(cell), "launch-bound")[0] is True
    assert "idle share is known once its kernels are profiled" in evidence(judge(cell), "launch-bound")[1]
    profiled = judge(cell, idle=0.37)
    assert "profiled, the GPU was idle for 37 % of a step" in evidence(profiled, "launch-bound")[1]
    cell.in_force = msgspec.structs.replace(cell.in_force, grad_scaler=True)
    holds, why = evidence(judge(cell), "launch-bound")
    assert (holds, "gradient scaler" in why) == (None, True)


@pytest.mark.parametrize(
    ("cores", "holds", "said"),
    [
        (0.1, False, "other processes used 0.1 cores around the time of measuring"),
        (1.5, None, "other processes used 1.5 cores around the time of measuring, into which no sample fell"),
    ],
)
def test_a_short_cell_is_judged_by_the_sample_after_it(cores: float, holds: bool | None, said: str) -> None:
    cell, host = a_cell(FLAT, spec=ON_CPU), HostSample(cpu=(cores + 1.0) / 4, cpu_count=4, child_cores=1.0)
    cell.surroundings.take(DeviceSampled(at=1e9, host=host), None)
    found = evidence(judge(cell), "contended")
    assert (found[0], said in found[1]) == (holds, True)


SEEDS = range(500, 508)


@pytest.mark.parametrize("steps", [30, 100, 1000])
def test_from_30_steps_on_verdicts_are_right(steps: int) -> None:
    found = [(name, each) for name in KINDS for each in outcomes(name, steps, SEEDS if steps < 1000 else SEEDS[:3])]
    right = [is_acceptable(name, case, verdicts) for name, (case, verdicts) in found]
    assert sum(right) >= LEAST_ACCEPTABLE * len(right)


def test_flat_series_raise_no_alarm() -> None:
    found = [verdicts for name in FLAT_KINDS for n in (10, 30, 100) for _, verdicts in outcomes(name, n, range(25))]
    alarms = [verdicts for verdicts in found if verdicts - {"steady", "too-few-steps"}]
    assert len(alarms) <= MOST_FALSE * len(found)


def test_ten_steps_are_not_called_steady_where_they_change_by_5_percent() -> None:
    large = [each for name in KINDS for each in outcomes(name, 10, range(30)) if each[0].change >= 0.05]
    assert len(large) > 200
    assert sum(is_hidden(*each) for each in large) <= MOST_HIDDEN * len(large)


def test_a_shift_within_ten_steps_is_drift_or_too_few() -> None:
    """Five steps near 50 ms, five near 53."""
    assert said([0.0500, 0.0502, 0.0499, 0.0501, 0.0498, 0.0530, 0.0532, 0.0529, 0.0531, 0.0528]) == {"drifting"}
    noisy = [0.0500, 0.0508, 0.0489, 0.0505, 0.0491, 0.0530, 0.0539, 0.0522, 0.0534, 0.0519]
    assert "steady" not in said(noisy)


def test_what_ten_steps_cannot_tell_is_too_few_steps_and_says_what_they_may_hide() -> None:
    found = judge(a_cell([0.050, 0.052, 0.049, 0.0515, 0.0505, 0.0485, 0.051, 0.0525, 0.0495, 0.0502]))
    assert found.names == ("too-few-steps",)
    assert "noise of 2.4 % in 10 measured steps may hide a change of 8.2 %" in found.sentence
    assert "--steps 30" in found.sentence


@pytest.mark.parametrize("shape", SHAPES)
def test_a_cause_comes_before_the_shape_that_it_gives_to_the_steps(shape: VerdictName) -> None:
    names: tuple[VerdictName, ...] = (shape, "contended", "launch-bound")
    checks = tuple(Check(name=name, holds=True, evidence="seen") for name in names)
    found = Judgement(checks=checks, notes=(), warmup_advice="", interval=None)
    assert [check.name for check in found.doubts_first] == ["contended", shape, "launch-bound"]
    assert found.label == f"contended, {shape}, launch-bound"
