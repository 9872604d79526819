"""Energy per step from the counter's readings within the window, or the reason why it is unknown."""

from __future__ import annotations

from typing import Any

import pytest

from cs336_tui.analysis.measures import Energy, energy_of
from cs336_tui.events.environment import GpuSample
from cs336_tui.events.events import Event
from cs336_tui.session.states import CellState
from tests.analysis.judging import AT, ON_CPU, a_cell, events_of_cell, sample
from tests.samples import a_spec, session_start, state_of

STEPS_S = [0.05] * 40


def reading(after_s: float, energy_j: float | None) -> Event:
    return sample(gpu=GpuSample(energy_j=energy_j), at=AT + after_s)


def test_a_steps_energy_is_the_windows_power_over_a_mean_step() -> None:
    cell = a_cell(STEPS_S, samples=[reading(0.1, 1000.0), reading(1.0, 1400.0), reading(2.1, 1900.0)])
    found = energy_of(cell)
    assert found.mean_power_w == pytest.approx(450.0)
    assert found.joules_per_step == pytest.approx(22.5)
    assert found.tokens_per_joule == pytest.approx(4 * 128 / 22.5)
    assert found.why == ""


def test_readings_before_and_after_the_window_do_not_count() -> None:
    samples = [reading(0.5, 100.0), reading(2.5, 500.0), reading(61.0, 99_000.0)]  # the last came before its end did
    events = events_of_cell(STEPS_S, before=[reading(-0.2, 0.0)], samples=samples)
    found = energy_of(state_of([*events, reading(63.0, 99_999.0)]).cells[0])
    assert found.mean_power_w == pytest.approx(200.0)


def test_several_readings_may_come_between_the_end_and_word_of_it() -> None:
    within = [reading(0.1 * tick, 20.0 * tick) for tick in range(30)]
    late = [reading(60.1 + 0.1 * tick, 9e6) for tick in range(5)]
    assert energy_of(a_cell(STEPS_S, samples=[*within, *late])).mean_power_w == pytest.approx(200.0)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"spec": ON_CPU}, "energy is read from NVIDIA's counter; not observable on cpu"),
        ({"spec": {"device": "mps"}}, "energy is read from NVIDIA's counter; not observable on mps"),
        ({}, "no device sample while measuring"),
        ({"samples": [sample(gpu=None, why="NVML is switched off")]}, "NVML is switched off"),
        ({"samples": [sample(gpu=GpuSample(uuid="GPU-9", energy_j=1.0))] * 9}, "another GPU than cuda:0 was sampled"),
        ({"samples": [reading(0.0, None), reading(1.0, None)]}, "this GPU or driver has no energy counter"),
        ({"samples": [reading(0.0, 5.0)]}, "the energy counter was read once while measuring"),
        ({"samples": [reading(0.0, 5.0), reading(0.4, 90.0)]}, "0.4 s apart; 1 s or more is needed"),
        ({"samples": [reading(0.0, 50.0), reading(2.0, 5.0)]}, "or was reset"),
        ({"samples": [reading(0.0, 5.0), reading(2.0, 5.0)]}, "the energy counter did not change"),
    ],
)
def test_why_it_is_unknown_is_said(more: dict[str, Any], why: str) -> None:
    found = energy_of(a_cell(STEPS_S, **more))
    assert found == Energy(why=found.why)
    assert why in found.why


def test_a_cell_without_steps_has_no_energy() -> None:
    waiting: CellState = state_of(session_start([a_spec()])).cells[0]
    assert energy_of(waiting) == Energy(why="no step was measured")
