"""Verdicts on cells slowed down by GPU clocks, by launches or by the allocator."""

from __future__ import annotations

from typing import Any

import pytest

from cs336_tui.events.environment import GpuSample
from cs336_tui.events.events import Event
from tests.analysis.judging import FLAT, ON_CPU, a_cell, events_of_cell, evidence, judged, sample
from tests.samples import state_of


def hot(*reasons: str, clock: int = 1200) -> Event:
    return sample(gpu=GpuSample(sm_clock_mhz=clock, clock_reasons=reasons, other_processes=()))


def test_thermal_and_hardware_clock_events_are_blamed_with_their_clocks() -> None:
    found = judged(a_cell(FLAT, samples=[hot("hardware thermal"), hot("idle"), sample()], before=[sample()]))
    assert found.names == ("steady", "throttled")
    assert found.label == "throttled, steady"
    assert found.sentence.startswith("throttled: hardware thermal in 1 of 3 samples")
    assert "steady" not in found.sentence
    assert (
        "hardware thermal in 1 of 3 samples while measuring, SM clock down to 1200 MHz from 1980 MHz" in found.sentence
    )


def test_a_clock_that_was_as_low_before_is_not_said_to_have_gone_down() -> None:
    hot_before = hot("hardware thermal", clock=990)
    text = evidence(judged(a_cell(FLAT, samples=[hot_before], before=[hot_before])), "throttled")[1]
    assert text.endswith("of 1 sample while measuring, SM clock at 990 MHz, as before it")


def test_a_power_cap_alone_is_noted_and_not_blamed() -> None:
    found = judged(a_cell(FLAT, samples=[hot("software power cap")] * 3 + [sample()]))
    assert evidence(found, "throttled")[0] is False
    assert "software power cap in 3 of 4 samples while measuring: normal at full load, no doubt" in found.notes


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
    cell.times.host_s[0] *= 0.2
    assert evidence(judged(cell), "launch-bound")[0] is False
    assert judged(cell).warmup_advice.startswith("not observable")


def test_retries_of_the_allocator_are_counted_where_it_counts_them() -> None:
    found = judged(a_cell(FLAT, num_alloc_retries=1))
    assert "allocator-retry: the allocator freed its cache and retried 1 time (memory is nea" in found.sentence
    assert evidence(judged(a_cell(FLAT, num_alloc_retries=0)), "allocator-retry")[0] is False
    found = judged(a_cell(FLAT, num_alloc_retries=None, spec=ON_CPU))
    assert evidence(found, "allocator-retry") == (None, "the allocator of cpu counts no retries")
