"""Programs take turns, and none is ever left behind; the judgement of made step times of known ratio."""

import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cs336_tui.selftest.programs import APP, BENCH, CONTROL, Program, SelftestError, read_lines
from cs336_tui.selftest.turns import (
    FROM_ROUNDS,
    FROM_STARTS,
    ON_CPU,
    ON_GPU,
    SETTLE_S,
    Plan,
    Turn,
    TurnsProgress,
    judge,
    log_ratio,
    marks_for,
    take_turns,
    worst,
)
from tests.selftest.made import ROUNDS, STARTS, STEPS, made
from tests.selftest.steppers import ASKED, asked, stepper
from tests.watching import wait_gone


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_each_program_steps_in_its_own_turns_only(tmp_path: Path) -> None:
    said: list[TurnsProgress] = []
    programs = [stepper(name, tmp_path, took_s=took) for name, took in (("quick", 0.004), ("slow", 0.02))]
    plan = Plan(starts=2, rounds=2, turn_s=0.5, steps=1)
    taken = take_turns(lambda _: programs, plan, said.append)

    assert taken.turn_s == 0.5
    assert [len(rounds) for rounds in taken.starts] == [2, 2]
    for each in itertools.chain(*taken.starts):
        assert list(each) == ["quick", "slow"]
        assert statistics.median(each["quick"].counted) < 0.02 <= min(each["slow"].counted)
        assert max(each["slow"].counted) < 0.5, "a step that was stopped lasted for the other's turn too"
        assert each["quick"].settling
    ends = [step.end for step in read_lines(tmp_path / "slow.steps")]
    assert max(after - before for before, after in itertools.pairwise(ends)) > 0.45, "it was stopped for a turn"

    assert [(each.start, each.round) for each in said] == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    assert said[0].left_s is None
    left = [each.left_s for each in said[1:] if each.left_s is not None]
    assert left == sorted(left, reverse=True)
    assert left[-1] == pytest.approx(2 * 0.5)


def test_a_program_in_a_terminal_is_told_to_begin_and_its_turn_is_as_long_as_its_steps_need(temporary: Path) -> None:
    plan = Plan(starts=1, rounds=1, turn_s=0.3, steps=100)
    taken = take_turns(lambda folder: [asked("asked", folder)], plan, print)
    assert taken.turn_s >= SETTLE_S + 100 * 0.005
    assert taken.starts[0][0]["asked"].counted
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("print('no such device'); raise SystemExit(3)", r"bad: ended with exit code 3; its last output:\nno such dev"),
        ("import os; os.kill(os.getpid(), 9)", r"bad: was ended by SIGKILL; its last output:\nnothing"),
        ("print('still building'); import time; time.sleep(600)", r"bad: timed no step to warm up with in 2 s"),
    ],
)  # fmt: skip
def test_a_program_that_fails_is_named_with_its_last_output(temporary: Path, code: str, message: str) -> None:
    plan, patience_s = Plan(starts=1, rounds=1), 2 if "600" in code else 60
    with pytest.raises(SelftestError, match=message):
        take_turns(lambda at: [stepper("good", at), stepper("bad", at, code=code)], plan, print, patience_s=patience_s)
    assert list(temporary.iterdir()) == [], "its files are removed by a process that sees everything end"


def test_one_that_ends_between_turns_is_named_too(temporary: Path) -> None:
    code = ASKED.replace("while True", "for _ in range(60)") + "print('\x1b[1mgone\x1b[0m away')"

    def make(folder: Path) -> list[Program]:
        command = [sys.executable, "-c", code, str(folder / "asked.steps"), "0.01"]
        return [asked("asked", folder)._replace(command=command)]

    with pytest.raises(SelftestError, match=r"(?s)asked: ended with exit code 0; .*gone away"):
        take_turns(make, Plan(starts=1, rounds=200, turn_s=0.5, steps=1), print)
    assert list(temporary.iterdir()) == []


@pytest.fixture
def under_way(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has programs take turns, in the middle of a round."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.selftest.steppers"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert any(line == "round 2\n" for line in process.stdout)
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_however_it_ends_no_process_and_no_file_is_left(
    under_way: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    family = psutil.Process(under_way.pid).children(recursive=True)
    assert len(family) >= 4, "two programs, a child of one, and what watches over them"
    began = time.monotonic()
    under_way.send_signal(number)
    assert under_way.wait(30) != 0
    print(f"ended {time.monotonic() - began:.2f} s after {number.name}")
    assert all(wait_gone(process.pid) for process in family)
    assert list(tmp_path.iterdir()) == []


FINE = ("pass", "pass")
NO_MEANS, NO_STDS = ("cannot tell", "pass"), ("pass", "cannot tell")
JUDGED = [
    ({BENCH: 1.05}, {APP: 1.5}, "fail", ("fail", "pass"), ("pass", "fail"), (False, False)),
    ({APP: 0.95}, {}, "fail", FINE, ("fail", "pass"), (False, False)),  # which tells no bare script's times either
    ({}, {APP: 0.5}, "pass", FINE, FINE, (False, False)),  # less scatter is nothing to blame
    ({BENCH: 1.02}, {}, "cannot tell", NO_MEANS, FINE, (False, False)),
    ({CONTROL: 1.03, BENCH: 1.2}, {}, "cannot tell", NO_MEANS, NO_MEANS, (True, False)),
    ({CONTROL: 0.97, BENCH: 1.2}, {}, "cannot tell", NO_MEANS, NO_MEANS, (True, False)),
    ({}, {CONTROL: 1.4, BENCH: 3}, "cannot tell", NO_STDS, NO_STDS, (False, True)),
    ({}, {CONTROL: 0.7, BENCH: 3}, "cannot tell", NO_STDS, NO_STDS, (False, True)),
    ({BENCH: 1.1}, {CONTROL: 2}, "fail", ("fail", "cannot tell"), NO_STDS, (False, True)),
]
"""Means and stds over the bare script's, then the judgement: of all, of means and stds of bench, those of the app, and
the means and stds that are noisy, as two bare scripts differ by more than the mark."""


@pytest.mark.parametrize(("means", "stds", "whole", "bench", "app", "noisy"), JUDGED)
def test_known_ratios_are_judged(means, stds, whole: str, bench: object, app: object, noisy: object) -> None:
    outcome = judge(made(means, stds), ON_CPU)
    assert [(row.means_judged, row.stds_judged) for row in outcome.rows] == [bench, app]
    assert (outcome.judged, (outcome.noisy_means, outcome.noisy_stds)) == (whole, noisy)


def test_equal_programs_pass_though_the_machine_drifts_and_known_ratios_are_found() -> None:
    outcome = judge(made(), ON_CPU)
    assert outcome.judged == "pass"
    assert [row.name for row in outcome.rows] == [BENCH, APP]
    assert outcome.control.name == CONTROL
    assert outcome.rows[0].steps == outcome.control.bare_steps == STARTS * ROUNDS * STEPS
    assert outcome.bare_std_s == pytest.approx(5.5e-4, rel=0.1), "the drift between turns is not in it"
    bench, app = judge(made({BENCH: 1.05}, {APP: 1.5}), ON_CPU).rows
    assert bench.means.low < 1.05 < bench.means.high < 1.06
    assert app.stds.low < 1.5 < app.stds.high < 1.8


def test_the_interval_holds_the_true_ratio_as_often_as_it_says() -> None:
    rng = random.Random(7)
    trials, held = 2000, 0
    for _ in range(trials):
        starts = []
        for _ in range(6):
            luck = rng.gauss(0, 0.01)
            starts.append([1.01 * 2.718281828 ** (luck + rng.gauss(0, 0.005)) for _ in range(3)])
        found = log_ratio(starts)
        held += found.low <= 1.01 <= found.high
    assert 0.93 <= held / trials <= 0.97


def test_what_a_sample_is_depends_on_how_many_starts_there_were() -> None:
    several, one = log_ratio([[1.0, 1.1], [0.9, 1.0]]), log_ratio([[1.0, 1.1, 0.9]])
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


def test_the_marks_are_those_of_the_device_and_nothing_is_judged_without_a_program() -> None:
    assert (ON_GPU.mean, ON_GPU.std) == (0.01, 1.1)
    assert (marks_for("cpu"), marks_for("cuda:1"), marks_for("mps")) == (ON_CPU, ON_GPU, ON_GPU)
    assert worst([]) == "cannot tell"
