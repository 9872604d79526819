"""Session logs: every finished step survives the writer's end, damage is reported with its line, and events are logged
before they are shown, in one order, from any thread."""

import itertools
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cs336_tui.events.codec import to_line
from cs336_tui.events.events import SCHEMA, CellFinished, CellsQueued, Event, Notice, SessionStarted
from cs336_tui.session import log as session_log
from cs336_tui.session.log import LogError, LogLost, LogReader, SessionLog, SessionRecorder
from tests.samples import HEADER, a_spec, mixed_session
from tests.strategies import any_event


def written(path: Path, *lines: bytes) -> LogReader:
    path.write_bytes(b"".join(lines))
    return LogReader(path)


def refusal(reader: LogReader) -> str:
    with pytest.raises(LogError) as caught:
        list(reader)
    message = str(caught.value)
    assert "\n" not in message
    assert str(reader.path) in message
    return message


def test_what_was_written_is_read(tmp_path: Path) -> None:
    log = SessionLog(tmp_path / "new" / "folder" / "s.jsonl")
    for event in mixed_session():
        log.write([event])
    reader = LogReader(log.path)
    assert list(reader) == mixed_session()
    assert not reader.torn


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(any_event, max_size=8))
def test_any_events_are_read_as_written(tmp_path: Path, events: list[Event]) -> None:
    path = tmp_path / "log.jsonl"
    assert list(written(path, to_line(HEADER), *map(to_line, events))) == [HEADER, *events]


def test_an_existing_log_is_never_reused_and_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    log = SessionLog(tmp_path / "s.jsonl")
    log.write([HEADER])
    log.close()
    with pytest.raises(LogError, match=r"s\.jsonl: .*exists.*--session-dir"):
        SessionLog(tmp_path / "s.jsonl")
    assert list(LogReader(tmp_path / "s.jsonl")) == [HEADER]
    (tmp_path / "file").touch()
    with pytest.raises(LogError, match=r"file/s\.jsonl: .*--session-dir"):
        SessionLog(tmp_path / "file" / "s.jsonl")


def test_cutting_anywhere_keeps_every_whole_line_and_tells_that_one_was_cut(tmp_path: Path) -> None:
    """A line that lacks nothing but its newline is whole."""
    events = mixed_session()[:8]
    data = b"".join(map(to_line, events))
    for end in range(len(to_line(events[0])), len(data)):
        whole = data[: end + 1].count(b"\n")
        reader = written(tmp_path / "log", data[:end])
        assert list(reader) == events[:whole]
        assert reader.torn == (data[end - 1 : end + 1].count(b"\n") == 0)


def test_a_long_torn_line_is_cut_when_a_session_goes_on(tmp_path: Path) -> None:
    """Longer than two of the blocks in which a log is read from its end."""
    whole = to_line(HEADER) + to_line(Notice(at=1.0, text="whole"))
    path = written(tmp_path / "s.jsonl", whole, to_line(Notice(at=2.0, text="torn" * 50_000))[:150_000]).path
    SessionLog(path, resume=True).close()
    assert path.read_bytes() == whole


def test_damage_is_named_and_what_is_before_it_given_also_after_lines_that_were_passed_over(tmp_path: Path) -> None:
    passed_over = [to_line(Notice(at=float(number), text="a")) for number in range(5)]
    reader = written(tmp_path / "log", to_line(HEADER), *passed_over, b'{"ty\n', to_line(HEADER))
    events = reader.skim((session_log.line_prefix(Notice),))
    start = len(to_line(HEADER))
    assert [next(events), next(events)] == [HEADER, session_log.SkippedLines(start, start + sum(map(len, passed_over)))]
    with pytest.raises(LogError, match=r"log, line 7: damaged"):
        next(events)
    events = iter(reader)
    assert [type(next(events)) for _ in range(6)] == [SessionStarted, *[Notice] * 5]
    with pytest.raises(LogError, match=r"log, line 7: damaged .* 6 lines before it intact"):
        next(events)


def test_a_log_opens_whose_losses_were_not_finite(tmp_path: Path) -> None:
    end = CellFinished(at=1.0, cell=0, status="ok", losses=(1.5, float("nan"), float("inf")))
    _, read = written(tmp_path / "log", to_line(HEADER), to_line(end))
    assert isinstance(read, CellFinished)
    assert read.losses == (1.5, None, None)


HEAD, NOTICE = to_line(HEADER), to_line(Notice(at=1.0, text="a"))
IMPOSSIBLE = to_line(CellsQueued(at=1.0, first=0, specs=(a_spec(),))).replace(b'"num_heads":12', b'"num_heads":7')
NEWER = to_line(SessionStarted(at=0.0, schema=SCHEMA + 1, session="s", app="9.0"))
ANOTHER_KIND = (b"hello\n", b"{}\n", b"[1]\n", b"\x89PNG\r\n\x1a\n", b'{"type":"Notice"}\n', b"hello")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (HEAD + b"\xff\xfe\x00\n" + HEAD, "line 2: damaged"),
        (HEAD + IMPOSSIBLE, "line 2: damaged"),
        *((content, "line 1: not a session log") for content in ANOTHER_KIND),
        *((blank + NOTICE + HEAD, "not the start of a session log") for blank in (b"", b"\n\n")),
        *((content, "empty") for content in (b"", b"\n", b" \n\n")),
        (NEWER, "upgrade"),
        (NEWER.replace(b'"session":"s"', b'"session":{"name":"s"}'), "upgrade"),
    ],
)
def test_what_is_no_log_or_is_damaged_is_refused_in_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    assert says in refusal(written(tmp_path / "log", content))


def test_a_cell_that_later_versions_refuse_to_run_is_read(tmp_path: Path) -> None:
    spec = a_spec(pass_="train-step", device="cuda:0", batch_size=2, accumulate=2, compile="reduce-overhead")
    queued = CellsQueued(at=1.0, first=0, specs=(spec,))
    assert list(written(tmp_path / "log", to_line(HEADER), to_line(queued))) == [HEADER, queued]


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(LogReader(tmp_path / "missing"))
    assert "directory" in refusal(LogReader(tmp_path))


def test_a_full_disk_leaves_whole_lines_and_the_log_usable(tmp_path: Path) -> None:
    log = SessionLog(tmp_path / "s.jsonl")
    log.write([HEADER])
    two: list[Event] = [Notice(at=1.0, text="x" * 90), Notice(at=1.0, text="y" * 90)]
    log.write(two)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.path.stat().st_size + 1000, before[1]))
    try:
        with pytest.raises(LogLost, match=f"^session log {log.path}: File too large; later steps are not saved"):
            log.write(two * 50)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    reader = LogReader(log.path)
    found = list(reader)
    assert found == [HEADER, *two, *two * 50][: len(found)]
    assert (3 < len(found) < 20, reader.torn) == (True, False)
    log.write([Notice(at=2.0, text="room again")])
    assert list(reader)[-1] == Notice(at=2.0, text="room again")


KEEPS_WRITING = """
import itertools, sys
from pathlib import Path
from cs336_tui.session.log import SessionLog
from cs336_tui.events.events import Notice
from tests.samples import HEADER

log = SessionLog(Path(sys.argv[1]) / "s.jsonl")
log.write([HEADER])
for number in itertools.count():
    log.write([Notice(at=float(number), text="a step that is finished")])
    print(number, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_a_killed_writer_loses_nothing_that_it_had_written(tmp_path: Path) -> None:
    command, root = [sys.executable, "-c", KEEPS_WRITING, str(tmp_path)], Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as child:
        for line in child.stdout:
            if int(line) >= 200:
                break
        os.kill(child.pid, signal.SIGKILL)
        acknowledged = [int(line) for line in child.stdout.read().split("\n")[:-1]]
    last = acknowledged[-1] if acknowledged else 200
    found = [event.at for event in LogReader(tmp_path / "s.jsonl")][1:]
    assert found[: last + 1] == [float(number) for number in range(last + 1)]


def test_session_names_sort_by_time_and_differ() -> None:
    for earlier, later in itertools.pairwise(map(session_log.new_session_id, (1e9, 1e9 + 0.25, 1e9 + 0.75, 1e9 + 1))):
        assert earlier < later
    assert len({session_log.new_session_id(0.0) for _ in range(20)}) > 1
    assert session_log.default_session_dir().name == "sessions"


def test_only_its_owner_may_read_a_log_and_a_folder_made_for_it_and_others_stay(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        log = SessionLog(tmp_path / "sessions" / "s.jsonl")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "sessions").iterdir()}
    log.close()
    assert modes == {"s.jsonl": 0o600, "s.writer": 0o600}
    assert stat.S_IMODE((tmp_path / "sessions").stat().st_mode) == 0o700
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o755)
    SessionLog(tmp_path / "shared" / "s.jsonl").close()
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o755


def test_a_log_that_was_replaced_or_shortened_is_lost(tmp_path: Path) -> None:
    removed, replaced, shortened = (SessionLog(tmp_path / f"{name}.jsonl") for name in "abc")
    for log in (removed, replaced, shortened):
        log.write([HEADER])
    removed.path.unlink()
    replaced.path.rename(tmp_path / "old")
    replaced.path.write_text("another's")
    os.truncate(shortened.path, 3)
    for log, reason in ((removed, "removed"), (replaced, "removed"), (shortened, "shortened")):
        with pytest.raises(LogLost, match=reason):
            log.write([HEADER])
        log.close()
    assert replaced.path.read_text() == "another's"
    assert shortened.path.stat().st_size == 3


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


def test_events_are_in_the_log_before_they_are_handed_on_but_for_those_before_it_is_opened(tmp_path: Path) -> None:
    watcher = Watcher()
    watcher.recorder = recorder = SessionRecorder(tmp_path, "s", watcher)
    recorder.record([Notice(at=1.0, text="early")])
    assert not recorder.is_open
    assert not recorder.path.exists()
    assert len(watcher.events) == 1
    recorder.open()
    recorder.open()
    recorder.record([HEADER])
    recorder.record([Notice(at=1.0, text="a"), Notice(at=2.0, text="b")])
    recorder.close()
    assert watcher.in_log == [True, True]


def recording(folder: Path, *refuges: Path) -> tuple[SessionRecorder, Watcher]:
    """A recorder whose log has begun."""
    watcher = Watcher()
    recorder = SessionRecorder(folder, "s", watcher, refuges=lambda _: refuges)
    recorder.open()
    recorder.record([HEADER])
    return recorder, watcher


def test_the_log_and_the_watcher_see_one_order_from_many_threads(tmp_path: Path) -> None:
    recorder, watcher = recording(tmp_path)
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


def test_a_log_that_is_removed_goes_on_in_the_first_place_that_takes_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    recorder, watcher = recording(tmp_path / "first", *(tmp_path / name for name in ("file", "second", "third")))
    recorder.path.unlink()
    recorder.record([Notice(at=1.0, text="a")])
    recorder.record([Notice(at=2.0, text="b")])
    recorder.close()
    assert recorder.path == tmp_path / "second" / "s.jsonl"
    assert list(LogReader(recorder.path)) == watcher.events
    assert [event.text for event in watcher.events[1:]] == ["a", recorder.problem, "b"]
    assert sorted(path.name for path in tmp_path.rglob("s.*")) == ["s.jsonl"]


def test_a_log_that_no_place_takes_is_told_of_once(tmp_path: Path) -> None:
    recorder, watcher = recording(tmp_path)
    recorder.path.unlink()
    for number in range(3):
        recorder.record([Notice(at=float(number), text="a")])
    assert recorder.is_open
    recorder.close()
    assert not recorder.is_open
    assert [event.text for event in watcher.events[1:]] == ["a", recorder.problem, "a", "a"]
