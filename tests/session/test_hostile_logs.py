"""Untrusted logs: each command reports a bad one in one line and shows the others."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import fuzz_inputs, hostile
from cs336_tui.events.codec import from_line, to_line
from cs336_tui.events.events import Notice, StepsTimed
from cs336_tui.session import store
from cs336_tui.session.log import LogError
from tests.samples import HEADER, START

DEEP = b"[" * 100_000


def a_line(**changes: Any) -> bytes:
    event = StepsTimed(at=START, cell=0, kind="measured", first=0, times_s=(0.1, 0.2), phases_s={"forward": (0.1, 0.1)})
    return json.dumps(msgspec.to_builtins(event) | changes).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"at": 1e18}, {"at": -1.0}, {"times_s": [0.1, 1e308]}, {"times_s": [5e-324, 0.1]}, {"times_s": [0.1, -0.1]},
        {"times_s": [0.1]}, {"host_s": [0.1]}, {"phases_s": {"forward": [0.1, 1e12]}}, {"phases_s": {"forward": [0.1]}},
    ],
)  # fmt: skip
def test_times_that_cannot_be_computed_with_are_no_event(changes: dict[str, Any]) -> None:
    assert isinstance(from_line(a_line()), StepsTimed)
    with pytest.raises(msgspec.ValidationError):
        from_line(a_line(**changes))


@pytest.mark.parametrize("number", [10**400, -(10**31), 1e300, -1e31])
def test_no_number_of_a_log_is_beyond_what_arithmetic_bears_but_in_a_text(number: float) -> None:
    line = b'{"type":"DeviceSampled","at":1.0,"host":{"memory_used_bytes":7,"load_1m":%s}}'
    assert from_line(line % b"7.5")
    field = b"memory_used_bytes" if isinstance(number, int) else b"load_1m"
    with pytest.raises(msgspec.ValidationError, match="a number larger"):
        from_line(b'{"type":"DeviceSampled","at":1.0,"host":{"%s":%s}}' % (field, str(number).encode()))
    event = Notice(at=START, text=str(number))
    assert from_line(to_line(event)) == event


@pytest.mark.parametrize("line", [DEEP, b'{"type":"Notice","at":1,"text":"","more":' + DEEP, b'{"a":' * 100_000])
def test_deep_nesting_is_damage(line: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        from_line(line)


FIRST_LINES = {
    "invalid UTF-8": b'{"type":"SessionStarted","app":"\xff"}\n',
    "not JSON and no UTF-8": b"\xff\xfe\x00",
    "deep": DEEP,
    "deep in a field": to_line(HEADER)[:-2] + b',"more":' + DEEP + b"}\n",
    "a time out of range": to_line(HEADER).replace(b'"at":0.0', b'"at":1e18'),
    "empty": b"",
}


@pytest.mark.parametrize("name", FIRST_LINES)
def test_a_first_line_of_any_kind_is_a_problem_of_its_session_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(FIRST_LINES[name])
    (tmp_path / "b.jsonl").write_bytes(to_line(HEADER))
    good, bad = store.list_sessions(tmp_path)
    assert good.problem is None
    assert "\n" not in bad.problem
    with pytest.raises(LogError) as refused:
        store.load(tmp_path / "a.jsonl")
    assert bad.problem == str(refused.value)


@pytest.mark.timeout(20)
def test_neither_a_log_nor_its_lock_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").mkdir()
    (tmp_path / "c.jsonl").write_bytes(to_line(HEADER))
    os.mkfifo(tmp_path / "c.writer")
    good, *bad = store.list_sessions(tmp_path)
    assert (good.problem, good.writer) == (None, None)
    assert [info.problem for info in bad] == [
        f"{tmp_path}/b.jsonl: Is a directory", f"{tmp_path}/a.jsonl: not a regular file",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "lock",
    [
        DEEP,
        b"\xff",
        b'{"host":"\x1b[31m","pid":-1,"since":1,"token":""}',
        b'{"host":"%s","pid":1%s,"since":0,"token":""}',
    ],
)
def test_a_lock_of_any_kind_is_nobody_s_or_somebody_s(lock: bytes, tmp_path: Path) -> None:
    import socket

    (tmp_path / "c.jsonl").write_bytes(to_line(HEADER))
    (tmp_path / "c.writer").write_bytes(lock.replace(b"%s", socket.gethostname().encode(), 1).replace(b"%s", b"0" * 30))
    assert store.info_of(tmp_path / "c.jsonl").problem is None


@pytest.mark.parametrize("kind", fuzz_inputs.KINDS)
@pytest.mark.timeout(120)
def test_generated_inputs_get_short_quick_and_clean_answers(kind: str) -> None:
    for answer in fuzz_inputs.KINDS[kind](25, 1):
        assert not answer.faults(), answer


def test_every_kind_of_event_is_in_the_log_that_is_spoilt() -> None:
    lines = [hostile.line(line) for line in hostile.base_log()]
    assert len({type(from_line(line)) for line in lines}) >= 14
