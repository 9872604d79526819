"""One run of each kind of `python -m benchmarks.kills`, and a check that it detects a lost step."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.killed_logs import lost_steps, wrong_in
from benchmarks.kills import KINDS, Folder, Tally, killed, marked_folder, stop_server
from cs336_tui.events.codec import to_line
from cs336_tui.events.events import CellFinished, Event, StepsTimed
from cs336_tui.session.log import LogReader


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
        assert log is not None
        events = list(LogReader(log))
        assert not [*wrong_in(log, log.read_bytes()), *lost_steps(log, path)]
        last = max(i for i, event in enumerate(events) if isinstance(event, StepsTimed))
        first_end = next(i for i, event in enumerate(events) if isinstance(event, CellFinished))
        without = [*events[:last], *events[last + 1 :]]
        assert list(wrong_in(written(log, without), b""))
        assert list(lost_steps(log, path))
        assert list(wrong_in(written(log, [*events[: last + 1], events[last], *events[last + 1 :]]), b""))
        assert list(wrong_in(written(log, [*events, *events[3 : first_end + 1]]), b""))
        stop_server()


def written(log: Path, events: list[Event]) -> Path:
    log.write_bytes(b"".join(map(to_line, events)))
    return log
