"""The warm-up view's numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.analysis.effects import array, steps_until_steady, warmup_groups
from cs336_tui.analysis.merge import merge
from tests.samples import a_spec
from tests.session.made import LAPTOP, Cell, cell, results_of, session_of

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
    assert [(trace.warmup, len(trace.result.cell.warmup_times_s)) for trace in group.traces] == [
        ("2", 2),
        ("auto (3)", 3),
    ]


def test_machines_are_not_mixed_and_sessions_are_told_apart() -> None:
    one = session_of(cell(STEADY, device="cpu", warmup_steps=0))
    two = session_of(cell(STEADY, device="cpu", warmup_steps=1))
    laptop = session_of(cell(STEADY, device="cpu", warmup_steps=1), environment=LAPTOP)
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
