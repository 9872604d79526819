"""Resuming a session: exactly the cells without a result run, into the same log."""

import os
import signal
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from cs336_tui.config.spec import SpecError
from cs336_tui.events.events import CellsQueued, CellStarted, Event, SessionEnded, SessionResumed, StepsTimed
from cs336_tui.session.lock import lock_path
from cs336_tui.session.log import LogError, LogReader, SessionLog
from cs336_tui.session.store import load
from tests.runner.running import Running, resume, run
from tests.watching import PATIENCE_S, endless_spec, small_spec


def broken_off(path: Path, upto: type, *, torn: bytes = b"") -> None:
    """Cut the log after its last event of a kind, as a killed app leaves it, with part of a line at the end."""
    events = list(LogReader(path))
    last = max(i for i, event in enumerate(events) if isinstance(event, upto))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: last + 1]) + torn)


def test_a_session_that_was_killed_runs_what_has_no_result(tmp_path: Path) -> None:
    specs = [small_spec(batch_size=size) for size in (1, 2, 3)]
    path, first = run(tmp_path, *specs)
    of_first = list(first.state.cells[0].step_times_s)
    lines = path.read_bytes().splitlines(keepends=True)
    steps = [i for i, event in enumerate(LogReader(path)) if isinstance(event, StepsTimed) and event.cell == 1]
    path.write_bytes(b"".join(lines[: steps[0] + 1]) + b'{"type":"StepsTimed","at":17')
    left, watch = resume(path)
    assert left == (1, 2)
    state = load(path)
    assert [cell.status for cell in state.cells.values()] == ["ok"] * 3
    assert state.cells[0].step_times_s == of_first
    assert len(state.cells[1].earlier) == 1
    assert state.cells[1].earlier[0].warmup_times_s or state.cells[1].earlier[0].step_times_s
    assert [len(cell.step_times_s) for cell in state.cells.values()] == [3, 3, 3]
    assert [cell.step_times_s for cell in watch.state.cells.values()] == [
        cell.step_times_s for cell in state.cells.values()
    ]
    assert len(watch.of(SessionResumed)) == 1


def test_cells_of_an_old_log_that_differ_in_a_choice_without_effect_run_and_each_keeps_its_machine(
    tmp_path: Path,
) -> None:
    specs = [small_spec(pass_="forward", optimizer=optimizer) for optimizer in ("adamw", "adamw-fused")]
    path, _ = run(tmp_path, *specs)
    path.write_text(path.read_text().replace('"torch":"', '"torch":"other-'))
    broken_off(path, CellStarted)
    left, _ = resume(path)
    assert left == (1,)
    first, second = load(path).cells.values()
    assert (first.spec.optimizer, first.status) == ("adamw", "ok")
    assert (second.spec.optimizer, second.status) == ("adamw-fused", "ok")
    assert first.environment.torch == f"other-{second.environment.torch}"


def test_cancelled_cells_run_and_failed_ones_when_asked(tmp_path: Path) -> None:
    running = Running(tmp_path)
    bench = running.bench
    running.begin(endless_spec(), small_spec(), small_spec(batch_size=2))
    os.kill(running.once_measuring(steps=1), signal.SIGKILL)
    bench.queue.pause()
    running.watch.until(lambda state: state.cells[0].is_over)
    bench.cancel()
    running.finish()
    bench.close()
    assert running.statuses[0] == "killed"
    assert running.statuses[2] == "cancelled"
    cancelled = tuple(cell.cell for cell in running.cells if cell.status == "cancelled")
    left, _ = resume(bench.log_path)
    assert left == cancelled
    assert load(bench.log_path).cells[0].status == "killed"


def test_a_log_that_somebody_writes_is_left_alone(tmp_path: Path) -> None:
    path, _ = run(tmp_path, small_spec())
    before = path.read_bytes()
    with closing(SessionLog(path, resume=True)):
        with pytest.raises(LogError, match=rf"process {os.getpid()} .*--take-over"):
            resume(path)
        assert path.read_bytes() == before
    resume(path)


def test_a_cell_that_this_machine_cannot_run_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    path, _ = run(tmp_path, small_spec())
    text = path.read_text().replace('"device":"cpu"', '"device":"cuda:77"')
    path.write_text(text)
    broken_off(path, CellsQueued)
    before = path.read_bytes()
    with pytest.raises(SpecError, match="cuda:77"):
        resume(path)
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.writer*"))


def test_nothing_is_left_of_a_session_that_is_complete_and_skipped_cells_stay_skipped(tmp_path: Path) -> None:
    bench = Running(tmp_path).bench
    bench.add([(small_spec(), 1), (small_spec(batch_size=2), 1)])
    bench.queue.skip([1], "not wanted")
    bench.work()
    bench.close()
    left, watch = resume(bench.log_path)
    assert left == ()
    assert len(watch.of(CellsQueued)) == 1
    state = load(bench.log_path)
    assert state.cells[0].earlier == []
    assert (state.cells[1].status, state.cells[1].skipped_because) == ("skipped", "not wanted")


def test_a_resumed_session_keeps_what_becomes_of_cells_after_one_ran_out_of_memory(tmp_path: Path) -> None:
    for command, skips in (("cs336-tui bench --no-oom-skip", False), ("cs336-tui bench", True)):
        first = Running(tmp_path).bench
        first.add([(small_spec(), 1)], command)
        first.close()
        again = Running(tmp_path, first.session).bench
        again.resume()
        again.close()
        assert again.skip_after_oom is skips


def test_closing_waits_until_the_session_is_resumed(tmp_path: Path) -> None:
    path, _ = run(tmp_path, small_spec())
    bench = Running(path.parent, path.stem).bench
    bench.probe()
    closing = threading.Thread(target=bench.close)

    def close_meanwhile(_history: Sequence[Event]) -> None:
        closing.start()
        closing.join(1.0)  # closing has time to do what it does

    try:
        bench.resume(close_meanwhile)
    finally:
        closing.join(PATIENCE_S)
        bench.close()
    last = [event for event in LogReader(path) if isinstance(event, SessionResumed | SessionEnded)][-2:]
    assert [type(event) for event in last] == [SessionResumed, SessionEnded]
    assert not lock_path(path).exists()
