"""Speed-up and memory saved by other precisions, and the warm-up view's numbers."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.analysis.effects import SpeedUp, array, mixed_speedups, steps_until_steady, warmup_groups
from cs336_tui.analysis.merge import merge
from cs336_tui.events.environment import Environment
from cs336_tui.stats.ratio import ratio_of
from tests.samples import a_spec
from tests.session.made import OLD_LAPTOP, OTHER_GPU, Cell, cell, results_of, session_of

SLOW, FAST = (0.100, 0.101, 0.099, 0.100) * 3, (0.050, 0.0505, 0.0495, 0.050) * 3


def only(*cells: Cell) -> SpeedUp:
    (found,) = mixed_speedups(results_of(*cells))
    return found


def test_the_speed_up_is_fp32_over_the_other_with_its_interval() -> None:
    found = only(cell(SLOW), cell(FAST, precision="bf16-mixed"))
    assert found.ratio == ratio_of([SLOW], [FAST])
    assert found.ratio.low < 2.0 < found.ratio.high
    assert (found.outcome, found.pays) == ("faster", True)
    assert found.explanation.startswith("bf16-mixed takes 0.5000")
    assert found.spec.precision == "bf16-mixed"
    assert found.fp32.summary.mean_s == pytest.approx(0.1)


def test_where_it_does_not_pay_is_visible() -> None:
    slower = only(cell(FAST), cell(SLOW, precision="bf16-mixed"))
    same = only(cell([0.1, 0.1001] * 5), cell([0.1, 0.1001] * 5, precision="bf16-mixed"))
    ambiguous = only(cell([0.08, 0.12, 0.1]), cell([0.07, 0.11, 0.09], precision="bf16-mixed"))
    found = {each.outcome: each.pays for each in (slower, same, ambiguous)}
    assert found == {"slower": False, "same": False, "ambiguous": None}


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


@pytest.mark.parametrize("place", [OTHER_GPU, msgspec.structs.replace(OTHER_GPU, host="gpu-box", torch="2.14.0")])
def test_cells_of_another_machine_or_torch_are_not_compared(place: Environment) -> None:
    assert mixed_speedups(results_of(cell(SLOW), cell(FAST, precision="bf16")._replace(on=place))) == ()


@pytest.mark.parametrize("other", [{"measure_steps": 20}, {"seed": 1}, {"size": "mine", "edition": "2025"}])
def test_what_changes_no_work_may_differ(other: dict[str, object]) -> None:
    assert only(cell(SLOW), cell(FAST, precision="bf16-mixed", **other)).pays


def test_repeats_are_taken_together_and_the_largest_peak_counts() -> None:
    sides = (cell(SLOW), (4, 5)), (cell(FAST, precision="bf16-mixed"), (3, 2))
    found = only(
        *(made._replace(repeat=n, peak=size * 10**9) for made, sizes in sides for n, size in enumerate(sizes, 1))
    )
    assert (found.fp32.runs, found.other.runs) == (2, 2)
    assert (found.fp32.peak_allocated_bytes, found.other.peak_allocated_bytes) == (5_000_000_000, 3_000_000_000)
    assert found.memory_ratio == pytest.approx(0.6)
    assert found.ratio == ratio_of([SLOW, SLOW], [FAST, FAST])


def test_a_side_that_ran_out_of_memory_is_said_also_if_its_model_was_not_built() -> None:
    unknown = only(cell(SLOW)._replace(peak=None), cell(FAST, precision="bf16-mixed"))
    assert (unknown.fp32.peak_allocated_bytes, unknown.memory_ratio) == (None, None), "no allocator counts"
    results = results_of(cell(status="oom"), cell(FAST, precision="bf16-mixed"))
    for in_force in (results[0].cell.in_force, None):
        results[0].cell.in_force = in_force
        (found,) = mixed_speedups(results)
        assert (found.fp32.note, found.ratio, found.pays) == ("OOM", None, None)
        assert found.explanation == "fp32 has no timing: OOM."


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
        (*of, precision) for of in (("small", 256), ("small", 512), ("large", 128)) for precision in ("tf32", "bf16")
    ]


STEADY = [0.0412, 0.0409, 0.0410, 0.0411]


def test_settings_of_one_cell_stand_side_by_side() -> None:
    results = results_of(
        Cell(a_spec(warmup_steps=2), STEADY, [0.8123, 0.0412]),
        Cell(a_spec(warmup_steps=0), [0.9, *STEADY]),
        Cell(a_spec(warmup_steps=0, pass_="forward"), STEADY),
        Cell(a_spec(warmup_steps=1), status="oom"),
    )
    forward, both = warmup_groups(results)
    assert both.warmups == ("0", "2")
    assert forward.warmups == ("0",)
    cold, warm = both.traces
    assert cold.first_step_cost == pytest.approx(0.9 / 0.0411)
    assert warm.first_step_cost == pytest.approx(0.8123 / 0.04105)
    assert (cold.steady_after, warm.steady_after) == (1, 1)
    assert warm.text(warm.result.cell.warmup_times_s) == "[812.30, 41.20]"
    assert warm.text(warm.result.cell.step_times_s) == "[41.20, 40.90, 41.00, 41.10]"
    assert cold.text([*cold.result.cell.warmup_times_s, *cold.result.cell.step_times_s]) == (
        "[900.00, 41.20, 40.90, 41.00, 41.10]"
    )
    assert both.title == "small · ctx 128 · forward+backward · fp32 · cuda:0 · batch 4"


def test_an_automatic_warm_up_stands_beside_the_fixed_ones() -> None:
    auto = a_spec(warmup_steps=100, warmup_auto=True)
    (group,) = warmup_groups(
        results_of(Cell(auto, STEADY, [0.8, 0.05, 0.0412]), Cell(a_spec(warmup_steps=2), STEADY, [0.8, 0.05]))
    )
    assert group.warmups == ("2", "auto")
    found = [(trace.warmup, len(trace.result.cell.warmup_times_s)) for trace in group.traces]
    assert found == [("2", 2), ("auto (3)", 3)]


def test_machines_are_not_mixed_and_sessions_are_told_apart() -> None:
    one = session_of(cell(STEADY, device="cpu", warmup_steps=0))
    two = session_of(cell(STEADY, device="cpu", warmup_steps=1))
    laptop = session_of(cell(STEADY, device="cpu", warmup_steps=1), environment=OLD_LAPTOP)
    groups = warmup_groups(merge([("one", one), ("two", two), ("laptop", laptop)]))
    assert [[trace.result.session for trace in group.traces] for group in groups] == [["one", "two"], ["laptop"]]


@pytest.mark.parametrize(
    ("times_s", "expected"),
    [
        ([1.0, 1.0, 1.0], 0),
        ([1.015, 1.0, 1.0, 1.0], 0),  # within 2 %, though nothing else varies
        ([1.025, 1.0, 1.0, 1.0], 1),
        ([9.0, 1.0, 1.0, 1.0], 1),
        ([9.0, 3.0, 1.0, 1.01, 0.99], 2),
        ([1.0, 9.0, 1.0, 1.0], 2),
        ([1.0, 1.0, 1.0, 1.0, 9.0], None),
        ([], None),
    ],
)
def test_steps_until_steady(times_s: list[float], expected: int | None) -> None:
    assert steps_until_steady(times_s, times_s) == expected


@given(st.lists(st.floats(1e-5, 1e2), min_size=1, max_size=20), st.floats(0.1, 10))
def test_when_steps_are_steady_depends_on_no_unit_and_later_ones_all_are(times_s: list[float], unit: float) -> None:
    after = steps_until_steady(times_s, times_s)
    if after is not None:
        assert 0 <= after < len(times_s)
        assert steps_until_steady(times_s[after:], times_s) == 0
    power = 2.0 ** round(unit)  # scaling by a power of two rounds nothing
    assert steps_until_steady([t * power for t in times_s], [t * power for t in times_s]) == after


def test_an_array_is_in_milliseconds() -> None:
    assert array([0.8123, 0.0412], 1) == "[812.3, 41.2]"
    assert array([], 1) == "[]"
