"""`benchmarks.gpu_check`: its parts know every option that they get, it keeps to its time, and what a machine lacks is
said. Stand-ins answer for torch at the boundary of the processes."""

import importlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import gpu_check, overhead
from benchmarks.gpu_check import PARTS, Done, run
from benchmarks.reporting import app
from cs336_tui.config.spec import PRECISIONS
from cs336_tui.events.environment import DeviceInfo
from cs336_tui.events.events import CellsQueued
from cs336_tui.events.gpus import find_gpu
from cs336_tui.session.log import SessionLog
from cs336_tui.worker.estimate.predict import predict
from tests.gpu import cells
from tests.samples import HEADER, a_spec

ROOT = Path(__file__).parent.parent
BENCHMARKS = [part.arguments for part in PARTS if part.arguments[1].startswith("benchmarks.")]
SLEEPS = "import time; print('begun', flush=True); time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " + SLEEPS


@pytest.mark.parametrize("arguments", BENCHMARKS, ids=lambda arguments: arguments[1])
def test_every_benchmark_takes_its_options(arguments: list[str]) -> None:
    _, module, *options = arguments
    command = importlib.import_module(module).main
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
    budget = gpu_check._parser().get_default("budget")
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


def of_pytest(*lines: str) -> Done:
    return Done(0, 1.0, "\n".join(lines))


@pytest.mark.parametrize(
    ("summary", "result"),
    [
        ("======= 3 passed in 4.21s =======", "passed"),
        ("======= 3 passed, 1 warning in 64.21s (0:01:04) =======", "passed"),
        ("======= 3 passed, 2 skipped in 4.21s =======", "passed, 2 of 5 tests skipped"),
        ("======= 3 skipped in 4.21s =======", "skipped: needs two CUDA GPUs; needs nsys"),
    ],
)
def test_a_part_whose_tests_were_skipped_has_not_passed(summary: str, result: str) -> None:
    reasons = ("tests/gpu/test_a.py:13: needs two CUDA GPUs", "tests/gpu/test_b.py:7: needs nsys")
    lines = [f"SKIPPED [{number}] {reason}" for number, reason in enumerate((*reasons, reasons[0]), 1)]
    assert of_pytest(*lines, summary).result == result


STAND_IN = """
__version__ = "2.99.0"
class version:
    cuda = {cuda!r}
class cuda:
    is_available = staticmethod(lambda: {gpus} > 0)
    device_count = staticmethod(lambda: {gpus})
    def init():
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020). Please update it.")
"""


def checked(folder: Path, *parts: str, gpus: int = 1, cuda: str | None = "13.0") -> subprocess.CompletedProcess[str]:
    """A check of these parts in a Python with a stand-in for torch and no package beside it."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(STAND_IN.format(gpus=gpus, cuda=cuda))
    program = f"""
import sys
from benchmarks import gpu_check
from benchmarks.gpu_check import Part
gpu_check.PARTS = ({"".join(f"{part}," for part in parts)})
sys.exit(gpu_check.main(["--output", {str(folder / "report.md")!r}]))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}
    words = [sys.executable, "-S", "-c", program]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=60)


ONE = """Part("one", "One", 1, ["-c", "print('said by one')"], needs=())"""
TWO = """Part("two", "Two", 1, ["-c", "print('said by two')"], gpus=2, needs=())"""
APP = """Part("app", "App", 1, ["-c", "print('said by app')"], needs=("msgspec", "textual"))"""
BROKEN = """Part("broken", "Broken", 1, ["-c", "raise SystemExit('is broken')"], True, needs=())"""
LONG = """Part("long", "Long", 1e6, ["-c", "print('said by long')"], needs=())"""


@pytest.mark.parametrize(
    ("cuda", "why"),
    [(None, "it is built without CUDA"), ("13.0", "The NVIDIA driver on your system is too old (found version 12020)")],
)
def test_without_a_gpu_one_line_says_so(cuda: str | None, why: str, tmp_path: Path) -> None:
    done = checked(tmp_path, ONE, gpus=0, cuda=cuda)
    assert done.stdout == f"no GPU to check: torch 2.99.0 of {sys.executable} sees none: {why}\n"
    assert (done.returncode, done.stderr) == (1, "")
    assert not (tmp_path / "report.md").exists()


def test_without_torch_one_line_says_so(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    words = [sys.executable, "-S", "-m", "benchmarks.gpu_check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "gpu_check: torch cannot be asked for GPUs: ModuleNotFoundError: No module named 'torch'\n"


def test_each_part_runs_or_says_what_it_lacks(tmp_path: Path) -> None:
    done = checked(tmp_path, ONE, TWO, APP)
    report = (tmp_path / "report.md").read_text()
    assert "## One\n\n```\nsaid by one\n```\n\npassed after" in report
    assert "| One | passed |" in report
    assert "| Two | skipped: needs 2 GPUs, and torch sees 1 |" in report
    assert f"| App | skipped: needs what `{sys.executable} -m pip install msgspec textual` installs |" in report
    assert "said by two" not in done.stdout
    assert "== Two\nskipped: needs 2 GPUs, and torch sees 1\n" in done.stdout
    assert done.returncode == 0


def test_where_no_part_can_run_nothing_is_passed(tmp_path: Path) -> None:
    assert checked(tmp_path, TWO, APP).returncode == 1


def test_with_two_gpus_a_part_of_two_runs(tmp_path: Path) -> None:
    assert "said by two" in checked(tmp_path, TWO, gpus=2).stdout


@pytest.mark.parametrize("name", [part.name for part in PARTS])
def test_every_part_knows_what_it_lacks_on_a_bare_machine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (part,) = (part for part in PARTS if part.name == name)
    assert part.lacks(2) is None, "everything is installed here"
    assert (part.lacks(1) is None) == (name not in ("ranks", "lanes"))
    monkeypatch.setattr(gpu_check, "find_spec", lambda _module: None)
    assert "pip install click msgspec platformdirs psutil" in (part.lacks(2) or "")


def test_what_does_not_fit_is_left_out_and_named(tmp_path: Path) -> None:
    checked(tmp_path, ONE, LONG)
    report = (tmp_path / "report.md").read_text()
    assert "| Long | left out: no time left |" in report
    assert "Still to be run: `python -m benchmarks.gpu_check long`" in report


def test_a_part_that_fails_fails_the_whole(tmp_path: Path) -> None:
    assert checked(tmp_path, ONE, BROKEN).returncode == 1
    assert "is broken" in (tmp_path / "report.md").read_text()


def test_a_name_of_no_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_check.main(["nosuch"])
    assert "nosuch is no part; choose from doctor" in capsys.readouterr().err


def test_tests_run_without_the_plugins_that_the_settings_name() -> None:
    """As on a machine with pytest alone: a part of the GPU tests is collected, with and without a GPU."""
    (words,) = (part.arguments for part in PARTS if part.name == "do-bench-tests")
    bare = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    plain = [word for word in words if word not in ("--timeout", "180")]
    done = subprocess.run(
        [sys.executable, *plain, "--collect-only"], capture_output=True, text=True, check=False, cwd=ROOT, env=bare,
        timeout=100,
    )  # fmt: skip
    assert "INTERNALERROR" not in done.stdout + done.stderr
    assert done.returncode == 0, done.stdout


def test_the_overhead_is_beside_a_bare_build_on_the_device_of_the_cells(tmp_path: Path) -> None:
    log = SessionLog(tmp_path / "log.jsonl")
    log.write([HEADER, CellsQueued(at=1.0, first=0, specs=(a_spec(device="cuda:0"),))])
    assert overhead.gaps_ms(log.path)[0] == "cuda:0"
    (took_ms,) = overhead.bare_ms(1, "cpu")
    assert took_ms > 0
    with pytest.raises(subprocess.CalledProcessError) as failed:
        overhead.bare_ms(1, "nowhere")
    assert "nowhere" in failed.value.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "gpu").glob("test_*.py")), ids=lambda path: path.stem)
def test_gpu_tests_ask_for_a_compiler_and_for_nvml(path: Path) -> None:
    text = path.read_text()
    if re.search(r"compile\"?\W+\"(default|reduce-overhead|max-autotune)", text):
        assert "needs_compiler(" in text or "why_cannot_compile(" in text
    if re.search(r"\bNvml\(|memory_used_bytes", text):
        assert "needs_nvml" in text


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
