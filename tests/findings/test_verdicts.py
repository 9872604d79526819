"""Each verdict holds where it should, says why, and is never given where it cannot be known."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.steady_state import Condition, synthetic
from cs336_tui.events import DeviceSampled, Event, GpuProcess, GpuSample, HostSample, StageChanged, StepsTimed
from cs336_tui.findings.verdicts import Judgement, VerdictName, judge
from cs336_tui.session.cell_state import CellState
from tests.samples import START, a_spec, cell_end, cell_start, session_start, state_of

QUIET = HostSample(cpu=0.5, cpu_count=4, child_cores=1.9, load_1m=2.0, steal=0.0)
GPU = GpuSample(sm_clock_mhz=1980, clock_reasons=(), energy_j=0.0, other_processes=())
AT = START + 11
"""When a made cell begins to measure."""


def sample(host: HostSample = QUIET, gpu: GpuSample | None = GPU, at: float = AT, why: str | None = None) -> Event:
    return DeviceSampled(at=at, host=host, gpu=gpu, why=why)


def events_of_cell(
    times_s: Sequence[float],
    warmup_s: Sequence[float] = (),
    *,
    samples: Iterable[Event] = (),
    before: Iterable[Event] = (),
    host_share: float = 0.3,
    spec: dict[str, Any] | None = None,
    **end: Any,
) -> list[Event]:
    """A session of one cell, with device samples within its window and `before` it."""

    def timed(kind: str, times: Sequence[float]) -> list[Event]:
        host = tuple(host_share * time_s for time_s in times)
        phases = {"forward": tuple(0.9 * time_s for time_s in times)}
        steps = StepsTimed(at=AT, cell=0, kind=kind, first=0, times_s=tuple(times), phases_s=phases, host_s=host)
        return [steps] if times else []

    return [
        *session_start([a_spec(**({"warmup_steps": len(warmup_s), "measure_steps": len(times_s)} | (spec or {})))]),
        *cell_start(0),
        StageChanged(at=AT - 0.3, cell=0, stage="warm-up"),
        *timed("warm-up", warmup_s),
        *before,
        StageChanged(at=AT, cell=0, stage="measuring"),
        *samples,
        *timed("measured", times_s),
        StageChanged(at=AT + 60, cell=0, stage="finishing"),
        cell_end(0, **({"num_alloc_retries": 0, "measured_for_s": math.fsum(times_s), "cpu_wait_s": 0.0} | end)),
    ]


def a_cell(times_s: Sequence[float], warmup_s: Sequence[float] = (), **more: Any) -> CellState:
    return state_of(events_of_cell(times_s, warmup_s, **more)).cells[0]


def judged(cell: CellState) -> Judgement:
    judgement = judge(cell)
    assert judgement is not None
    return judgement


def series(truth: str, steps: int = 60, noise: float = 0.005, seed: int = 1) -> list[float]:
    return synthetic(Condition(truth, noise, 0.0), seed, steps).tolist()


FLAT = series("flat")
ON_CPU = {"device": "cpu", "threads": 4}


def evidence(judgement: Judgement, name: VerdictName) -> tuple[bool | None, str]:
    (check,) = (check for check in judgement.checks if check.name == name)
    return check.holds, check.evidence


SERIES: tuple[VerdictName, ...] = ("steady", "still-warming", "drifting", "two-levels", "outliers", "too-few-steps")
VERDICTS = (*SERIES, "throttled", "contended", "launch-bound", "allocator-retry")


def test_a_quiet_cell_is_steady_and_every_verdict_was_looked_for() -> None:
    found = judged(a_cell(FLAT, FLAT[:5], samples=[sample()] * 4))
    assert tuple(check.name for check in found.checks) == VERDICTS
    assert (found.names, found.label, found.is_doubted, found.not_observable) == (("steady",), "steady", False, ())
    assert found.sentence.startswith("steady: no change of 1 % or more shows in 60 steps, with 0.")
    assert found.warmup_advice == "no warm-up step was needed"
    assert found.interval is not None
    assert found.interval.low < np.mean(FLAT) < found.interval.high
    assert all(check.evidence for check in found.checks)


@pytest.mark.parametrize(
    ("truth", "name", "said"),
    [
        ("warm-up", "still-warming", "raise --warmup to "),
        ("drift", "drifting", "steps get gradually slower, by "),
        ("warm-up, throttle", "drifting", " on steps are 5.5 % slower"),
        ("bimodal", "two-levels", "describes neither"),
        ("two spikes", "outliers", "2 steps stand out, by up to "),
    ],
)
def test_the_series_is_told_as_it_is(truth: str, name: VerdictName, said: str) -> None:
    found = judged(a_cell(series(truth, 100), FLAT[:5], samples=[sample()]))
    assert name in found.names
    assert said in found.sentence
    assert found.is_doubted
    assert "steady" not in found.names


def test_a_warmup_that_is_asked_for_would_have_done() -> None:
    falling = [0.1 * (1 + 0.5 * math.exp(-step / 3)) for step in range(60)]
    found = judged(a_cell(falling[2:], falling[:2]))
    advice = found.holding[0].advice
    needed = int(advice.removeprefix("raise --warmup to "))
    assert found.warmup_advice == f"still falling after 2; {needed} warm-up steps would have been enough"
    assert judged(a_cell(falling[needed:], falling[:needed])).names == ("steady",)


@pytest.mark.parametrize(("most", "said"), [(2, "did not settle"), (50, "stopped too early")])
def test_an_automatic_warmup_that_was_not_enough_is_answered_with_a_number(most: int, said: str) -> None:
    falling = [0.1 * (1 + 0.5 * math.exp(-step / 3)) for step in range(60)]
    by_hand = judged(a_cell(falling[2:], falling[:2])).holding[0].advice.removeprefix("raise --warmup to ")
    found = judged(a_cell(falling[2:], falling[:2], spec={"warmup_auto": True, "warmup_steps": most}))
    assert found.holding[0].advice == f"--warmup auto {said}; try --warmup {by_hand}"


def test_of_steps_that_drift_no_number_of_warmup_steps_is_given() -> None:
    found = judged(a_cell(series("drift", 100), FLAT[:5]))
    assert "still-warming" not in found.names
    assert found.warmup_advice == "not known: the steps drift"


def noisy(spread: float, n: int = 20) -> list[float]:
    """Steps without any course, whose mean the noise leaves open."""
    return [0.1 * math.exp(spread * value) for value in np.random.default_rng(5).normal(size=n)]


def test_too_few_automatic_steps_are_not_answered_with_automatic_steps() -> None:
    for automatic, advice in ((None, "more steps, such as --steps auto"),
                              (0.01, "a quieter machine, or a larger --steps auto:MAX")):  # fmt: skip
        found = judged(a_cell(noisy(0.4), spec={"steps_auto": automatic, "measure_steps": 20}))
        (check,) = (check for check in found.holding if check.name == "too-few-steps")
        assert (check.advice, " fix the mean to ± " in check.evidence) == (advice, True)


def test_a_mean_that_is_open_by_half_of_itself_is_not_fixed() -> None:
    found = judged(a_cell(noisy(0.8)))
    assert found.interval is not None
    assert found.interval.half_share >= 0.5
    assert "20 measured steps do not fix the mean (± " in found.sentence


def test_a_drift_is_told_once() -> None:
    found = judged(a_cell(series("drift", 100)))
    assert evidence(found, "drifting")[1].count("%") == 1


def test_steps_that_get_faster_throughout_ask_for_more_warmup() -> None:
    falling = [time_s * (1.1 - 0.1 * step / 99) for step, time_s in enumerate(series("flat", 100))]
    assert "raise --warmup well above 0" in judged(a_cell(falling)).sentence


def test_of_too_few_steps_nothing_else_is_said_of_the_series() -> None:
    found = judged(a_cell(FLAT[:4], samples=[sample()]))
    assert found.names == ("too-few-steps",)
    assert found.sentence == (
        "too-few-steps: 4 measured steps, and at least 10 are needed to tell whether they are steady (--steps 30)."
    )
    assert tuple(check.name for check in found.not_observable) == SERIES[:-1]
    assert judged(a_cell(FLAT[:2])).interval is None


def test_times_of_nothing_are_no_series() -> None:
    found = judged(a_cell([0.0] * 20))
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
    found = judged(a_cell(times_s, spec={} if gpu else ON_CPU))
    assert found.label
    assert found.is_doubted == (found.names not in (("steady",), ("steady", "launch-bound")))
    assert tuple(check.name for check in found.checks) == VERDICTS


def hot(*reasons: str, clock: int = 1200) -> Event:
    return sample(gpu=GpuSample(sm_clock_mhz=clock, clock_reasons=reasons, other_processes=()))


def test_thermal_and_hardware_clock_events_are_blamed_with_their_clocks() -> None:
    found = judged(a_cell(FLAT, samples=[hot("hardware thermal"), hot("idle"), sample()], before=[sample()]))
    assert found.names == ("steady", "throttled")
    assert found.label == "throttled, steady"
    assert found.sentence.startswith("throttled: hardware thermal in 1 of 3 samples")
    assert "steady" not in found.sentence
    assert "hardware thermal in 1 of 3 samples of the window, SM clock down to 1200 MHz from 1980 MHz" in found.sentence


def test_a_power_cap_alone_is_noted_and_not_blamed() -> None:
    found = judged(a_cell(FLAT, samples=[hot("software power cap")] * 3 + [sample()]))
    assert evidence(found, "throttled")[0] is False
    assert "software power cap in 3 of 4 samples of the window: usual at full load, not blamed" in found.notes


def test_clock_events_outside_of_the_window_are_not_the_cells() -> None:
    found = judged(a_cell(FLAT, samples=[sample()], before=[hot("hardware thermal")]))
    assert evidence(found, "throttled")[0] is False


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"spec": ON_CPU, "samples": [sample()]}, "only NVIDIA GPUs report clock events"),
        ({}, "no device sample fell into the 3.0 s of measuring"),
        ({"samples": [sample(gpu=None, why="NVML is switched off")]}, "NVML is switched off"),
        ({"samples": [sample(gpu=GpuSample(sm_clock_mhz=1))]}, "NVML told no clock events"),
    ],
)
def test_throttling_that_was_not_looked_for_is_not_ruled_out(more: dict[str, Any], why: str) -> None:
    assert evidence(judged(a_cell(FLAT, measured_for_s=3.0, **more)), "throttled") == (None, why)


def host(**changes: Any) -> Event:
    return sample(HostSample(**({name: getattr(QUIET, name) for name in QUIET.__struct_fields__} | changes)))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"samples": [sample(gpu=GpuSample(other_processes=(GpuProcess(pid=7, name="python"), GpuProcess(pid=9))))]},
         "also on the GPU: python (7), process 9 (stop what else uses the GPU"),
        ({"cpu_wait_s": 0.3}, "the cell waited for a core for 10 % of the 3.0 s of measuring (repeat it when nothing"),
        ({"spec": ON_CPU, "cpu_wait_s": 3.0}, "each of its 4 threads waited for a core for 25 % of the 3.0 s"),
        ({"spec": ON_CPU, "cpu_wait_s": 0.31, "longest_cpu_wait_s": 0.3},
         "its longest-waiting thread waited for a core for 10 % of the 3.0 s of measuring (repeat it when nothing"),
        ({"longest_cpu_wait_s": 0.3}, "its longest-waiting thread waited for a core for 10 % of the 3.0 s"),
        ({"spec": ON_CPU, "samples": [host(cpu=1.0, child_cores=3.0)], "usable_cores": 2},
         "others used 1.0 of 4 cores, with 4.0 in use in all, while the cell may use 2 only"),
        ({"spec": ON_CPU, "samples": [host(cpu=1.0, child_cores=3.0)]}, "others used 1.0 of 4 cores, with 4.0 in use"),
        ({"samples": [host(steal=0.08)]}, "the hypervisor gave 8.0 % of the cores' time to others"),
        ({"spec": ON_CPU, "samples": [host(load_1m=9.5)]}, "a load of 9.5 on 4 cores, 4 of it the cell's own at most"),
    ],
)  # fmt: skip
def test_whoever_took_the_gpu_or_the_cores_is_named(more: dict[str, Any], said: str) -> None:
    more = {"measured_for_s": 3.0, "samples": [sample()], "spec": {"threads": 4}} | more
    events = [_with_threads(event) for event in events_of_cell(FLAT, **more)]
    found = judged(state_of(events).cells[0])
    assert found.names == ("steady", "contended")
    assert said in found.sentence


def _with_threads(event: Event, threads: int = 4) -> Event:
    """Sample cells say 32 threads of themselves."""
    if hasattr(event, "in_force"):
        return msgspec.structs.replace(event, in_force=msgspec.structs.replace(event.in_force, threads=threads))
    return event


def test_more_threads_than_cores_contend_with_each_other() -> None:
    found = judged(a_cell(FLAT, spec=ON_CPU, samples=[sample()], measured_for_s=3.0, cpu_wait_s=48.0))
    said = "each of its 32 threads waited for a core for 50 % of the 3.0 s of measuring, with 32 threads on 4 cores"
    assert said in found.sentence
    assert found.holding[-1].advice == "--threads 4"
    found = judged(a_cell(FLAT, spec=ON_CPU, measured_for_s=3.0, longest_cpu_wait_s=2.5, usable_cores=3))
    assert "for 83 % of the 3.0 s of measuring, with 32 threads on 3 cores" in found.sentence
    assert found.holding[-1].advice == "--threads 3"


def test_many_threads_that_wait_a_little_each_are_no_contention() -> None:
    """Threads that wait in turns add up to much, while no step waits for more than its slowest."""
    more = {"measured_for_s": 3.0, "cpu_wait_s": 3.0, "longest_cpu_wait_s": 0.1}
    for spec in ({}, ON_CPU):
        holds, said = evidence(judged(a_cell(FLAT, spec=spec, samples=[sample()], **more)), "contended")
        assert holds is False
        assert "its longest-waiting thread waited for a core for 3.3 % of the 3.0 s of measuring" in said


@pytest.mark.parametrize(
    ("busy", "holds"),
    [
        ({"cpu": 0.55, "child_cores": 1.0}, None),  # 2.2 of 4 cores: whether among the two is not told
        ({"cpu": 0.55, "child_cores": 2.1}, False),
        ({"cpu": 0.45, "child_cores": 1.0}, False),  # 1.8 of 4: of any two one is free at times
        ({"cpu": 0.99, "child_cores": 2.0}, True),
    ],
)
def test_others_cores_may_be_ones_that_the_cell_may_not_use(busy: dict[str, float], holds: bool | None) -> None:
    more = {"spec": ON_CPU, "cpu_wait_s": None, "measured_for_s": 3.0, "usable_cores": 2}
    found = evidence(judged(a_cell(FLAT, samples=[host(**busy)], **more)), "contended")
    assert found[0] is holds
    assert "while the cell may use 2 only" in found[1]


def listed(after_s: float, age_s: float | None, *others: GpuProcess) -> Event:
    return sample(gpu=GpuSample(clock_reasons=(), other_processes=others, processes_age_s=age_s), at=AT + after_s)


STRANGER = GpuProcess(pid=7, name="python")


@pytest.mark.parametrize(
    ("within", "after", "found"),
    [
        ([listed(0.5, 0.9)], [], (None, "which processes use the GPU was read before the window only, while the")),
        ([listed(0.5, 0.9, STRANGER)], [], (None, "which processes use the GPU was read before the window only")),
        ([listed(0.5, 0.9), listed(2.5, 0.0)], [], (False, "nobody else on the GPU in 1 sample of the window")),
        ([listed(0.5, 0.9)], [listed(60.1, 0.0)], (False, "nobody else on the GPU right after the window")),
        ([], [listed(60.1, 0.0)], (False, "nobody else on the GPU right after the window")),
        ([], [listed(60.1, 0.0, STRANGER)], (True, "also on the GPU right after the window: python (7)")),
        ([listed(2.5, 0.0)], [listed(60.1, 0.0, STRANGER)], (True, "also on the GPU right after the window: python")),
        ([listed(2.5, 0.0, STRANGER)], [listed(60.1, 0.0)], (True, "also on the GPU: python (7)")),
        ([], [listed(70.0, 0.0)], (None, "no device sample fell into the 3.0 s of measuring, while the host was")),
    ],
)
def test_a_list_of_processes_tells_of_the_window_that_it_was_read_in(
    within: list[Event], after: list[Event], found: tuple[bool | None, str]
) -> None:
    events = events_of_cell(FLAT, samples=within, measured_for_s=3.0)
    holds, said = evidence(judged(state_of([*events, *after]).cells[0]), "contended")
    assert (holds, said[: len(found[1])]) == found


def test_of_another_gpu_nothing_is_concluded() -> None:
    gpu = msgspec.structs.replace(GPU, uuid="GPU-9", clock_reasons=("hardware thermal",), other_processes=(STRANGER,))
    found = judged(a_cell(FLAT, samples=[sample(gpu=gpu)]))
    for name in ("throttled", "contended"):
        holds, said = evidence(found, name)
        assert holds is None
        assert said.startswith("another GPU than cuda:0 was sampled, GPU-9")


@pytest.mark.parametrize(
    "busy",
    [host(cpu=1.0, child_cores=3.9), host(cpu=0.6, child_cores=1.4), host(load_1m=5.0), host(steal=0.04)],
)
def test_a_host_that_is_full_of_the_cell_itself_or_has_room_is_not_blamed(busy: Event) -> None:
    events = [_with_threads(event) for event in events_of_cell(FLAT, spec=ON_CPU, samples=[busy])]
    holds, said = evidence(judged(state_of(events).cells[0]), "contended")
    assert holds is False
    assert "waited for a core for 0.0 %" in said


def unseen() -> Event:
    return sample(gpu=GpuSample(clock_reasons=()))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"samples": [unseen()]},
         "NVML did not tell other processes on the GPU apart, as in most containers, while the host was free"),
        ({}, "no device sample fell into the 3.0 s of measuring"),
        ({"spec": {"device": "mps"}, "samples": [sample(gpu=None)]},
         "other processes on the GPU cannot be seen on mps, while the host was free"),
        ({"spec": ON_CPU, "cpu_wait_s": None},
         "no device sample fell into the 3.0 s of measuring; "
         "this system does not tell how long threads waited for a core"),
    ],
)  # fmt: skip
def test_contention_that_cannot_be_seen_is_not_ruled_out(more: dict[str, Any], why: str) -> None:
    assert evidence(judged(a_cell(FLAT, measured_for_s=3.0, **more)), "contended") == (None, why)


def test_what_contends_is_said_though_the_rest_is_not_seen() -> None:
    found = judged(a_cell(FLAT, samples=[unseen()], measured_for_s=3.0, cpu_wait_s=1.5))
    assert "contended" in found.names


@pytest.mark.parametrize("device", ["cuda:0", "mps"])
def test_a_host_that_enqueues_for_the_whole_step_bounds_it(device: str) -> None:
    found = judged(a_cell([0.010] * 20, spec={"device": device}, host_share=0.95, samples=[sample()]))
    assert found.names == ("steady", "launch-bound")
    assert not found.is_doubted
    assert "takes the host 9.500 ms of a step's 10.00 ms (95 %), its phases 9.000 ms on the device" in found.sentence
    assert evidence(judged(a_cell(FLAT, spec={"device": device}, host_share=0.89)), "launch-bound")[0] is False


def test_a_cpu_has_nobody_to_enqueue_for() -> None:
    found = evidence(judged(a_cell(FLAT, spec=ON_CPU, host_share=1.0)), "launch-bound")
    assert found == (None, "on cpu the host does the work itself")


def test_in_a_window_waiting_for_a_full_queue_is_not_enqueuing() -> None:
    spec = {"sync": "pipelined"}
    events = events_of_cell(FLAT, spec=spec, host_share=1.0)
    cell = state_of(events).cells[0]
    assert "launch-bound" in judged(cell).names
    cell.host_times_s[0] *= 0.2
    assert evidence(judged(cell), "launch-bound")[0] is False
    assert judged(cell).warmup_advice.startswith("not observable")


def test_retries_of_the_allocator_are_counted_where_it_counts_them() -> None:
    found = judged(a_cell(FLAT, num_alloc_retries=1))
    assert "allocator-retry: the allocator gave its cache back and asked anew 1 time (memory is nea" in found.sentence
    assert evidence(judged(a_cell(FLAT, num_alloc_retries=0)), "allocator-retry")[0] is False
    found = judged(a_cell(FLAT, num_alloc_retries=None, spec=ON_CPU))
    assert evidence(found, "allocator-retry") == (None, "the allocator of cpu counts no retries")


def test_spikes_that_were_limited_are_owned_up_to() -> None:
    spiky = [0.05 * (1.5 if step in (20, 40) else 1 + 0.001 * (step % 3)) for step in range(60)]
    found = judged(a_cell(spiky))
    assert "2 spikes were limited for this analysis only; the mean and std include them" in found.notes
    assert found.interval is not None
    assert found.interval.mean == pytest.approx(np.mean(spiky))


def test_a_long_cell_is_judged_quickly() -> None:
    cell = a_cell(series("warm-up, throttle", 10_000), series("warm-up", 20))
    judge(a_cell(FLAT))
    began = time.process_time()
    assert judged(cell).is_doubted
    assert time.process_time() - began < 3, "the mark is 1 s; `python -m benchmarks.judging` measures it"
