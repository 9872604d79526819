"""`launch-bound` against a model of the driver's launch queue: it is never said of a step in which the host waits."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.launch_queue import H100_BF16, H100_FP32, Device, Launch, judged, simulate, training_step
from cs336_tui.findings.launching import FULL_S, LEAST_SHARE, Phase, enqueuing, launching
from cs336_tui.sizes import dims_of
from tests.findings.judging import FLAT, a_cell

TRAINING = ("forward", "loss", "backward", "optimizer")
QUEUES = (1000, 1024, 2048)


def some_launches(dice: random.Random, launch_s: float, kernel_s: float) -> list[Launch]:
    spread = dice.choice((0.0, 0.5, 1.5))
    return [
        Launch(
            launch_s * dice.uniform(0.7, 1.3),
            max(1.2e-6, kernel_s * dice.lognormvariate(-spread * spread / 2, spread)),
        )
        for _ in range(int(math.exp(dice.uniform(0, math.log(3000)))))
    ]


def some_kind(dice: random.Random) -> tuple[float, float]:
    """What a launch takes the host, and its kernel the device, in seconds."""
    return math.exp(dice.uniform(math.log(2.5e-6), math.log(2e-5))), math.exp(dice.uniform(-13.4, -7.6))


@given(st.integers(0, 2**32), st.sampled_from(QUEUES), st.sampled_from((("forward",), TRAINING)))
def test_it_is_said_only_where_enqueuing_alone_takes_nearly_the_whole_step(
    seed: int, queue: int, names: tuple[str, ...]
) -> None:
    dice = random.Random(seed)
    found = simulate({name: some_launches(dice, *some_kind(dice)) for name in names}, queue)
    if judged(found).holds:
        assert found.is_bound


@given(st.integers(0, 2**32), st.sampled_from(QUEUES))
def test_it_is_denied_only_where_it_does_not_where_backward_is_of_forwards_kind(seed: int, queue: int) -> None:
    dice = random.Random(seed)
    launch_s, kernel_s = some_kind(dice)
    phases = {
        name: some_launches(dice, launch_s * dice.uniform(0.6, 1.1), kernel_s * dice.uniform(0.8, 1.3))
        for name in TRAINING[:-1]
    }
    found = simulate(phases | {"optimizer": some_launches(dice, *some_kind(dice))}, queue)
    if judged(found).holds is False:
        assert not found.is_bound


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
