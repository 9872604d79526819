"""`cs336-tui example`: files of code of one's own, which `bench` runs as they are."""

import json
import shlex
from pathlib import Path

import pytest

from cs336_tui.config.meanings import examples
from tests.commands import SMALL, call


@pytest.mark.parametrize("name", examples())
def test_an_example_runs_as_it_is_by_the_command_that_it_names_and_is_checked(name: str, tmp_path: Path) -> None:
    printed = call("example", name)
    assert (printed.returncode, printed.stderr) == (0, "")
    (tmp_path / "mine.py").write_text(printed.stdout)
    (named,) = [line for line in printed.stdout.splitlines() if line.startswith("# cs336-tui bench --size tiny ")]
    words = shlex.split(named.removeprefix("# cs336-tui bench --size tiny "))
    usual = [] if "--pass" in words else ["--pass", "forward"]
    done = call("bench", *SMALL, *usual, *words, "--format", "json", "--session-dir", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert "mine:" in json.dumps(runs[-1]["spec"])
    assert all("checked" in run["verdicts"] for run in runs)


def test_help_of_bench_says_what_each_takes_and_returns() -> None:
    shown = " ".join(call("bench", "--help").stdout.split())
    for name, example in examples().items():
        assert f"{name} {example['call']}: {example['about']}" in shown
        assert example["call"].split()[0] in shown


def test_without_a_name_the_names_are_listed() -> None:
    done = call("example")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == list(examples())


def test_an_unknown_example_is_told_the_nearest() -> None:
    done = call("example", "atention")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("; did you mean attention?\n")
