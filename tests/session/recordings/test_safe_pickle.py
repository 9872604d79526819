"""Plain pickles load as pickle itself loads them; every other is refused before anything of it runs."""

import copyreg
import math
import os
import pickle
import pickletools
import tracemalloc
from collections import OrderedDict
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cs336_tui.session.recordings.safe_pickle import PickleRefused, load

PROTOCOLS = (2, 3, 4, 5)

numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.booleans() | st.none()
plain = st.recursive(
    numbers | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text() | st.integers(0, 2**40), each),
    max_leaves=30,
)


class Calling:
    """Runs a function while it is unpickled."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


class Plain:
    pass


@given(plain, st.sampled_from(PROTOCOLS))
@settings(max_examples=100, deadline=None)
def test_plain_values_load_as_they_were(value: object, protocol: int) -> None:
    assert load(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_shared_lists_strings_and_pairs_of_numbers_load(protocol: int) -> None:
    frames = [{"name": "forward", "filename": "model.py", "line": 3}]
    value = {"pool": (0, 0), "far": (2**40, 1), "one": (7,), "none": (), "events": [frames, frames], "text": "é" * 300}
    found = load(pickle.dumps(value, protocol))
    assert found == value
    assert found["events"][0] is found["events"][1]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "value",
    [
        Calling(os.system, "touch ran"),
        Calling(eval, "open('ran', 'w')"),
        Calling(copyreg._reconstructor, Plain, object, None),  # type: ignore[attr-defined]
        Plain(),
        Plain,
        print,
        OrderedDict(a=1),
        {1, 2},
        frozenset([1]),
        bytearray(3),
        ((1, 2), (3, 4)),
        ("a", "b"),
        1 + 2j,
        2**80,
    ],
    ids=lambda value: type(value).__name__,
)
def test_more_than_plain_values_is_refused(
    value: object, protocol: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for data in (pickle.dumps(value, protocol), pickle.dumps({"segments": [value]}, protocol)):
        with pytest.raises(PickleRefused) as refused:
            load(data)
        assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


ADMITTED = set("})]N(asue.KMJGhqjrX") | set("\x88\x89\x94\x8a\x8c\x95\x85\x86")
OTHERS = [each for each in pickletools.opcodes if each.code not in ADMITTED]


@pytest.mark.parametrize("opcode", OTHERS, ids=lambda each: each.name)
def test_no_other_opcode_gets_to_the_unpickler(opcode: pickletools.OpcodeInfo) -> None:
    """Each is given operands of several kinds, so that none is refused for its operand alone."""
    code = opcode.code.encode("latin-1")
    for operand in (b"", b"\x01", b"os\nsystem\n", b"\x00" * 8):
        with pytest.raises(PickleRefused):
            load(b"\x80\x04]\x94}(" + code + operand + b"\x85K\x01.")


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02r\xff\xff\xff\xffN.",
        b"\x80\x02N" + b"r\xff\xff\xff\x00" + b".",
        b"\x80\x04\x8d" + (2**62).to_bytes(8, "little") + b".",
        b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b".",
        b"\x80\x04\x8b\xff\xff\xff\x7f" + b"\x01" * 100 + b".",
        b"\x80\x02X\xff\xff\xff\xffabc.",
        b"\x80\x04\x95" + (2**62).to_bytes(8, "little") + b"N.",
        b"\x80\x02" + b"}" * 10**6 + b".",
    ],
    ids=["memo", "memo of a small file", "string", "bytearray", "number", "short string", "frame", "containers"],
)
def test_a_bomb_is_refused_without_its_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(PickleRefused):
            load(data)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


def test_lists_a_million_deep_load_without_recursion_and_tuples_so_deep_are_refused() -> None:
    depth = 10**6
    padding = b"X" + (9 * depth).to_bytes(4, "little") + b" " * (9 * depth) + b"0"
    with pytest.raises(PickleRefused, match="POP"):
        load(b"\x80\x02" + padding + b"]" * depth + b"a" * (depth - 1) + b".")
    padding = padding[:-1]
    found = load(b"\x80\x02]" + padding + b"a" + b"]" * depth + b"a" * depth + b".")
    assert len(found) == 2
    with pytest.raises(PickleRefused, match="TUPLE1"):
        load(b"\x80\x02)" + b"\x85" * depth + b".")


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_any_bytes_load_or_are_refused(data: bytes) -> None:
    for start in (b"", b"\x80\x02", b"\x80\x04"):
        with suppress(PickleRefused):
            load(start + data)


@given(st.data(), st.sampled_from(PROTOCOLS))
@settings(max_examples=100, deadline=None)
def test_a_cut_or_changed_pickle_loads_or_is_refused(data: st.DataObject, protocol: int) -> None:
    whole = pickle.dumps(
        {"segments": [{"address": 2**45, "size": 512, "blocks": [{"a": (0, 0), "b": math.pi}]}]}, protocol
    )
    place = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(PickleRefused):
        load(whole[:place])
    with pytest.raises(PickleRefused, match="after its end"):
        load(whole + b"x")
    changed = bytearray(whole)
    changed[place] = data.draw(st.integers(0, 255))
    with suppress(PickleRefused):
        load(bytes(changed))


@pytest.mark.parametrize("protocol", [2, 4])
def test_loading_tells_how_far_it_is_and_can_be_cancelled(protocol: int) -> None:
    data = pickle.dumps([f"a string {number}" for number in range(300_000)], protocol)
    seen: list[int] = []
    load(data, seen.append)
    assert len(seen) >= 2 * (len(data) // 2**20) - 2
    assert max(seen) <= len(data)

    def cancel(_done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(data, cancel)
