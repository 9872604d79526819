"""Verdict `launch-bound` against a model of the driver's launch queue: never given if the host waits."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.launch_queue import H100_BF16, H100_FP32, Device, Launch, judged, random_step, simulate, training_step
from cs336_tui.analysis.verdicts import FULL_S, LEAST_SHARE, Phase, enqueuing, launching
from cs336_tui.config.spec import dims_of
from tests.analysis.judging import FLAT, a_cell

QUEUES = (1000, 1024, 2048)


@given(st.integers(0, 2**32), st.sampled_from(QUEUES))
def test_it_is_said_only_where_enqueuing_alone_takes_nearly_the_whole_step(seed: int, queue: int) -> None:
    step = random_step(random.Random(seed), alike=False)
    for phases in (step, {"forward": step["backward"]}):
        found = simulate(phases, queue)
        assert found.is_bound or not judged(found).holds


@given(st.integers(0, 2**32), st.sampled_from(QUEUES))
def test_it_is_denied_only_where_it_does_not_where_backward_is_of_forwards_kind(seed: int, queue: int) -> None:
    found = simulate(random_step(random.Random(seed), alike=True), queue)
    assert not found.is_bound or judged(found).holds is not False


@pytest.mark.parametrize(
    ("size", "context", "device", "optimizer", "share"),
    [
        ("xl", 512, H100_FP32, "for-loop", 0.97),
        ("xl", 1024, H100_FP32, "for-loop", 0.98),
        ("large", 512, H100_BF16, "for-loop", 0.93),
        ("medium", 1024, H100_FP32, "for-loop", 0.98),
        ("small", 512, H100_FP32, "for-loop", 0.94),
    ],
)
def test_a_large_training_step_is_not_though_the_host_is_at_it_to_the_end(
    size: str, context: int, device: Device, optimizer: str, share: float
) -> None:
    found = simulate(training_step(dims_of(size, "2026"), context, device, 6e-6, optimizer=optimizer))
    assert sum(found.host_s.values()) / found.step_s == pytest.approx(share, abs=0.01)
    assert found.enqueuing_s / found.step_s < 0.4
    said = judged(found)
    assert said.holds is False
    assert "ahead of the device at the end of the" in said.evidence
    assert "so that it waited for room in the queue of launches" in said.evidence


@pytest.mark.parametrize(("size", "optimizer"), [("small", "for-loop"), ("medium", "for-loop")])
def test_a_small_one_is(size: str, optimizer: str) -> None:
    found = simulate(training_step(dims_of(size, "2026"), 128, H100_BF16, 6e-6, optimizer=optimizer))
    assert judged(found).holds is True
    assert found.is_bound


def test_a_forward_of_ten_thousand_launches_that_fills_the_queue_cannot_be_told_from_one_with_a_slow_end() -> None:
    deep = simulate({"forward": [Launch(5e-6, 70e-6)] * 12_000})
    slow_end = simulate({"forward": [Launch(5e-6, 3e-6)] * 8_000 + [Launch(5e-6, 3e-3)]})
    for found in (deep, slow_end):
        assert sum(found.host_s.values()) / found.step_s > LEAST_SHARE
        said = judged(found)
        assert (said.holds, said.unknown_because) == (None, "the host may have waited for a full queue")


def test_what_the_host_waits_at_the_beginning_of_a_phase_is_not_enqueuing() -> None:
    """The queue is full of backward's kernels when a for-loop optimizer begins, and empty when it ends."""
    found = simulate({"forward": [Launch(5e-6, 40e-6)] * 4000, "optimizer": [Launch(5e-6, 2e-6)] * 6000})
    assert sum(found.host_s.values()) / found.step_s > LEAST_SHARE
    bounds = enqueuing([Phase(name, found.host_s[name], found.device_s[name]) for name in found.host_s])
    assert bounds.least_s <= found.enqueuing_s + FULL_S
    assert judged(found).holds is not True


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
