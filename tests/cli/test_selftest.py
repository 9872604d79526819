"""`cs336-tui selftest` as people and scripts call it."""

import json
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from cs336_tui.cli.files import Destination
from cs336_tui.cli.selftest import device_of, publish, run_selftest
from cs336_tui.config.spec import SpecError
from cs336_tui.export.subjects.selftest import Selftest, selftest_table, sentence
from cs336_tui.export.writing.formats import render
from cs336_tui.selftest import programs
from cs336_tui.selftest.programs import APP, BENCH, CONTROL, UNSAMPLED, SelftestCell, programs_of
from cs336_tui.selftest.turns import ON_CPU, Plan, Taken, judge
from tests.samples import ENVIRONMENT
from tests.selftest.made import made


def a_selftest(means: dict[str, float] | None = None, stds: dict[str, float] | None = None, **more: Any) -> Selftest:
    starts = made(means, stds)
    taken = Taken(plan=Plan(starts=6, rounds=4), turn_s=1.3, starts=tuple(map(tuple, starts)))
    outcome = judge(starts, ON_CPU)
    work = SelftestCell(size="tiny", device="cpu")
    return Selftest(work=work, environment=ENVIRONMENT, taken=taken, outcome=outcome, **more)


@pytest.mark.timeout(180)  # five programs start with torch
def test_a_real_run_has_all_rows_and_keeps_every_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = SelftestCell(size="tiny", device="cpu", context=8, batch=1)
    plan = Plan(starts=1, rounds=2, turn_s=0.6, steps=2)
    selftest = run_selftest(work, plan, ENVIRONMENT)
    assert "start 1/1, programs are starting" in capsys.readouterr().err

    code = publish(selftest, Destination("json"), tmp_path)
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert [row["program"] for row in found["rows"]] == [CONTROL, BENCH, UNSAMPLED, APP]
    assert any(row["steps"] for row in found["rows"]), "a machine may be so busy that a program had no time at all"
    assert all((row["mean_s"] is None) == (row["steps"] == 0) for row in found["rows"])
    assert {row["outcome"] for row in found["rows"]} == {selftest.outcome.judged}
    assert code == {"pass": 0, "fail": 1, "cannot tell": 3}[selftest.outcome.judged]

    (raw,) = (tmp_path / "selftests").glob("*.json")
    assert str(raw) in printed.err
    kept = json.loads(raw.read_text())["taken"]["starts"]
    assert [list(each) for each in kept[0]] == [["bare", CONTROL, BENCH, UNSAMPLED, APP]] * 2
    assert sum(len(each["app"]["counted"]) for each in kept[0]) == found["rows"][-1]["steps"]


def test_without_textual_the_app_is_left_out_and_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = [each.name for each in programs_of(SelftestCell(size="tiny", device="cpu"), tmp_path)]
    monkeypatch.setattr(programs, "find_spec", lambda name: None if name == "textual" else name)
    without = [each.name for each in programs_of(SelftestCell(size="tiny", device="cpu"), tmp_path)]
    assert (names, without) == (["bare", CONTROL, BENCH, UNSAMPLED, APP], names[:-1])

    said = "the app is left out: Textual is not installed"
    selftest = a_selftest()
    assert said not in selftest_table(selftest).footnotes
    starts = [[{name: turn for name, turn in each.items() if name != APP} for each in rounds] for rounds in made()]
    assert said in selftest_table(msgspec.structs.replace(selftest, outcome=judge(starts, ON_CPU))).footnotes


def test_a_program_that_cannot_run_is_an_error_with_its_output() -> None:
    with pytest.raises(
        click.ClickException, match=r"(?s)selftest: .*: ended with exit code [12]; its last output:\n.*nowhere"
    ):
        run_selftest(SelftestCell(size="tiny", device="nowhere"), Plan(starts=1, rounds=1), ENVIRONMENT)


@pytest.mark.parametrize(
    ("means", "stds", "code", "begin"),
    [
        ({}, {}, 0, "pass: bench and app time steps as a bare script does (means within 2 %, stds at most 1.2); on "),
        ({BENCH: 1.05}, {}, 1, "fail: bench takes 1.0"),
        ({}, {APP: 1.5}, 1, "fail: the std of app is 1."),
        ({BENCH: 1.02}, {}, 3, "cannot tell: intervals reach past the mark or are unknown, of means (bench) (means"),
        ({CONTROL: 1.1}, {}, 3, "cannot tell: this machine is too noisy now to tell: the means of two copies"),
    ],
)  # fmt: skip
def test_one_sentence_says_what_it_comes_to(tmp_path: Path, capsys, means, stds, code: int, begin: str) -> None:
    selftest = a_selftest(means, stds)
    assert publish(selftest, Destination("table"), tmp_path) == code
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last == sentence(selftest)
    assert last.startswith(begin)
    for part in ("Some CPU 9000, 64 cores", "Linux 6.8", "Python 3.12.4", "torch 2.13.0", "cs336-tui 0.1.0."):
        assert part in last


def test_nothing_is_left_out_in_silence() -> None:
    text = render(selftest_table(a_selftest(keep_memory=True)), "table")
    assert "not counted: 192 of 4032 steps, which began within 0.25 s" in text
    assert "4 rounds in each of 6 starts" in text
    assert "a sample being the mean of a start's rounds" in text
    assert "told to keep freed memory" in text
    row = next(
        line for line in render(selftest_table(a_selftest()), "markdown").splitlines() if line.startswith("| program")
    )
    assert " left " not in row
    assert row.count("within") + row.count("at most") >= 2, "the marks head the columns of what is judged"


def test_a_gpu_is_named_with_its_driver() -> None:
    on_gpu = msgspec.structs.replace(a_selftest(), work=SelftestCell(size="small", device="cuda:0"))
    assert "on NVIDIA H100 80GB HBM3 (cuda:0), Some CPU" in sentence(on_gpu)
    assert "driver 580.65" in sentence(on_gpu)


def test_one_device_that_is_here() -> None:
    assert [device_of(ENVIRONMENT, name) for name in ("auto", "cuda", "cpu")] == ["cuda:0", "cuda:0", "cpu"]
    with pytest.raises(SpecError, match="this machine has cpu, cuda:0"):
        device_of(ENVIRONMENT, "cuda:4")
    with pytest.raises(SpecError, match="device every"):
        device_of(ENVIRONMENT, "every")
