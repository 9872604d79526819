"""The judgement of made step times of known ratio."""

from __future__ import annotations

import random

import pytest

from cs336_tui.selftest.programs import APP, BENCH, CONTROL
from cs336_tui.selftest.turns import (
    FROM_ROUNDS,
    FROM_STARTS,
    ON_CPU,
    ON_GPU,
    Round,
    Turn,
    judge,
    log_ratio,
    marks_for,
    worst,
)
from tests.selftest.made import ROUNDS, STARTS, STEPS, made


def judged(starts: list[list[Round]]) -> dict[str, tuple[str, str]]:
    return {row.name: (row.means_judged, row.stds_judged) for row in judge(starts, ON_CPU).rows}


def test_equal_programs_pass_though_the_machine_drifts() -> None:
    outcome = judge(made(), ON_CPU)
    assert outcome.judged == "pass"
    assert [row.name for row in outcome.rows] == [BENCH, APP]
    assert outcome.control.name == CONTROL
    assert outcome.rows[0].steps == outcome.control.bare_steps == STARTS * ROUNDS * STEPS
    assert outcome.bare_std_s == pytest.approx(5.5e-4, rel=0.1), "the drift between turns is not in it"
    assert (outcome.noisy_means, outcome.noisy_stds) == (False, False)


def test_known_ratios_are_found() -> None:
    outcome = judge(made({BENCH: 1.05}, {APP: 1.5}), ON_CPU)
    bench, app = outcome.rows
    assert bench.means is not None
    assert bench.means.low < 1.05 < bench.means.high < 1.06
    assert app.stds is not None
    assert app.stds.low < 1.5 < app.stds.high < 1.8
    assert (bench.means_judged, bench.stds_judged) == ("fail", "pass")
    assert (app.means_judged, app.stds_judged) == ("pass", "fail")
    assert outcome.judged == "fail"


def test_a_faster_tool_does_not_tell_the_bare_scripts_times_either() -> None:
    assert judged(made({APP: 0.95}))[APP][0] == "fail"
    assert judged(made(stds={APP: 0.5}))[APP][1] == "pass", "less scatter is nothing to blame"


def test_an_interval_past_the_mark_cannot_tell() -> None:
    starts = made({BENCH: 1.02})
    assert judged(starts)[BENCH] == ("cannot tell", "pass")
    assert judge(starts, ON_CPU).judged == "cannot tell"


@pytest.mark.parametrize("control", [1.03, 0.97])
def test_nothing_is_judged_where_two_bare_scripts_differ_by_more_than_the_mark(control: float) -> None:
    outcome = judge(made({CONTROL: control, BENCH: 1.2}), ON_CPU)
    assert outcome.noisy_means
    assert not outcome.noisy_stds
    assert outcome.judged == "cannot tell"
    assert {row.stds_judged for row in outcome.rows} == {"pass"}


@pytest.mark.parametrize("control", [1.4, 0.7])
def test_noise_in_the_stds_of_bare_scripts(control: float) -> None:
    outcome = judge(made(stds={CONTROL: control, BENCH: 3}), ON_CPU)
    assert (outcome.noisy_means, outcome.noisy_stds) == (False, True)
    assert outcome.judged == "cannot tell"
    assert {row.means_judged for row in outcome.rows} == {"pass"}


def test_a_failure_in_means_stands_though_stds_are_noisy() -> None:
    assert judge(made({BENCH: 1.1}, {CONTROL: 2}), ON_CPU).judged == "fail"


def test_the_interval_holds_the_true_ratio_as_often_as_it_says() -> None:
    rng = random.Random(7)
    trials, held = 2000, 0
    for _ in range(trials):
        starts = []
        for _ in range(6):
            luck = rng.gauss(0, 0.01)
            starts.append([1.01 * 2.718281828 ** (luck + rng.gauss(0, 0.005)) for _ in range(3)])
        found = log_ratio(starts)
        assert found is not None
        held += found.low <= 1.01 <= found.high
    assert 0.93 <= held / trials <= 0.97


def test_what_a_sample_is_depends_on_how_many_starts_there_were() -> None:
    several, one = log_ratio([[1.0, 1.1], [0.9, 1.0]]), log_ratio([[1.0, 1.1, 0.9]])
    assert several is not None
    assert one is not None
    assert (several.method, one.method) == (FROM_STARTS, FROM_ROUNDS)
    assert log_ratio([[1.0]]) is None
    assert log_ratio([[], []]) is None


def test_turns_without_steps_are_in_no_ratio_and_leave_it_unknown() -> None:
    starts = made()
    for rounds in starts:
        for each in rounds:
            each[BENCH] = Turn((0.05,), ())
    bench, app = judge(starts, ON_CPU).rows
    assert (bench.means, bench.means_judged, bench.stds_judged) == (None, "cannot tell", "cannot tell")
    assert app.judged == "pass"


def test_the_marks_are_those_of_the_device() -> None:
    assert (ON_CPU.mean, ON_CPU.std) == (0.02, 1.2)
    assert (ON_GPU.mean, ON_GPU.std) == (0.01, 1.1)
    assert (marks_for("cpu"), marks_for("cuda:1"), marks_for("mps")) == (ON_CPU, ON_GPU, ON_GPU)


def test_what_several_judgements_come_to() -> None:
    assert worst(["pass", "pass"]) == "pass"
    assert worst(["pass", "cannot tell"]) == "cannot tell"
    assert worst(["cannot tell", "fail"]) == "fail"
    assert worst([]) == "cannot tell"
