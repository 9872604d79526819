"""Whole sessions in jobs of a real Slurm, by the commands that a user types."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cs336_tui.events import events as ev
from cs336_tui.runner.jobs.bench import JobsBench
from cs336_tui.runner.jobs.job import JobRequest, LaunchChoice, folder_of, log_path
from cs336_tui.runner.jobs.slurm import SlurmLauncher
from cs336_tui.session.lock import writer_of
from cs336_tui.session.state import SessionState
from cs336_tui.session.store import load
from tests.cluster.slurm import NODES, Slurm
from tests.commands import COMMAND, SMALL, bench, call_bench, run
from tests.watching import PATIENCE_S, Watch, small_spec

SLURM = "--launcher slurm --partition ci --time 0:05".split()
SLOW = """
import time
from torch import nn

class LM(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab_size, d_model), nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        if len(tokens) > 2:
            time.sleep(1000)
        return self.head(self.embed(tokens))
"""
"""A model that does not come to its end with batches of more than two."""

Start = Callable[..., "subprocess.Popen[str]"]


class Session:
    """A session as its log tells it."""

    def __init__(self, slurm: Slurm, directory: Path) -> None:
        self._slurm, self._directory = slurm, directory

    @property
    def log(self) -> Path:
        (log,) = self._directory.glob("*.jsonl")
        return log

    @property
    def state(self) -> SessionState:
        return load(self.log)

    def _begun(self) -> bool:
        return any(log.stat().st_size for log in self._directory.glob("*.jsonl"))

    def until(self, true: Callable[[SessionState], object], what: str) -> None:
        """Wait until `true` of its state."""
        self._slurm.until(lambda: self._begun() and true(self.state), what)

    def job_of(self, cell: int) -> str:
        """Slurm's name for the job of a cell."""
        return next(job.submitted.id for job in self.state.jobs.values() if cell in job.submitted.cells)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts commands that run beside the test and end with it."""
    with contextlib.ExitStack() as kept:

        def start(*words: str) -> subprocess.Popen[str]:
            pipe = subprocess.PIPE
            process = subprocess.Popen([COMMAND, *words], cwd=tmp_path, stdout=pipe, stderr=pipe, text=True)
            kept.callback(process.communicate)
            kept.callback(process.kill)
            return process

        yield start


def processes_in(folder: Path) -> list[str]:
    """Processes whose command names this folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = " ".join(process.cmdline())
            if str(folder) in words and process.pid != os.getpid():
                found.append(words)
    return found


def runs(printed: str) -> list[dict[str, Any]]:
    """The cells of printed JSON, by their batch."""
    return sorted(json.loads(printed)["runs"], key=lambda run: run["spec"]["batch_size"])


def test_a_sweep_in_a_job_prints_what_a_local_run_prints(slurm: Slurm, tmp_path: Path):
    words = [*SMALL, *"--pass forward --batch 1,2 --format json".split()]
    here = call_bench(*words, cwd=tmp_path)
    there = bench(*words, *SLURM, "--as", "allocation", cwd=tmp_path)
    assert (here.returncode, there.returncode) == (0, 0), there.stderr
    assert json.loads(here.stdout).keys() == json.loads(there.stdout).keys()
    for before, after in zip(runs(here.stdout), runs(there.stdout), strict=True):
        assert before.keys() <= after.keys()
        assert (before["spec"], before["status"]) == (after["spec"], after["status"])
    slurm.emptied()
    (folder,) = tmp_path.rglob("*.jobs")
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir() if not path.is_symlink()}
    assert modes == dict.fromkeys(modes, 0o600)
    assert folder.stat().st_mode & 0o777 == 0o700

    refused = bench(*words, "--launcher", "slurm", "--partition", "nope", cwd=tmp_path / "sessions")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.count("\n") == 1
    assert "Invalid partition name specified" in refused.stderr
    assert not list((tmp_path / "sessions" / "sessions").iterdir())


@pytest.mark.timeout(300)
def test_whatever_happens_to_jobs_every_cell_ends_once_and_with_a_name(slurm: Slurm, tmp_path: Path, start: Start):
    (tmp_path / "slow.py").write_text(SLOW)
    directory = tmp_path / "sessions"
    session = Session(slurm, directory)
    of_batch = "--pass forward --batch 1,2,3,4,5,6 --order as-given --model slow:LM --model-path".split()
    at = ["--session-dir", str(directory)]
    watcher = start("bench", *SMALL, *of_batch, str(tmp_path), *SLURM, *at)

    session.until(lambda state: state.running.keys() >= {2, 3, 4, 5}, "four cells to run")
    cancelled, late, moved = map(session.job_of, (2, 4, 5))
    slurm.expire(late)
    slurm.call("scancel", cancelled)
    killed = writer_of(log_path(folder_of(session.log), "4"))
    assert killed
    os.kill(killed.pid, signal.SIGKILL)
    node = slurm.running(moved)
    slurm.call("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    slurm.call("scontrol", "requeue", moved)
    session.until(lambda state: state.cells[5].status == "queued", "the cell of a requeued job to wait")
    session.until(lambda state: state.cells[2].finished and state.cells[3].finished, "the ends of two jobs")

    watcher.kill()
    watcher.wait()
    slurm.until(lambda: slurm.state(moved) == "PENDING", "a job to be requeued")
    slurm.call("scontrol", "update", f"JobId={moved}", "StartTime=now")
    watcher = start("watch", "last", "--format", "json", *at)
    (other,) = set(NODES) - {node}
    session.until(lambda state: 5 in state.running and state.jobs["6"].node == other, "a requeued cell to run")
    session.until(lambda state: state.cells[4].finished, "the end of a job past its limit")

    assert run("cancel", "last", *at, cwd=tmp_path).returncode == 0
    out, error = watcher.communicate(timeout=PATIENCE_S)
    assert watcher.returncode == 130, error
    assert [each["status"] for each in runs(out)][:2] == ["ok", "ok"]
    ends = [cell.finished for cell in session.state.cells.values() if cell.finished]
    assert [end.status for end in ends] == ["ok", "ok", "cancelled", "killed", "killed", "cancelled"]
    for end, reason in zip(ends[2:], ("CANCELLED", "killed by SIGKILL", "TIMEOUT", "CANCELLED"), strict=True):
        assert reason in (end.error or "")
    assert [len(session.state.cells[number].step_times_s) for number in (0, 1)] == [3, 3]

    again = run("resume", "last", "--detach", *at, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    submitted = [job.submitted.cells for job in session.state.jobs.values()][6:]
    assert sorted(cell for cells in submitted for cell in cells) == [2, 3, 4, 5]
    slurm.reset()
    slurm.until(lambda: not processes_in(tmp_path), "processes of jobs to end")


class Mirror:
    """Two folders of the same files, each of which shows news of the other one only after a time: requests written on
    the login node, and logs written on nodes."""

    def __init__(self, login: Path, node: Path, lag_s: float) -> None:
        self._ways = ((login, node, "*.json"), (node, login, "*.jsonl"))
        self._lag_s = lag_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._copy, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _copy(self) -> None:
        """Write what was there when it looked last, one lag ago."""
        seen: dict[Path, bytes] = {}
        while not self._over.is_set():
            for path, data in seen.items():
                path.write_bytes(data)
            seen = {
                target / path.name: path.read_bytes()
                for source, target, pattern in self._ways
                for path in source.glob(pattern)
            }
            self._over.wait(self._lag_s)


def test_a_shared_folder_may_lag(slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = tmp_path / "s.jsonl"
    login, node = folder_of(log), tmp_path / "node"
    login.mkdir()
    node.mkdir()
    python = tmp_path / "python"  # of nodes, which have the shared folder elsewhere
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$1" "$2" "$3" "{node}/${{4##*/}}"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    watch = Watch()
    running = JobsBench(watch, log, make=SlurmLauncher, poll_s=0.2)
    specs = (small_spec(), small_spec(batch_size=2))
    settings = JobRequest(session="s", job="", cells=(), device_interval_s=0)
    choice = LaunchChoice(launcher="slurm", form="allocation", lanes=1)
    with Mirror(login, node, lag_s=2.0):
        running.submit([ev.CellsQueued(at=1.0, first=0, specs=specs)], choice, settings)
        running.work()
    running.close()
    assert {cell.status for cell in watch.state.cells.values()} == {"ok"}
    assert [len(cell.step_times_s) for cell in load(log).cells.values()] == [3, 3]
    slurm.emptied()
