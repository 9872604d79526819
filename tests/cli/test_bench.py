"""The installed command, as scripts call it."""

import csv
import io
import json
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from cs336_tui.cli.bench import _say_left_out
from cs336_tui.config.choices import sweep_from
from cs336_tui.events.events import StepsTimed
from cs336_tui.session.log import LogReader
from tests.commands import DIMS, SMALL, bench, call, call_bench, once_measuring, running, stopped
from tests.watching import wait_gone

ENDLESS = [*DIMS, *"--context 8 --batch 1 --warmup 1 --steps 10000000 --device cpu --threads 1".split()]


RUN_FIELDS = {
    *("spec", "status", "num_params", "warmup_times_s", "step_times_s", "phase_times_s", "summary", "tokens_per_s"),
    *("peak_allocated_bytes", "peak_reserved_bytes", "peak_rss_bytes", "error"),
}
SPEC_FIELDS = {
    *("size", "edition", "arch", "d_model", "d_ff", "num_layers", "num_heads", "vocab_size", "context_length"),
    *("batch_size", "pass", "precision", "device", "sync", "warmup_steps", "measure_steps", "seed"),
}


def test_json_has_the_fields_that_scripts_rely_on(tmp_path: Path):
    done = bench(*SMALL, "--pass", "forward,train-step", "--warmup", "0,2", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["schema"] == 1
    assert data["environment"]["torch"]
    assert len(data["runs"]) == 4
    for result in data["runs"]:
        assert result.keys() >= RUN_FIELDS
        assert result["spec"].keys() >= SPEC_FIELDS
        assert result["status"] == "ok"
        assert len(result["step_times_s"]) == 3
        assert len(result["warmup_times_s"]) == result["spec"]["warmup_steps"]
        assert result["summary"]["n"] == 3
        assert result["summary"]["ddof"] == 1
        assert result["peak_allocated_bytes"] is None
        assert result["peak_rss_bytes"] > 0
        assert result["tokens_per_s"] == pytest.approx(8 / result["summary"]["mean_s"])
    phases = {result["spec"]["pass"]: list(result["phase_times_s"]) for result in data["runs"]}
    assert phases == {"forward": ["forward"], "train-step": ["zero_grad", "forward", "loss", "backward", "optimizer"]}


def test_groups_of_a_preset_that_do_not_fit_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    name = "2026/gradient_checkpointing"
    for given in ({"sizes": ("tiny", "small")}, {"sizes": ("tiny",), "checkpoints": (0, 4)}):
        _say_left_out(name, sweep_from(preset_name=name, contexts=(64,), **given), given)
    assert capsys.readouterr().err == "note: --checkpoint 8,16,32 is left out: the smallest model has fewer blocks\n"
    _say_left_out(None, sweep_from(), {})
    assert capsys.readouterr().err == ""


def test_automatic_counts_end_by_themselves_and_say_why(tmp_path: Path):
    """Steps of about a millisecond: warm-up is checked from 10 steps on, measuring ends at 40."""
    words = [*SMALL, *"--pass forward --warmup auto:30 --steps auto:40 --interval 20% --format json".split()]
    done = call_bench(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["runs"]
    assert (result["spec"]["warmup_auto"], result["spec"]["steps_auto"]) == (True, 0.2)
    assert 10 <= len(result["warmup_times_s"]) <= 30
    assert 20 <= len(result["step_times_s"]) <= 40
    assert f"note: cell 1: stopped after {len(result['step_times_s'])} steps" in done.stderr


def test_files_are_written_and_written_over_by_the_same_command_unless_refused(tmp_path: Path):
    words = [*SMALL, "--pass", "forward", "--format", "csv", "-o", "out.csv", "--summary", "summary.md"]
    done = call_bench(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    (row,) = csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text()))
    assert row["status"] == "ok"
    summary = (tmp_path / "summary.md").read_text()
    assert "torch" in summary
    assert "has not ended" not in summary
    assert "cs336-tui bench" in summary
    assert call_bench(*words, "--pass", "backward", cwd=tmp_path).returncode == 0
    (row,) = csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text()))
    assert row["pass"] == "backward"
    assert "backward" in (tmp_path / "summary.md").read_text()
    refused = call_bench(*words, "--no-clobber", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "out.csv: already exists; choose another name, or leave out --no-clobber" in refused.stderr


def test_cells_can_run_in_this_process_and_each_line_ends_with_its_verdict_and_a_doubt_is_explained(tmp_path: Path):
    done = bench(*SMALL, "--pass", "forward,backward", "--in-process", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert [result["status"] for result in data["runs"]] == ["ok", "ok"]
    assert data["environment"]["start_method"] == "in-process"
    lines = done.stderr.splitlines()
    places = [number for number, line in enumerate(lines) if line.startswith("[")]
    assert len(places) == 2
    for place in places:
        assert re.search(r"\(n=3\) · .*\btoo-few-steps\b", lines[place])  # behind its cause, on a busy machine
        assert "too-few-steps: " in lines[place + 1]
    assert all("too-few-steps" in result["verdicts"] for result in data["runs"])


def test_of_several_ranks_the_command_that_measures_exposed_communication_is_named(tmp_path: Path) -> None:
    words = [*SMALL, "--pass", "train-step", "--ranks", "2", "--parallel", "none,ddp"]
    said = call_bench(*words, cwd=tmp_path).stderr
    (line,) = [line for line in said.splitlines() if line.startswith("exposed communication of ddp: ")]
    assert line.partition(": ")[2].startswith("cs336-tui ab --a '--parallel ddp' --b '--parallel none' ")
    alone = call_bench(*SMALL, "--pass", "forward", cwd=tmp_path).stderr
    assert "exposed communication" not in alone


Background = tuple[subprocess.Popen[str], Path, list[psutil.Process]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Background]]:
    """Starts headless runs, each with its log, once that holds measured steps, and all its processes."""
    with ExitStack() as started:

        def start(*words: str) -> Background:
            folder = tmp_path / "sessions"
            process = started.enter_context(running("bench", "--session-dir", str(folder), *words, cwd=tmp_path))
            log = once_measuring(process, folder)
            return process, log, psutil.Process(process.pid).children(recursive=True)

        yield start


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_a_terminal_sends_keeps_what_was_measured_and_exits_with_130(begin, number: signal.Signals):
    process, log, family = begin(*ENDLESS, "--pass", "forward,backward", "--format", "json")
    first, second = json.loads(stopped(process, number))["runs"]
    assert first["status"] == second["status"] == "cancelled"
    logged = [t for e in LogReader(log) if isinstance(e, StepsTimed) and e.kind == "measured" for t in e.times_s]
    assert first["step_times_s"] == logged
    assert len(logged) > 0
    assert all(wait_gone(each.pid) for each in family)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_several_ranks_leave_no_process_and_no_file(begin, number: signal.Signals, monkeypatch):
    # The names of sockets, which lie in it, are limited to about a hundred characters.
    with tempfile.TemporaryDirectory(prefix="ranks-") as temporary:
        monkeypatch.setenv("TMPDIR", temporary)
        process, _, family = begin(*ENDLESS, *"--pass train-step --ranks 2 --parallel ddp".split())
        assert list(Path(temporary).rglob("*.meeting"))
        mapped = {Path(region.path) for each in family for region in each.memory_maps()}
        stopped(process, number)
        assert all(wait_gone(each.pid) for each in family)
        assert list(Path(temporary).glob("cs336-tui-*")) == []
        assert [path for path in mapped if path.is_relative_to("/dev/shm") and path.exists()] == []


def test_out_of_memory_is_a_result(tmp_path: Path):
    impossible = "--d-model 1048576 --d-ff 1048576 --num-layers 1 --num-heads 2 --vocab-size 1000000000".split()
    done = call_bench(*impossible, *"--context 8 --pass forward --device cpu --format json".split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["runs"]
    assert result["status"] == "oom"
    assert result["error"]


def test_version_doctor_and_the_app_without_a_terminal(tmp_path: Path):
    from cs336_tui import __version__

    assert call("--version", cwd=tmp_path).stdout == f"cs336-tui {__version__}\n"
    done = call("doctor", cwd=tmp_path)
    assert done.returncode == 0
    for word in ("torch", "cpu", "fp32", "sessions", "driver"):
        assert word in done.stdout
    app = call(cwd=tmp_path)
    assert (app.returncode, "cs336-tui bench" in app.stderr) == (2, True)
