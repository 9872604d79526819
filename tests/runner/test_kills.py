"""Small parts of `python -m benchmarks.kills` and `benchmarks.job_kills`, and checks that they detect lost steps."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.job_kills import MIXED, added, kill_session
from benchmarks.job_logs import account_of
from benchmarks.killed_logs import lost_steps, wrong_in
from benchmarks.kills import KINDS, Folder, Tally, killed, marked_folder, stop_server
from cs336_tui.events import events as ev
from cs336_tui.session.log import LogReader
from tests.samples import write_log
from tests.watching import small_spec


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_killed_loses_nothing_and_leaves_nothing(kind: str) -> None:
    stop_server()  # which other tests have started, and which knows nothing of the folder
    tally = killed(kind, kills=1, seed=1)
    assert tally.kills.total() >= 1
    assert not tally.wrong


def test_a_log_with_steps_lost_doubled_or_run_again_is_noticed() -> None:
    stop_server()
    with marked_folder() as path:
        folder = Folder(path, Tally())
        folder.run(lambda _: None)
        log = folder.log
        events = list(LogReader(log))
        assert not [*wrong_in(log, log.read_bytes()), *lost_steps(log, path)]
        last = max(i for i, event in enumerate(events) if isinstance(event, ev.StepsTimed))
        first_end = next(i for i, event in enumerate(events) if isinstance(event, ev.CellFinished))
        without = [*events[:last], *events[last + 1 :]]
        assert list(wrong_in(write_log(log, without), b""))
        assert list(lost_steps(log, path))
        assert list(wrong_in(write_log(log, [*events[: last + 1], events[last], *events[last + 1 :]]), b""))
        assert list(wrong_in(write_log(log, [*events, *events[3 : first_end + 1]]), b""))
        stop_server()


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
    write_log(log, [queued, *session])
    log.with_suffix(".jobs").mkdir()
    for number, events in enumerate(jobs):
        write_log(log.with_suffix(".jobs") / f"{number}.jsonl", events)
    account = account_of(log, warmup=1, steps=2)
    assert (account.results, account.twice, account.lost) == found
    assert account.again == (len(jobs) == 2 and all(isinstance(job[-1], ev.CellFinished) for job in jobs))
