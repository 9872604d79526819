"""Lock of a session: one writer at a time."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from cs336_tui.session.lock import SessionInUse, SessionLock, Writer, lock_path, writer_of


def write_lock(log: Path, **changes: object) -> Writer:
    fields = {"host": socket.gethostname(), "pid": os.getpid(), "since": psutil.Process().create_time(), "token": "t"}
    writer = Writer(**(fields | changes))  # type: ignore[arg-type]
    lock_path(log).write_bytes(msgspec.json.encode(writer))
    return writer


def test_two_cannot_write_one_session_and_only_the_holder_releases(tmp_path: Path) -> None:
    log = tmp_path / "s.jsonl"
    first, second = SessionLock(log), SessionLock(log)
    first.acquire()
    with pytest.raises(SessionInUse, match=f"process {os.getpid()}"):
        second.acquire()
    second.release()
    assert writer_of(log) is not None
    second.acquire(take_over=True)
    first.release()
    assert writer_of(log) is not None
    second.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("left", ["dead", "zombie", "pid given again", "empty"])
def test_the_lock_of_a_writer_that_has_ended_or_of_nobody_is_taken_over(tmp_path: Path, left: str) -> None:
    """A zombie is left where the first process of a container reaps nothing."""
    log = tmp_path / "s.jsonl"
    process = subprocess.Popen([sys.executable, "-c", ""])
    since = psutil.Process(process.pid).create_time()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays
    if left == "dead":
        process.wait()
    write_lock(log, **({"since": 1.0} if left == "pid given again" else {"pid": process.pid, "since": since}))
    if left == "empty":
        lock_path(log).write_bytes(b"")
    assert writer_of(log) is None
    lock = SessionLock(log)
    lock.acquire()
    assert writer_of(log).pid == os.getpid()
    lock.release()
    process.wait()


def test_a_stopped_process_is_a_writer(tmp_path: Path) -> None:
    log = tmp_path / "s.jsonl"
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    write_lock(log, pid=process.pid, since=psutil.Process(process.pid).create_time())
    with pytest.raises(SessionInUse, match=f"process {process.pid}"):
        SessionLock(log).acquire()
    process.kill()
    process.communicate()


def test_a_writer_on_another_host_is_believed_until_taken_over(tmp_path: Path) -> None:
    log = tmp_path / "s.jsonl"
    write_lock(log, host="elsewhere", pid=1)
    with pytest.raises(SessionInUse, match="process 1 on elsewhere"):
        SessionLock(log).acquire()
    lock = SessionLock(log)
    lock.acquire(take_over=True)
    lock.release()


def test_of_many_that_try_at_once_one_gets_it(tmp_path: Path) -> None:
    log = tmp_path / "s.jsonl"
    write_lock(log, since=1.0)
    code = """
import sys
from pathlib import Path
from cs336_tui.session.lock import SessionInUse, SessionLock
sys.stdin.readline()
try:
    SessionLock(Path(sys.argv[1])).acquire()
    print("got", flush=True)
except SessionInUse:
    print("refused", flush=True)
sys.stdin.read()
"""
    rivals = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    try:
        for rival in rivals:
            rival.stdin.write("go\n")
            rival.stdin.flush()
        answers = [rival.stdout.readline().strip() for rival in rivals]
    finally:
        for rival in rivals:
            rival.communicate()
    assert sorted(answers) == ["got"] + ["refused"] * 5
