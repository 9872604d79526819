"""Speed-up and memory saved by other precisions, from the cells of a session."""

from __future__ import annotations

import msgspec
import pytest

from cs336_tui.analysis.effects import SpeedUp, mixed_speedups
from cs336_tui.events.environment import Environment
from cs336_tui.stats.ratio import ratio_of
from tests.session.made import OTHER_GPU, Cell, cell, results_of

SLOW, FAST = (0.100, 0.101, 0.099, 0.100) * 3, (0.050, 0.0505, 0.0495, 0.050) * 3


def only(*cells: Cell) -> SpeedUp:
    (found,) = mixed_speedups(results_of(*cells))
    return found


def on(made: Cell, environment: Environment) -> Cell:
    return made._replace(on=environment)


def test_the_speed_up_is_fp32_over_the_other_with_its_interval() -> None:
    found = only(cell(SLOW), cell(FAST, precision="bf16-mixed"))
    assert found.ratio == ratio_of([SLOW], [FAST])
    assert found.ratio
    assert found.ratio.low < 2.0 < found.ratio.high
    assert (found.outcome, found.pays) == ("faster", True)
    assert found.explanation.startswith("bf16-mixed takes 0.5000")
    assert found.spec.precision == "bf16-mixed"
    assert found.fp32.summary
    assert found.fp32.summary.mean_s == pytest.approx(0.1)


def test_where_it_does_not_pay_is_visible() -> None:
    slower = only(cell(FAST), cell(SLOW, precision="bf16-mixed"))
    same = only(cell([0.1, 0.1001] * 5), cell([0.1, 0.1001] * 5, precision="bf16-mixed"))
    ambiguous = only(cell([0.08, 0.12, 0.1]), cell([0.07, 0.11, 0.09], precision="bf16-mixed"))
    assert [(each.outcome, each.pays) for each in (slower, same, ambiguous)] == [
        ("slower", False),
        ("same", False),
        ("ambiguous", None),
    ]


def test_every_other_precision_is_compared_and_true_fp32_is_the_only_baseline() -> None:
    precisions = ("tf32", "bf16-mixed", "fp16-mixed", "bf16")
    found = mixed_speedups(results_of(cell(SLOW), *(cell(FAST, precision=each) for each in precisions)))
    assert [each.spec.precision for each in found] == list(precisions)
    assert mixed_speedups(results_of(cell(SLOW, precision="tf32"), cell(FAST, precision="bf16"))) == ()


@pytest.mark.parametrize(
    "other",
    [
        {"context_length": 256},
        {"batch_size": 8},
        {"pass_": "forward"},
        {"device": "cpu"},
        {"num_layers": 24},
        {"arch": "gelu-learned"},
        {"sync": "pipelined"},
        {"warmup_steps": 0},
        {"threads": 4},
    ],
)
def test_only_the_same_work_done_in_the_same_way_is_compared(other: dict[str, object]) -> None:
    assert mixed_speedups(results_of(cell(SLOW), cell(FAST, precision="bf16-mixed", **other))) == ()


@pytest.mark.parametrize("other", [{"measure_steps": 20}, {"seed": 1}, {"size": "mine", "edition": "2025"}])
def test_what_changes_no_work_may_differ(other: dict[str, object]) -> None:
    assert only(cell(SLOW), cell(FAST, precision="bf16-mixed", **other)).pays


def test_cells_of_another_machine_or_torch_are_not_compared() -> None:
    newer = msgspec.structs.replace(OTHER_GPU, host="gpu-box", torch="2.14.0")
    for place in (OTHER_GPU, newer):
        assert mixed_speedups(results_of(cell(SLOW), on(cell(FAST, precision="bf16"), place))) == ()


def test_repeats_are_taken_together_and_the_largest_peak_counts() -> None:
    runs = [
        cell(SLOW)._replace(peak=4_000_000_000),
        cell(SLOW)._replace(repeat=2, peak=5_000_000_000),
        cell(FAST, precision="bf16-mixed")._replace(peak=3_000_000_000),
        cell(FAST, precision="bf16-mixed")._replace(repeat=2, peak=2_000_000_000),
    ]
    found = only(*runs)
    assert (found.fp32.runs, found.other.runs) == (2, 2)
    assert (found.fp32.peak_allocated_bytes, found.other.peak_allocated_bytes) == (5_000_000_000, 3_000_000_000)
    assert found.memory_ratio == pytest.approx(0.6)
    assert found.ratio == ratio_of([SLOW, SLOW], [FAST, FAST])


def test_memory_is_unknown_where_no_allocator_counts() -> None:
    found = only(cell(SLOW)._replace(peak=None), cell(FAST, precision="bf16-mixed"))
    assert (found.fp32.peak_allocated_bytes, found.memory_ratio) == (None, None)


def test_a_side_that_ran_out_of_memory_is_said() -> None:
    found = only(cell(status="oom"), cell(FAST, precision="bf16-mixed"))
    assert (found.fp32.note, found.ratio, found.pays) == ("OOM", None, None)
    assert found.explanation == "fp32 has no timing: OOM."


def test_a_cell_that_failed_before_its_model_was_built_belongs_to_its_machine_still() -> None:
    results = results_of(cell(status="oom"), cell(FAST, precision="bf16-mixed"))
    results[0].cell.in_force = None
    assert len(mixed_speedups(results)) == 1


def test_nothing_measured_or_not_over_is_no_comparison() -> None:
    assert mixed_speedups(results_of(cell(status="oom"), cell(status="failed", precision="bf16"))) == ()
    assert mixed_speedups(results_of(cell(SLOW), cell(status=None, precision="bf16"))) == ()
    assert mixed_speedups(()) == ()


def test_a_single_step_gives_times_but_no_ratio() -> None:
    found = only(cell([0.1]), cell([0.05], precision="bf16-mixed"))
    assert found.other.summary
    assert (found.ratio, found.pays) == (None, None)
    assert "at least 2 measured steps" in found.explanation


def test_rows_are_in_the_natural_order_whatever_ran_first() -> None:
    big = {"size": "large", "d_model": 1280, "d_ff": 5120, "num_layers": 36, "num_heads": 20}
    cells = [
        cell(times, precision=precision, **more)
        for more in (big, {"context_length": 512}, {"context_length": 256})
        for precision, times in (("bf16", FAST), ("tf32", FAST), ("fp32", SLOW))
    ]
    found = mixed_speedups(results_of(*cells))
    assert [(each.spec.size, each.spec.context_length, each.spec.precision) for each in found] == [
        ("small", 256, "tf32"),
        ("small", 256, "bf16"),
        ("small", 512, "tf32"),
        ("small", 512, "bf16"),
        ("large", 128, "tf32"),
        ("large", 128, "bf16"),
    ]
