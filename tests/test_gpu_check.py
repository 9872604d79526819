"""`benchmarks.gpu_check`: its parts know every option that they get, and it keeps to its time."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks import gpu_check
from benchmarks.gpu_check import PARTS, Part, run
from benchmarks.reporting import app
from cs336_tui.config.spec import PRECISIONS
from cs336_tui.events.environment import DeviceInfo
from cs336_tui.events.gpus import find_gpu
from cs336_tui.worker.estimate.predict import predict
from tests.gpu import cells

ROOT = Path(__file__).parent.parent
BENCHMARKS = [part.arguments for part in PARTS if part.arguments[1].startswith("benchmarks.")]
SLEEPS = "import time; print('begun', flush=True); time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " + SLEEPS


@pytest.mark.parametrize("arguments", BENCHMARKS, ids=lambda arguments: arguments[1])
def test_every_benchmark_takes_its_options(arguments: list[str]) -> None:
    _, module, *options = arguments
    command = importlib.import_module(module).main
    assert isinstance(command, click.Command)
    command.make_context(module, [*options, "--output", "report.md"])


def test_there_are_benchmarks_to_run() -> None:
    assert len(BENCHMARKS) >= 3


def test_the_app_is_started_where_no_command_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A borrowed machine has the repository and its packages, but no installed command."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    assert app() == [str(tmp_path / "python3"), "-m", "cs336_tui"]
    (tmp_path / "cs336-tui").touch()
    assert app() == [str(tmp_path / "cs336-tui")]


def test_every_gpu_test_is_run_once() -> None:
    named = [word for part in PARTS for word in part.arguments if word.startswith("tests/gpu/")]
    assert sorted(named) == sorted(f"tests/gpu/{file.name}" for file in (ROOT / "tests/gpu").glob("test_*.py"))


def test_what_tells_most_fits_into_one_budget() -> None:
    (budget,) = (option.default for option in gpu_check.main.params if option.name == "budget")
    assert sum(part.about_s for part in PARTS[:5]) <= budget < 600


def test_what_a_part_says_is_told_as_it_says_it() -> None:
    told: list[str] = []
    done = run([sys.executable, "-c", "print('one'); raise SystemExit(3)"], 60, told.append)
    assert (done.code, done.said, "".join(told)) == (3, "one\n", "one\n")
    assert done.result == "exit code 3"


@pytest.mark.parametrize(("program", "at_least", "at_most"), [(SLEEPS, 2.0, 3.0), (DEAF, 3.0, 4.5)])
def test_a_part_without_an_end_is_interrupted_then_killed(program: str, at_least: float, at_most: float) -> None:
    began = time.monotonic()
    done = run([sys.executable, "-c", program], 3, lambda _text: None)
    assert done.code is None
    assert done.said.startswith("begun")
    assert ("KeyboardInterrupt" in done.said) == (program == SLEEPS)
    assert at_least <= time.monotonic() - began < at_most + 5  # a busy machine may be slow to start Python


def test_what_has_left_the_session_holds_nobody_up() -> None:
    leaves = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', %r], start_new_session=True)"
    began = time.monotonic()
    done = run([sys.executable, "-c", leaves % "import time; time.sleep(20)"], 60, lambda _text: None)
    assert time.monotonic() - began < 15
    assert done.code == 0


@pytest.fixture
def two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = (Part("one", "One", 1, ["-c", "print('said by one')"]), Part("two", "Two", 1e6, ["-c", "print('two')"]))
    monkeypatch.setattr(gpu_check, "PARTS", parts)


@pytest.mark.usefixtures("two_parts")
def test_what_does_not_fit_is_left_out_and_named(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    done = CliRunner().invoke(gpu_check.main, ["--output", str(report), "--budget", "100"])
    assert done.exit_code == 0, done.output
    text = report.read_text()
    assert "## One\n\n```\nsaid by one\n```\n\npassed after" in text
    assert "| Two | left out: no time left |" in text
    assert "Still to be run: `python -m benchmarks.gpu_check two`" in text


@pytest.mark.usefixtures("two_parts")
def test_a_part_that_fails_fails_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "PARTS", (Part("one", "One", 1, ["-c", "raise SystemExit('broken')"], True),))
    report = tmp_path / "report.md"
    done = CliRunner().invoke(gpu_check.main, ["--output", str(report)])
    assert done.exit_code == 1
    assert "broken" in report.read_text()


@pytest.mark.parametrize(
    ("card", "cannot", "low"),
    [
        ("T4", {"tf32", "bf16-mixed", "bf16", "fp8-mixed"}, "fp16-mixed"),
        ("V100", {"tf32", "bf16-mixed", "bf16", "fp8-mixed"}, "fp16-mixed"),
        ("A100", {"fp8-mixed"}, "bf16-mixed"),
        ("RTX 4090", set(), "bf16-mixed"),
        ("H100", set(), "bf16-mixed"),
        ("B200", set(), "bf16-mixed"),
    ],
)
def test_gpu_tests_ask_a_card_for_what_it_can_do(
    card: str, cannot: set[str], low: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = DeviceInfo(name="cuda:0", label=card, precisions=find_gpu(card).precisions)
    monkeypatch.setattr(cells, "the_gpu", lambda: info)
    assert cells.low_precision() == low
    for precision in PRECISIONS:
        if precision in cannot:
            with pytest.raises(pytest.skip.Exception, match=f"{card} cannot do {precision}"):
                cells.needs(precision)
        else:
            cells.needs(precision)


def test_the_largest_cell_of_the_gpu_tests_fits_a_t4() -> None:
    largest = predict(cells.gpu_spec(context_length=1024, pass_="train-step"), capability=(7, 5))
    assert largest.peak_bytes < 0.7 * find_gpu("T4").memory_bytes
