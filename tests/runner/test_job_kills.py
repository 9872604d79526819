"""A small part of `python -m benchmarks.job_kills`, and a check that it notices what it looks for."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.job_kills import MIXED, added, kill_session
from benchmarks.job_logs import account_of
from cs336_tui.events import events as ev
from cs336_tui.events.codec import to_line
from tests.watching import small_spec

SESSIONS = (("lanes", MIXED, 4), ("local jobs", MIXED, 6))


def test_each_cell_has_one_result_whatever_is_killed() -> None:
    with ThreadPoolExecutor() as threads:
        killed = [threads.submit(kill_session, *each, seed="1") for each in SESSIONS]
    total = added([each.result() for each in killed])
    assert not total.wrong
    assert sum(total.kills.values()) >= len(SESSIONS)
    assert (total.results, total.twice, total.again, total.lost, total.orphans) == (total.cells, 0, 0, 0, 0)
    assert total.files.keys() <= {"pymp"}


STEPS, OTHER = (0.1, 0.2), (0.3, 0.4)


def attempt(times_s: Sequence[float] = STEPS, *, pid: int = 7, first: int = 0, status: str = "ok") -> list[ev.Event]:
    timed = [
        ev.StepsTimed(at=1.0, cell=0, kind="warm-up", first=0, times_s=(1.0,)),
        ev.StepsTimed(at=1.0, cell=0, kind="measured", first=first, times_s=tuple(times_s)),
    ]
    end = [ev.CellFinished(at=2.0, cell=0, status=status)] if status else []  # type: ignore[arg-type]
    return [ev.CellStarted(at=1.0, cell=0, pid=pid), *timed, *end]


KILLED = [ev.CellFinished(at=2.0, cell=0, status="killed", job_over=True)]


@pytest.mark.parametrize(
    ("session", "jobs", "found"),
    [
        ([*attempt()], [attempt()], (1, 0, 0)),
        ([*attempt(status=""), *KILLED, *attempt(pid=8)], [attempt(status=""), attempt(pid=8)], (1, 0, 0)),
        ([*attempt(status=""), *KILLED], [attempt(status="")], (0, 0, 1)),
        ([], [attempt()], (0, 0, 1)),
        ([*attempt(), *attempt(pid=8)], [attempt(), attempt(pid=8)], (0, 1, 0)),
        ([*attempt()], [attempt(), attempt(pid=8)], (1, 0, 0)),
        ([*attempt(STEPS[:1])], [attempt()], (0, 0, 1)),
        ([*attempt(first=1)], [attempt()], (0, 0, 1)),
        ([*attempt(OTHER)], [attempt(), attempt(OTHER, pid=8, status="")], (0, 0, 1)),
    ],
)
def test_what_is_lost_doubled_or_mixed_is_counted(
    tmp_path: Path, session: list[ev.Event], jobs: list[list[ev.Event]], found: tuple[int, int, int]
) -> None:
    log = tmp_path / "s.jsonl"
    queued = ev.CellsQueued(at=0.0, first=0, specs=(small_spec(),))
    log.write_bytes(b"".join(map(to_line, [queued, *session])))
    log.with_suffix(".jobs").mkdir()
    for number, events in enumerate(jobs):
        (log.with_suffix(".jobs") / f"{number}.jsonl").write_bytes(b"".join(map(to_line, events)))
    account = account_of(log, warmup=1, steps=2)
    assert (account.results, account.twice, account.lost) == found
    assert account.again == (len(jobs) == 2 and all(isinstance(job[-1], ev.CellFinished) for job in jobs))
