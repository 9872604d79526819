"""Disturbed children: the steps of a killed, hung or crashed child are kept and the next cell runs."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path

import psutil
import pytest

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import CellFinished, CellStarted, Event, StepsTimed
from cs336_tui.runner import supervise
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.launcher import Child
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.runner.supervise import Supervisor
from cs336_tui.session.lock import lock_path
from cs336_tui.session.log import LogReader
from tests.referee.corpus import BASE, USERS
from tests.watching import Watch, ample_timeout_s, endless_spec, is_gone, small_spec, wait_gone


def logged_steps(bench: Bench, cell: int) -> list[float]:
    steps = [e for e in LogReader(bench.log_path) if isinstance(e, StepsTimed) and e.cell == cell]
    return [t for e in steps if e.kind == "measured" for t in e.times_s]


@pytest.mark.parametrize(
    ("number", "status", "printed"),
    [(signal.SIGKILL, "killed", ""), (signal.SIGSEGV, "failed", "Segmentation fault"), (signal.SIGTERM, "killed", "")],
)
def test_a_child_that_dies_leaves_its_steps_and_the_next_cell_runs(start, number, status, printed):
    running = start(endless_spec(), small_spec())
    os.kill(running.once_measuring(), number)
    state = running.finish()
    died, followed = state.cells[0], state.cells[1]
    assert died.status == status
    assert signal.Signals(number).name in died.finished.error
    assert printed in died.output
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
    Supervisor(child, [0], watch, StopSignal()).run()
    (finished,) = watch.of(CellFinished)
    assert finished.status == "oom"
    assert finished.error.startswith("the kernel killed the process for lack of memory")
    child.close()
    child_commands.close()


def test_a_hang_ends_at_the_timeout_and_the_next_cell_runs(start):
    running = start(small_spec())
    timeout_s = running.bench.timeout_s = ample_timeout_s(running.finish().cells[0], at_least=3.0)
    running.begin(endless_spec(), small_spec())
    os.kill(running.once_measuring(1), signal.SIGSTOP)  # hangs in a way that SIGTERM cannot end
    running.bench.timeout_s = None  # the next cell may take its time
    state = running.finish()
    assert state.cells[1].status == "killed"
    assert f"timeout of {timeout_s:g} s" in state.cells[1].finished.error
    assert state.cells[2].status == "ok"


@pytest.mark.parametrize("listens", [True, False])
def test_stop_ends_the_run_within_two_seconds_keeps_what_was_measured_and_a_second_run_follows_it(start, listens):
    running = start(endless_spec(), small_spec())
    pid = running.once_measuring()
    if not listens:
        os.kill(pid, signal.SIGSTOP)
    asked_at = time.monotonic()
    assert running.bench.cancel()
    state = running.finish()
    assert time.monotonic() - asked_at < 2.0
    assert [cell.status for cell in state.cells.values()] == ["cancelled", "cancelled"]
    assert len(logged_steps(running.bench, 0)) == len(state.cells[0].step_times_s) > 3
    assert is_gone(pid)
    assert not running.bench.cancel()
    running.bench.run((small_spec(),), "another command")
    assert running.statuses == ["cancelled", "cancelled", "ok"]
    assert running.watch.state.commands == ["a command", "another command"]
    assert len([e for e in LogReader(running.bench.log_path) if isinstance(e, CellFinished)]) == 3


def test_the_fork_server_dying_costs_one_cell(start):
    running = start(endless_spec(), small_spec())
    pid = running.once_measuring()
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
    pid = running.once_measuring()
    running.bench.close(interrupted=True)
    running.finish()
    assert is_gone(pid)
    *_, last = LogReader(running.bench.log_path)
    assert last.reason == "interrupted"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_closing_gives_back_all_though_the_watcher_has_no_terminal_or_pipe_any_more(tmp_path: Path, temporary: Path):
    pids: list[int] = []

    def gone(events: Sequence[Event]) -> None:
        pids.extend(event.pid for event in events if isinstance(event, CellStarted) and event.pid)
        if pids:
            raise BrokenPipeError

    bench = Bench(gone, session_dir=tmp_path, device_interval_s=0)
    bench.prepare()
    with pytest.raises(BrokenPipeError):
        bench.run([endless_spec(), endless_spec(batch_size=2)], "a command")
    with pytest.raises(BrokenPipeError):
        bench.close()
    (pid,) = pids
    assert wait_gone(pid)
    assert bench.log_path.exists()
    assert not lock_path(bench.log_path).exists()
    assert list(temporary.glob("cs336-tui-*")) == []


def test_a_cell_runs_when_the_temporary_folder_has_gone_as_systems_delete_old_files(temporary: Path, start):
    running = start()
    running.run(small_spec())
    (scratch,) = temporary.glob("cs336-tui-*")
    shutil.rmtree(scratch)
    running.run(small_spec())
    running.bench.close()
    assert [(cell.status, cell.finished.error) for cell in running.cells] == [("ok", None)] * 2
    assert list(temporary.glob("cs336-tui-*")) == []


def test_a_process_that_dies_in_its_check_leaves_the_cells_result(start):
    spec = CellSpec(**BASE | {"model": "lm:LM", "check": "honest_models:DiesInItsCheck", "model_path": (str(USERS),)})
    state = start(spec, small_spec()).finish()
    found = state.cells[0]
    assert (found.status, len(found.step_times_s)) == ("ok", spec.measure_steps)
    assert found.finished.summary.n == spec.measure_steps
    assert "the check did not end: the process was ended by SIGKILL" in found.finished.audit.results.unchecked
    assert found.finished.audit.books.parent_s > 0
    assert state.cells[1].status == "ok"
