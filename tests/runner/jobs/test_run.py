"""The log of a job as the machine that runs it begins it."""

from __future__ import annotations

from pathlib import Path

from cs336_tui.runner.jobs.job import JobCell, JobRequest
from cs336_tui.runner.jobs.run import begin_log
from cs336_tui.session.store import load
from tests.watching import small_spec


def test_a_log_begins_with_the_sessions_numbers_and_stays_as_it_is(tmp_path: Path):
    cells = [JobCell(number, small_spec(batch_size=number), number % 2 + 1) for number in (7, 8, 3)]
    cells.append(JobCell(4, small_spec(batch_size=4), 1, ("kernels",)))
    request = JobRequest(session="s", job="2", cells=tuple(cells), ddof=0)
    log = tmp_path / "2.jsonl"
    begin_log(log, request)
    state = load(log)
    assert list(state.waiting) == [7, 8, 3, 4]
    assert [(cell.cell, cell.spec.batch_size, cell.repeat) for cell in state.cells.values()] == [
        (7, 7, 2),
        (8, 8, 1),
        (3, 3, 2),
        (4, 4, 1),
    ]
    assert (state.wanted, state.ddof) == ({4: ("kernels",)}, 0)
    before = log.read_bytes()
    begin_log(log, request)
    assert log.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["2.jsonl"]
