"""Messages are read whole, however a pipe splits them."""

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.runner import pipes
from cs336_tui.runner.pipes import FrameReader, OutputTail, enlarge, write_frame


@given(st.lists(st.binary(max_size=300), max_size=20), st.data())
def test_messages_arrive_whole_and_in_order_however_the_bytes_are_cut(messages: list[bytes], data: st.DataObject):
    source, sink = os.pipe()
    wire_source, wire_sink = os.pipe()
    try:
        for message in messages:
            write_frame(wire_sink, message)
        os.close(wire_sink)
        reader, got = FrameReader(source), []
        while piece := os.read(wire_source, data.draw(st.integers(1, 50))):
            os.write(sink, piece)
            got += reader.read()
        assert got == messages
        assert not reader.at_end
        os.close(sink)
        assert reader.read() == []
        assert reader.at_end
    finally:
        os.close(source)
        os.close(wire_source)


def test_a_message_larger_than_the_pipe_arrives():
    source, sink = os.pipe()
    enlarge(source)
    message = os.urandom(3 << 20)
    writer = threading.Thread(target=write_frame, args=(sink, message))
    writer.start()
    reader, got = FrameReader(source), []
    while not got:
        got = reader.read()
    writer.join()
    assert got == [message]
    os.close(source)
    with pytest.raises(BrokenPipeError):
        write_frame(sink, b"nobody reads")
    os.close(sink)


def test_a_growing_output_is_cut_at_the_limit_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "CELL_LIMIT", 100)
    output = tmp_path / "output"
    tail = OutputTail(output)
    output.write_text("a")
    assert tail.read() == "a"
    output.write_text("a" * 110)
    assert tail.read() == "a" * 99 + "\n(output cut here: more than 0 MiB)\n"
    assert tail.read() == ""
