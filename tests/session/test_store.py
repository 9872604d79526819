"""Sessions in a folder: finding, naming and deleting them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cs336_tui.events.codec import to_line
from cs336_tui.events.events import SCHEMA, Event, SessionStarted
from cs336_tui.session import store
from cs336_tui.session.log import LogError, SessionLog
from tests.samples import mixed_session


def write(directory: Path, session: str, events: list[Event] | None = None) -> Path:
    path = directory / f"{session}.jsonl"
    header = SessionStarted(at=1_700_000_000.0, schema=SCHEMA, session=session, app="0")
    path.write_bytes(b"".join(map(to_line, [header, *(events or [])])))
    return path


def test_a_session_is_found_by_id_prefix_last_or_path(tmp_path: Path) -> None:
    older, newer = write(tmp_path, "2026-01-01T00-00-00-aaaa"), write(tmp_path, "2026-02-01T00-00-00-bbbb")
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
    write(tmp_path, "2026-01-01T00-00-00-aaaa")
    write(tmp_path, "2026-02-01T00-00-00-bbbb")
    with pytest.raises(LogError, match=says):
        store.find(name, tmp_path)


def test_there_may_be_no_session_yet(tmp_path: Path) -> None:
    assert list(store.list_sessions(tmp_path / "none")) == []
    with pytest.raises(LogError, match="no session in"):
        store.find("last", tmp_path / "none")


def test_a_listing_tells_what_loading_would(tmp_path: Path) -> None:
    path = write(tmp_path, "s", mixed_session()[1:])
    assert store.info_of(path) == store.describe(store.load(path), path)


def test_a_damaged_log_is_listed_with_its_problem(tmp_path: Path) -> None:
    write(tmp_path, "good")
    (tmp_path / "newer.jsonl").write_text('{"type":"SessionStarted","at":1,"schema":99,"session":"x","app":"9"}\n')
    (tmp_path / "odd.jsonl").write_text("nonsense\n")
    by_name = {info.session: info.problem for info in store.list_sessions(tmp_path)}
    assert by_name["good"] is None
    assert "written by a newer cs336-tui" in (by_name["newer"] or "")
    assert "not a session log" in (by_name["odd"] or "")


def test_names_and_notes_are_kept_and_can_be_taken_away(tmp_path: Path) -> None:
    path = write(tmp_path, "s")
    store.annotate(path, name="laptop")
    store.annotate(path, note="fan on")
    assert (store.info_of(path).title, store.info_of(path).note) == ("laptop", "fan on")
    store.annotate(path, name="")
    assert (store.info_of(path).title, store.info_of(path).note) == ("s", "fan on")


def test_a_session_that_is_written_is_neither_renamed_nor_deleted(tmp_path: Path) -> None:
    path = write(tmp_path, "s")
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
