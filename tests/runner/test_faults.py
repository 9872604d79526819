"""Disturbed children: the steps of a killed, hung or crashed child are kept and the next cell runs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import psutil
import pytest

from cs336_tui.events.events import CellFinished, StepsTimed
from cs336_tui.runner import supervise
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.launcher import Child
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.runner.supervise import Supervisor
from cs336_tui.session.log import LogReader
from cs336_tui.session.state import SessionState
from tests.watching import PATIENCE_S, Watch, ample_timeout_s, endless_spec, is_gone, small_spec


class Running:
    """A bench with a run under way on a thread of its own."""

    def __init__(self, directory: Path, *specs) -> None:
        self.watch = Watch()
        self.bench = Bench(self.watch, session_dir=directory, device_interval_s=0)
        self.bench.prepare()
        self.bench.start()
        self.begin(*specs)

    def begin(self, *specs) -> None:
        """Run these too, when nothing runs."""
        self.thread = threading.Thread(target=self.bench.run, args=(specs, "a command"))
        self.thread.start()

    def pid_once_measuring(self, cell: int = 0) -> int:
        """The child's pid, once some measured steps have arrived."""
        self.watch.until(lambda state: cell in state.cells and len(state.cells[cell].step_times_s) > 3)
        return self.watch.state.cells[cell].pid

    def finish(self) -> SessionState:
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        return self.watch.state


@pytest.fixture
def start(tmp_path: Path) -> Iterator[type[Running]]:
    started: list[Running] = []

    def begin(*specs) -> Running:
        started.append(Running(tmp_path, *specs))
        return started[-1]

    yield begin
    for running in started:
        running.bench.close()


def logged_steps(bench: Bench, cell: int) -> list[float]:
    steps = [e for e in LogReader(bench.log_path) if isinstance(e, StepsTimed) and e.cell == cell]
    return [t for e in steps if e.kind == "measured" for t in e.times_s]


@pytest.mark.parametrize(
    ("number", "status", "word"),
    [
        (signal.SIGKILL, "killed", "SIGKILL"),
        (signal.SIGSEGV, "failed", "SIGSEGV"),
        (signal.SIGTERM, "killed", "SIGTERM"),
    ],
)
def test_a_child_that_dies_leaves_its_steps_and_the_next_cell_runs(start, number, status, word):
    running = start(endless_spec(), small_spec())
    os.kill(running.pid_once_measuring(), number)
    state = running.finish()
    died, followed = state.cells[0], state.cells[1]
    assert died.status == status
    assert word in died.finished.error
    assert died.finished.stage == "measuring"
    assert died.finished.step == len(died.step_times_s) > 3
    assert logged_steps(running.bench, 0) == died.step_times_s
    assert followed.status == "ok"
    assert len(followed.step_times_s) == 3


def test_the_kernels_out_of_memory_killer_is_named(tmp_path, monkeypatch):
    kills = iter((0, 1))
    monkeypatch.setattr(supervise, "kernel_oom_kills", lambda: next(kills))
    context = get_context("fork")
    (events, child_events), (child_commands, commands) = context.Pipe(duplex=False), context.Pipe(duplex=False)
    process = context.Process(target=signal.raise_signal, args=(signal.SIGKILL,))
    process.start()
    child_events.close()
    watch = Watch()
    child = Child(process, events, commands, tmp_path / "output", "spawn")
    Supervisor(child, 0, watch, StopSignal()).run()
    (finished,) = watch.of(CellFinished)
    assert finished.status == "oom"
    assert finished.error.startswith("the kernel killed the process for lack of memory")
    child.close()
    child_commands.close()


def test_a_crash_leaves_its_traceback_in_the_output(start):
    running = start(endless_spec())
    os.kill(running.pid_once_measuring(), signal.SIGSEGV)
    state = running.finish()
    assert "Segmentation fault" in state.cells[0].output


def test_a_hang_ends_at_the_timeout_and_the_next_cell_runs(start):
    running = start(small_spec())
    timeout_s = running.bench.timeout_s = ample_timeout_s(running.finish().cells[0], at_least=3.0)
    running.begin(endless_spec(), small_spec())
    os.kill(running.pid_once_measuring(1), signal.SIGSTOP)  # hangs in a way that SIGTERM cannot end
    running.bench.timeout_s = None  # the next cell may take its time
    state = running.finish()
    assert state.cells[1].status == "killed"
    assert f"timeout of {timeout_s:g} s" in state.cells[1].finished.error
    assert state.cells[2].status == "ok"


def test_stop_ends_the_run_within_two_seconds_and_keeps_what_was_measured(start):
    running = start(endless_spec(), small_spec())
    pid = running.pid_once_measuring()
    asked_at = time.monotonic()
    assert running.bench.cancel()
    state = running.finish()
    assert time.monotonic() - asked_at < 2.0
    assert [cell.status for cell in state.cells.values()] == ["cancelled", "cancelled"]
    assert len(logged_steps(running.bench, 0)) == len(state.cells[0].step_times_s) > 3
    assert is_gone(pid)
    assert not running.bench.cancel()


def test_stop_ends_a_child_that_does_not_listen_within_two_seconds(start):
    running = start(endless_spec())
    pid = running.pid_once_measuring()
    os.kill(pid, signal.SIGSTOP)
    asked_at = time.monotonic()
    running.bench.cancel()
    state = running.finish()
    assert time.monotonic() - asked_at < 2.0
    assert state.cells[0].status == "cancelled"
    assert is_gone(pid)


def test_a_second_run_goes_into_the_same_session_after_a_stop(start):
    running = start(endless_spec())
    running.pid_once_measuring()
    running.bench.cancel()
    running.finish()
    running.bench.run((small_spec(),), "another command")
    assert [cell.status for cell in running.watch.state.cells.values()] == ["cancelled", "ok"]
    assert running.watch.state.commands == ["a command", "another command"]
    assert len([e for e in LogReader(running.bench.log_path) if isinstance(e, CellFinished)]) == 2


def test_the_fork_server_dying_costs_one_cell(start):
    running = start(endless_spec(), small_spec())
    pid = running.pid_once_measuring()
    server = psutil.Process(pid).parent()
    server.kill()
    state = running.finish()
    assert state.cells[0].status in ("failed", "killed")
    assert state.cells[1].status == "ok"
    assert is_gone(pid)


def test_every_step_reaches_the_log_before_the_watcher(start):
    running = start(small_spec(measure_steps=300))
    state = running.finish()
    assert state.cells[0].status == "ok"
    assert logged_steps(running.bench, 0) == state.cells[0].step_times_s
    assert len(state.cells[0].step_times_s) == 300
    assert state.cells[0].phase_times_s.keys() == {"forward"}


def test_closing_while_running_ends_the_child_and_says_so_in_the_log(start):
    running = start(endless_spec())
    pid = running.pid_once_measuring()
    running.bench.close(interrupted=True)
    running.finish()
    assert is_gone(pid)
    *_, last = LogReader(running.bench.log_path)
    assert last.reason == "interrupted"
