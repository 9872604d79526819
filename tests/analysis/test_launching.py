"""Verdicts on cells slowed down by GPU clocks, by launches or by the allocator. Verdict `launch-bound` against a
model of the driver's launch queue: never given if the host waits."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.launch_queue import H100_BF16, H100_FP32, Device, Launch, random_step, simulate, training_step
from benchmarks.launch_queue import judged as judged_launches
from cs336_tui.analysis.verdicts import FULL_S, LEAST_SHARE, Phase, enqueuing, judge, launching
from cs336_tui.config.spec import dims_of
from cs336_tui.events.environment import GpuSample
from cs336_tui.events.events import Event
from tests.analysis.judging import FLAT, ON_CPU, a_cell, evidence, sample

QUEUES = (1000, 1024, 2048)


@given(st.integers(0, 2**32), st.sampled_from(QUEUES))
def test_it_is_said_only_where_enqueuing_alone_takes_nearly_the_whole_step(seed: int, queue: int) -> None:
    step = random_step(random.Random(seed), alike=False)
    for phases in (step, {"forward": step["backward"]}):
        found = simulate(phases, queue)
        assert found.is_bound or not judged_launches(found).holds


@given(st.integers(0, 2**32), st.sampled_from(QUEUES))
def test_it_is_denied_only_where_it_does_not_where_backward_is_of_forwards_kind(seed: int, queue: int) -> None:
    found = simulate(random_step(random.Random(seed), alike=True), queue)
    assert not found.is_bound or judged_launches(found).holds is not False


@pytest.mark.parametrize(
    ("size", "context", "device", "share"),
    [
        ("xl", 512, H100_FP32, 0.97),
        ("xl", 1024, H100_FP32, 0.98),
        ("large", 512, H100_BF16, 0.93),
        ("medium", 1024, H100_FP32, 0.98),
        ("small", 512, H100_FP32, 0.94),
    ],
)
def test_a_large_training_step_is_not_though_the_host_is_at_it_to_the_end(
    size: str, context: int, device: Device, share: float
) -> None:
    found = simulate(training_step(dims_of(size, "2026"), context, device, 6e-6, optimizer="for-loop"))
    assert sum(found.host_s.values()) / found.step_s == pytest.approx(share, abs=0.01)
    assert found.enqueuing_s / found.step_s < 0.4
    said = judged_launches(found)
    assert said.holds is False
    assert "ahead of the device at the end of the" in said.evidence
    assert "so that it waited for room in the queue of launches" in said.evidence


@pytest.mark.parametrize("size", ["small", "medium"])
def test_a_small_one_is(size: str) -> None:
    found = simulate(training_step(dims_of(size, "2026"), 128, H100_BF16, 6e-6, optimizer="for-loop"))
    assert judged_launches(found).holds is True
    assert found.is_bound


def test_a_forward_of_ten_thousand_launches_that_fills_the_queue_cannot_be_told_from_one_with_a_slow_end() -> None:
    deep = simulate({"forward": [Launch(5e-6, 70e-6)] * 12_000})
    slow_end = simulate({"forward": [Launch(5e-6, 3e-6)] * 8_000 + [Launch(5e-6, 3e-3)]})
    for found in (deep, slow_end):
        assert sum(found.host_s.values()) / found.step_s > LEAST_SHARE
        said = judged_launches(found)
        assert (said.holds, said.unknown_because) == (None, "the host may have waited for a full queue")


def test_what_the_host_waits_at_the_beginning_of_a_phase_is_not_enqueuing() -> None:
    """The queue is full of backward's kernels when a for-loop optimizer begins, and empty when it ends."""
    found = simulate({"forward": [Launch(5e-6, 40e-6)] * 4000, "optimizer": [Launch(5e-6, 2e-6)] * 6000})
    assert sum(found.host_s.values()) / found.step_s > LEAST_SHARE
    bounds = enqueuing([Phase(name, found.host_s[name], found.device_s[name]) for name in found.host_s])
    assert bounds.least_s <= found.enqueuing_s + FULL_S
    assert judged_launches(found).holds is not True


def test_a_log_that_does_not_tell_the_hosts_time_in_each_phase_leaves_it_open() -> None:
    def said(phases: tuple[str, ...], host_share: float) -> Any:
        cell = a_cell(FLAT, spec={"device": "cuda:0"}, host_share=host_share)
        forward = cell.phase_times_s.pop("forward")
        cell.phase_times_s.update({name: [each / len(phases) for each in forward] for name in phases})
        return launching(cell)

    assert said(("forward",), 0.95).holds is True, "the step's time is that of its only phase"
    assert said(("forward", "backward"), 0.95).unknown_because == "the host's time in each phase was not recorded"
    assert said(("forward", "backward"), 0.5).holds is False


@pytest.mark.parametrize("host", [(-1.0, -1.0, -1.0), (0.01,), (0.01,) * 4])
def test_what_cannot_be_is_not_judged_by(host: tuple[float, ...]) -> None:
    """A log may be from anywhere."""
    cell = a_cell([0.01] * 3, spec={"device": "cuda:0"}, host_share=0.95)
    cell.times.host_phases_s["forward"] = [*host]
    assert launching(cell).unknown_because == "the host's time in each phase was not recorded"


def test_of_a_window_the_first_step_tells_whose_queue_is_empty_when_it_begins() -> None:
    def said(first_forward_s: float) -> bool | None:
        cell = a_cell([0.1] * 4, spec={"device": "cuda:0", "sync": "pipelined"}, host_share=0.95)
        cell.phase_times_s.update(forward=[0.05] * 4, backward=[0.05] * 4)
        cell.times.host_phases_s.update(forward=[first_forward_s, *[0.0475] * 3], backward=[0.0495] * 4)
        return launching(cell).holds

    assert said(0.05) is True
    assert said(0.01) is not True


@pytest.mark.parametrize(
    ("host_share", "spec", "said"),
    [
        (0.99, {}, "profiled, the GPU was idle for 60 %"),
        *((share, {"cuda_graph": "step", "pass_": "train-step"}, "the host launches one CUDA graph")
          for share in (0.02, 0.99)),
    ],
)  # fmt: skip
def test_a_launch_bound_step_is_advised_a_cuda_graph_which_is_not_told_what_was_profiled_without_it(
    host_share: float, spec: dict[str, Any], said: str
) -> None:
    found = launching(a_cell([0.01, 0.0101] * 4, spec={"device": "cuda:0", **spec}, host_share=host_share), idle=0.6)
    assert said in found.evidence
    assert ("a CUDA graph of the step" in found.advice) == ("idle" in found.evidence) == (not spec)


def hot(*reasons: str, clock: int = 1200) -> Event:
    return sample(gpu=GpuSample(sm_clock_mhz=clock, clock_reasons=reasons, other_processes=()))


def test_thermal_and_hardware_clock_events_are_blamed_with_their_clocks_which_went_down_or_were_as_low() -> None:
    found = judge(a_cell(FLAT, samples=[hot("hardware thermal"), hot("idle"), sample()], before=[sample()]))
    assert found.names == ("steady", "throttled")
    assert found.label == "throttled, steady"
    assert found.sentence.startswith("throttled: hardware thermal in 1 of 3 samples")
    assert "steady" not in found.sentence
    assert " in 1 of 3 samples while measuring, SM clock down to 1200 MHz from 1980 MHz" in found.sentence
    hot_before = hot("hardware thermal", clock=990)
    text = evidence(judge(a_cell(FLAT, samples=[hot_before], before=[hot_before])), "throttled")[1]
    assert text.endswith("of 1 sample while measuring, SM clock at 990 MHz, as before it")


def test_a_power_cap_alone_is_noted_and_not_blamed() -> None:
    found = judge(a_cell(FLAT, samples=[hot("software power cap")] * 3 + [sample()]))
    assert evidence(found, "throttled")[0] is False
    assert "software power cap in 3 of 4 samples while measuring: normal at full load, no doubt" in found.notes
    before = judge(a_cell(FLAT, samples=[sample()], before=[hot("hardware thermal")]))
    assert evidence(before, "throttled")[0] is False, "outside of the window"


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
    assert evidence(judge(a_cell(FLAT, measured_for_s=3.0, **more)), "throttled") == (None, why)


@pytest.mark.parametrize("device", ["cuda:0", "mps"])
def test_a_host_that_enqueues_for_the_whole_step_bounds_it(device: str) -> None:
    found = judge(a_cell([0.010] * 20, spec={"device": device}, host_share=0.95, samples=[sample()]))
    assert found.names == ("steady", "launch-bound")
    assert not found.is_doubted
    assert "takes the host 9.500 ms of a step's 10.00 ms (95 %), its phases 9.000 ms on the device" in found.sentence
    assert evidence(judge(a_cell(FLAT, spec={"device": device}, host_share=0.89)), "launch-bound")[0] is False
    on_cpu = evidence(judge(a_cell(FLAT, spec=ON_CPU, host_share=1.0)), "launch-bound")
    assert on_cpu == (None, "on cpu the host does the work itself")


def test_in_a_window_waiting_for_a_full_queue_is_not_enqueuing() -> None:
    cell = a_cell(FLAT, spec={"sync": "pipelined"}, host_share=1.0)
    assert "launch-bound" in judge(cell).names
    cell.times.host_s[0] *= 0.2
    assert evidence(judge(cell), "launch-bound")[0] is False
    assert judge(cell).warmup_advice.startswith("not observable")


def test_retries_of_the_allocator_are_counted_where_it_counts_them() -> None:
    found = judge(a_cell(FLAT, num_alloc_retries=1))
    assert "allocator-retry: the allocator freed its cache and retried 1 time (memory is nea" in found.sentence
    assert evidence(judge(a_cell(FLAT, num_alloc_retries=0)), "allocator-retry")[0] is False
    found = judge(a_cell(FLAT, num_alloc_retries=None, spec=ON_CPU))
    assert evidence(found, "allocator-retry") == (None, "the allocator of cpu counts no retries")
