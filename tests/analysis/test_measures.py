"""A measure is declared once: how it is read and pooled, and that all places take it from its declaration."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import cs336_tui
from cs336_tui.analysis.measures import MEASURES, Energy, Runs, energy_of, peak_bytes, resident_bytes, tensor_bytes
from cs336_tui.analysis.merge import Result
from cs336_tui.analysis.tuning import visit_peak_bytes
from cs336_tui.events.environment import GpuSample
from cs336_tui.events.events import Event
from cs336_tui.events.prediction import prediction_key
from tests.analysis.judging import AT, ON_CPU, a_cell, events_of_cell, sample
from tests.made_memory import a_memory_report
from tests.made_predictions import made_prediction
from tests.samples import a_spec, cell_end, cell_start, report_events, session_start, state_of, steps


@pytest.fixture(scope="module")
def appearances() -> dict[str, Any]:
    """Places in which a new measure appears, declared in a fresh process before anything is derived."""
    words = (sys.executable, "-m", "tests.analysis.throw_away_measure")
    root = Path(cs336_tui.__file__).parents[1]
    result = subprocess.run(words, capture_output=True, text=True, cwd=root, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    made: dict[str, Any] = json.loads(result.stdout)
    return made


def test_a_new_measure_is_a_column_of_results_with_its_definition(appearances: dict[str, Any]) -> None:
    assert "| small |           2.00 |" in appearances["table"]
    assert "| 10B   |            n/a |" in appearances["table"]
    assert "- sweetness: by tongue; tasted of 18 cells\n" in appearances["table"]
    assert appearances["data"] == {"size": "small", "sweetness_g": 2000.0}
    text, data = appearances["layout"]
    assert text == {"Size": "small", "Sugar (kg)": "2.00"}, "a layout names it by its key"
    assert data == {"Size": "small", "Sugar (kg)": 2.0}


def test_a_new_measure_is_a_value_of_pivots(appearances: dict[str, Any]) -> None:
    assert appearances["pivot"].startswith("**Sweetness (kg), size and precision by pass**")
    assert "- † tasted" in appearances["pivot"]
    assert appearances["figures"]["sweetness_g"] == 2000.0
    assert "activations, sweetness." in appearances["help"]
    assert appearances["values"][-1] == "sweetness"


def test_a_new_measure_is_in_each_record_and_on_the_screen(appearances: dict[str, Any]) -> None:
    assert (appearances["json"], appearances["csv"]) == (2000.0, "2000.0")
    assert appearances["screen"] == ["sweetness kg", "2.00"]
    assert appearances["compared"].startswith("Sweetness (kg), size and precision by pass")


def result_of(*, device: str = "cuda:0", reported: int | None = None, in_turns: bool = False, **end: Any) -> Result:
    spec = a_spec(device=device)
    events: list[Event] = [*session_start([spec]), *cell_start(0), *steps(0, (), (0.1, 0.3)), cell_end(0, **end)]
    if reported is not None:
        content = msgspec.structs.replace(a_memory_report(), spec=spec, peak_bytes=reported)
        events += report_events(content)
    state = state_of(events)
    state.cells[0].in_turns = in_turns
    return Result(0, "one", state, state.cells[0])


def test_a_peak_of_no_bytes_is_a_peak() -> None:
    """An allocator that counts none, as of a user's own step on the host, is not asked in vain."""
    result = result_of(peak_allocated_bytes=0, peak_rss_bytes=7, reported=9)
    assert peak_bytes(result.cell) == tensor_bytes(result) == visit_peak_bytes(result.cell) == 0
    assert MEASURES["memory"].figure(Runs([result], 1)) == (0, "")


def test_where_no_allocator_counts_the_peak_is_that_of_the_process_but_not_on_a_gpu() -> None:
    ends = {"peak_allocated_bytes": None, "peak_rss_bytes": 7}
    on_cpu, on_gpu = result_of(device="cpu", **ends), result_of(**ends)
    assert (peak_bytes(on_cpu.cell), peak_bytes(on_gpu.cell)) == (7, None)
    assert resident_bytes(result_of(device="cpu", peak_allocated_bytes=5, peak_rss_bytes=7).cell) is None
    measure = MEASURES["memory"]
    assert measure.figure(Runs([on_cpu], 1)) == (7, "peak RSS of the whole process")
    assert measure.figure(Runs([on_gpu], 1)) == (None, "")
    recorded = result_of(device="cpu", reported=3, **ends)
    assert measure.figure(Runs([recorded], 1)) == (3, "peak of tensors, recorded")
    prediction = made_prediction(on_cpu.spec, peak_bytes=4)
    on_cpu.state.predictions[prediction_key(on_cpu.spec)] = prediction
    assert measure.figure(Runs([on_cpu], 1)) == (4, "peak of tensors, predicted")


def test_the_peak_of_tensors_is_the_memory_reports_where_no_allocator_counts() -> None:
    ends = {"peak_allocated_bytes": None, "peak_rss_bytes": 7}
    assert tensor_bytes(result_of(device="cpu", reported=3, **ends)) == 3
    assert tensor_bytes(result_of(device="cpu", **ends)) is None
    assert tensor_bytes(result_of(peak_allocated_bytes=5, reported=3)) == 5
    assert visit_peak_bytes(result_of(peak_allocated_bytes=5, in_turns=True).cell) is None, "of both"


def test_several_runs_are_pooled_as_the_measure_says() -> None:
    small, large = result_of(peak_allocated_bytes=2), result_of(peak_allocated_bytes=4)
    failed = result_of(peak_allocated_bytes=9, status="oom")
    runs = Runs([small, large, failed], 1)
    read = {key: measure.read(runs) for key, measure in MEASURES.items()}
    assert (read["n"], read["mean"], read["max"]) == (4, pytest.approx(0.2), 0.3)
    assert read["tokens"] == pytest.approx(small.spec.tokens_per_step / 0.2)
    assert read["memory"] == 4
    assert read["busbw"] is None
    state = state_of([*session_start([a_spec()]), *cell_start(0), *steps(0, (0.4, 0.2))])
    assert MEASURES["tokens"].read(Runs.of(Result(0, "one", state, state.cells[0]))) is None, "without a step"
    alone = Runs.of(failed)
    assert (MEASURES["memory"].read(alone), MEASURES["n"].read(alone)) == (9, 2)


STEPS_S = [0.05] * 40


def reading(after_s: float, energy_j: float | None) -> Event:
    return sample(gpu=GpuSample(energy_j=energy_j), at=AT + after_s)


def test_a_steps_energy_is_the_windows_power_over_a_mean_step() -> None:
    cell = a_cell(STEPS_S, samples=[reading(0.1, 1000.0), reading(1.0, 1400.0), reading(2.1, 1900.0)])
    found = energy_of(cell)
    assert found.joules_per_step == pytest.approx(22.5)
    assert found.tokens_per_joule == pytest.approx(4 * 128 / 22.5)
    assert found.why == ""
    waiting = state_of(session_start([a_spec()])).cells[0]
    assert energy_of(waiting) == Energy(why="no step was measured")


def test_readings_before_and_after_the_window_do_not_count() -> None:
    samples = [reading(0.5, 100.0), reading(2.5, 500.0), reading(61.0, 99_000.0)]  # the last came before its end did
    events = events_of_cell(STEPS_S, before=[reading(-0.2, 0.0)], samples=samples)
    found = energy_of(state_of([*events, reading(63.0, 99_999.0)]).cells[0])
    assert found.joules_per_step == pytest.approx(10.0)


def test_several_readings_may_come_between_the_end_and_word_of_it() -> None:
    within = [reading(0.1 * tick, 20.0 * tick) for tick in range(30)]
    late = [reading(60.1 + 0.1 * tick, 9e6) for tick in range(5)]
    assert energy_of(a_cell(STEPS_S, samples=[*within, *late])).joules_per_step == pytest.approx(10.0)


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
