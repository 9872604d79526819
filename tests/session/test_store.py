"""Sessions in a folder: finding, naming and deleting them; progress of one that runs, was stopped, was killed or is
done."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import astuple

from cs336_tui.events import events as ev
from cs336_tui.session import store
from cs336_tui.session.log import LogError, SessionLog
from cs336_tui.session.state import SessionState, fold
from cs336_tui.session.store import Stage, describe, info_of, session_time, standing_of
from tests.made_race import race_events
from tests.samples import HEADER, START, a_spec, cell_end, cell_start, mixed_session, session_start, steps, summary_of
from tests.tui.kept_sessions import STOPPED, keep, stopped_session

NAMES = ("2026-01-01T00-00-00-aaaa", "2026-02-01T00-00-00-bbbb")


def test_a_session_is_found_by_id_prefix_last_or_path(tmp_path: Path) -> None:
    older, newer = (keep(tmp_path, name, [HEADER]) for name in NAMES)
    assert store.find("2026-01-01T00-00-00-aaaa", tmp_path) == older
    assert store.find("2026-02", tmp_path) == newer
    assert store.find("last", tmp_path) == newer
    assert store.find(str(older), tmp_path / "elsewhere") == older


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("2026", r"'2026' fits 2: 2026-01-01T00-00-00-aaaa, 2026-02-01T00-00-00-bbbb; give more"),
        ("1999", r"no session '1999' in .*`cs336-tui sessions` lists them"),
        ("", r"''"),
    ],
)
def test_a_session_that_is_not_clear_is_named_with_what_there_is(tmp_path: Path, name: str, says: str) -> None:
    assert list(store.list_sessions(tmp_path / "none")) == []
    with pytest.raises(LogError, match="no session in"):
        store.find("last", tmp_path / "none")
    for each in NAMES:
        keep(tmp_path, each, [HEADER])
    with pytest.raises(LogError, match=says):
        store.find(name, tmp_path)


def test_names_and_notes_are_kept_and_can_be_taken_away(tmp_path: Path) -> None:
    path = keep(tmp_path, "s", [HEADER])
    store.annotate(path, name="laptop")
    store.annotate(path, note="fan on")
    assert (store.info_of(path).title, store.info_of(path).note) == ("laptop", "fan on")
    store.annotate(path, name="")
    assert (store.info_of(path).title, store.info_of(path).note) == ("s", "fan on")


def test_a_session_that_is_written_is_neither_renamed_nor_deleted(tmp_path: Path) -> None:
    path = keep(tmp_path, "s", [HEADER])
    log = SessionLog(path, resume=True)
    try:
        assert store.info_of(path).writer is not None
        with pytest.raises(LogError, match="is being written by process"):
            store.annotate(path, name="x")
        with pytest.raises(LogError, match="is being written by process"):
            store.delete(path)
    finally:
        log.close()
    store.delete(path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_session_log_is_left_as_it_is(tmp_path: Path) -> None:
    for name in ("results.json", "odd.jsonl"):
        path = tmp_path / name
        path.write_text('{"mine": 1}')
        with pytest.raises(LogError, match="not a session log"):
            store.annotate(store.find(str(path), tmp_path), name="x")
        assert path.read_text() == '{"mine": 1}'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["odd.jsonl", "results.json"]


# Two cells of a warm-up step and five measured ones, the second in the midst of its steps.
SPECS = [a_spec(warmup_steps=1, measure_steps=5), a_spec(warmup_steps=1, measure_steps=5, context_length=512)]
FIRST = [*session_start(SPECS), *cell_start(0), *steps(0, (0.2,), (0.1,) * 5), cell_end(0)]
MIDST = [*FIRST, *cell_start(1), *steps(1, (0.2,), (0.1, 0.1))]
BROKEN_OFF = {"warmup_steps_done": 1, "summary": summary_of((0.1, 0.1))}
CANCELLED = ev.CellFinished(at=START + 90, cell=1, status="cancelled", **BROKEN_OFF)


@pytest.mark.parametrize(
    ("events", "runs", "stage", "steps_done", "left"),
    [
        ([], True, "empty", 0, 0),
        (FIRST, True, "running", 6, 1),
        (MIDST, True, "running", 9, 1),
        (MIDST, False, "killed", 9, 1),
        ([*MIDST, CANCELLED], True, "stopped", 9, 1),
        ([*MIDST, CANCELLED], False, "stopped", 9, 1),
        ([*FIRST, ev.SessionEnded(at=START + 90, reason="interrupted")], False, "stopped", 6, 1),
        ([*FIRST, *cell_start(1), *steps(1, (0.2,), (0.1,) * 5), cell_end(1)], True, "done", 12, 0),
    ],
)
def test_a_stopped_session_stays_where_it_was(
    events: list[ev.Event], runs: bool, stage: Stage, steps_done: int, left: int
) -> None:
    found = standing_of(fold(events), runs=runs)
    assert (found.stage, found.steps_done, found.left) == (stage, steps_done, left)
    assert found.steps_total == (12 if events else 0)
    assert found.can_resume == (stage in ("stopped", "killed"))


def test_it_goes_on_from_the_cells_that_ended() -> None:
    state = fold([*MIDST, CANCELLED, ev.CellRequeued(at=START + 95, cell=1)])
    found = standing_of(state, runs=True)
    assert (found.stage, found.steps_done, found.steps_total) == ("running", 6, 12)


def test_what_is_added_to_a_stopped_run_is_counted_alone_until_it_is_over() -> None:
    added = ev.CellsQueued(at=START + 95, first=2, specs=(SPECS[0],))
    state = fold([*MIDST, CANCELLED, added])
    assert (state.steps_done, state.steps_total) == (6, 12)
    fold((*cell_start(2), *steps(2, (0.2,), (0.1,) * 5), cell_end(2)), state)
    assert astuple(standing_of(state, runs=True))[:3] == ("stopped", 15, 18)


@pytest.mark.parametrize("events", [MIDST, [*MIDST, CANCELLED]], ids=["killed", "stopped"])
def test_the_list_of_sessions_tells_the_same_as_the_session(events: list[ev.Event], tmp_path: Path) -> None:
    mixed = keep(tmp_path, "s", mixed_session())
    assert store.info_of(mixed) == store.describe(store.load(mixed), mixed)
    path = keep(tmp_path, STOPPED, events)
    info, state = info_of(path), fold(events)
    told = standing_of(state, runs=False)
    assert (info.stage, info.steps_done, info.steps_total, info.left) == astuple(told)[:4] == (told.stage, 9, 12, 1)
    assert info == describe(state, path)


@pytest.mark.parametrize(("status", "stage"), [("cancelled", "stopped"), ("ok", "killed")])
def test_a_race_without_an_end_is_left(status: ev.Status, stage: str) -> None:
    events = race_events()
    events[-1] = msgspec.structs.replace(events[-1], status=status)
    assert standing_of(fold(events), runs=True).stage == "running"
    told = standing_of(fold(events), runs=False)
    assert (told.stage, told.can_resume) == (stage, True)
    assert told.words == f"{stage} in a race"
    assert standing_of(fold(race_events(ended="decided")), runs=False).stage == "done"


def test_the_words_and_the_time_that_a_name_says() -> None:
    found = standing_of(fold(stopped_session()), runs=False)
    words = f"stopped at {found.steps_done}/{found.steps_total} steps"
    assert (found.words, found.cells_left) == (words, "2 cells left")
    assert standing_of(SessionState(), runs=False).words == ""
    assert session_time("2026-11-20T14-03-22-ab12", 1.0) == "2026-11-20 14:03"
    assert session_time("my own name") == ""
    assert session_time("my own name", 1_700_000_000.0).startswith("2023-11-1")
