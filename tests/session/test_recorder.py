"""Recorder: events are logged before they are shown, in one order, from any thread."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from cs336_tui.events.events import Event, Notice
from cs336_tui.session.log import LogError, LogReader, SessionRecorder
from tests.samples import HEADER


class Watcher:
    """Keeps what it was handed and what the log held at that moment."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.in_log: list[bool] = []
        self.recorder: SessionRecorder | None = None

    def __call__(self, events: Sequence[Event]) -> None:
        self.events.extend(events)
        if self.recorder and self.recorder.is_open:
            self.in_log.append(list(LogReader(self.recorder.path))[-len(events) :] == list(events))


def test_events_are_in_the_log_before_they_are_handed_on(tmp_path: Path) -> None:
    watcher = Watcher()
    watcher.recorder = recorder = SessionRecorder(tmp_path, "s", watcher)
    recorder.open()
    recorder.record([HEADER])
    recorder.record([Notice(at=1.0, text="a"), Notice(at=2.0, text="b")])
    recorder.close()
    assert watcher.in_log == [True, True]


def test_there_is_no_file_before_it_is_opened(tmp_path: Path) -> None:
    watcher = Watcher()
    recorder = SessionRecorder(tmp_path, "s", watcher)
    recorder.record([Notice(at=1.0, text="early")])
    assert not recorder.is_open
    assert not recorder.path.exists()
    assert len(watcher.events) == 1
    recorder.open()
    recorder.open()
    assert recorder.path.exists()


def test_the_log_and_the_watcher_see_one_order_from_many_threads(tmp_path: Path) -> None:
    watcher = Watcher()
    recorder = SessionRecorder(tmp_path, "s", watcher)
    recorder.open()
    recorder.record([HEADER])
    ready = threading.Barrier(4)

    def write(thread: int) -> None:
        ready.wait()
        for number in range(100):
            recorder.record([Notice(at=float(number), text=f"{thread}"), Notice(at=number + 0.5, text=f"{thread}")])

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    logged = list(LogReader(recorder.path))
    assert logged == watcher.events
    assert len(logged) == 1 + 4 * 200
    for thread in range(4):
        own = [event.at for event in logged[1:] if isinstance(event, Notice) and event.text == str(thread)]
        assert own == sorted(own)


def test_a_log_that_cannot_be_made_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LogError):
        SessionRecorder(tmp_path / "file", "s", Watcher()).open()


FULL_DISK = """
import resource, sys
from pathlib import Path
from cs336_tui.session.log import SessionRecorder
from tests.session.test_recorder import HEADER, Notice, Watcher

watcher = Watcher()
recorder = SessionRecorder(Path(sys.argv[1]), "s", watcher)
recorder.open()
recorder.record([HEADER])
resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
for number in range(10):
    recorder.record([Notice(at=float(number), text=f"step {number:090}")])
recorder.close()
print(*(event.text for event in watcher.events[1:]), sep="\\n")
"""


def test_when_the_disk_fills_the_run_goes_on_and_one_notice_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    root = Path(__file__).parents[2]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout.splitlines()
    told = [line for line in lines if not line.startswith("step")]
    assert len(lines) == 11
    assert len(told) == 1
    assert "not saved" in told[0]
    assert 2 <= len(list(LogReader(tmp_path / "s.jsonl"))) < 11


def test_a_log_that_is_removed_goes_on_in_the_first_place_that_takes_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    places = [tmp_path / "file", tmp_path / "second", tmp_path / "third"]
    watcher = Watcher()
    recorder = SessionRecorder(tmp_path / "first", "s", watcher, refuges=lambda _: places)
    recorder.open()
    recorder.record([HEADER])
    recorder.path.unlink()
    recorder.record([Notice(at=1.0, text="a")])
    recorder.record([Notice(at=2.0, text="b")])
    recorder.close()
    assert recorder.path == tmp_path / "second" / "s.jsonl"
    assert list(LogReader(recorder.path)) == watcher.events
    assert [event.text for event in watcher.events[1:]] == ["a", recorder.problem, "b"]
    assert sorted(path.name for path in tmp_path.rglob("s.*")) == ["s.jsonl"]


def test_a_log_that_no_place_takes_is_told_of_once(tmp_path: Path) -> None:
    watcher = Watcher()
    recorder = SessionRecorder(tmp_path, "s", watcher, refuges=lambda _: [])
    recorder.open()
    recorder.record([HEADER])
    recorder.path.unlink()
    for number in range(3):
        recorder.record([Notice(at=float(number), text="a")])
    assert recorder.is_open
    recorder.close()
    assert not recorder.is_open
    assert [event.text for event in watcher.events[1:]] == ["a", recorder.problem, "a", "a"]
