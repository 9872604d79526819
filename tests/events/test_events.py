"""Events survive the pipe and the log, and gathering steps loses none."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.events.codec import coalesce, from_line, pack, to_line, unpack
from cs336_tui.events.events import CellsPredicted, Event, StageChanged, StepsTimed
from cs336_tui.session.state import SessionState
from tests.made_predictions import made_prediction
from tests.samples import MEASURED_S, WARMUP_S, a_spec, mixed_session, session_start, state_of, steps
from tests.strategies import any_event, cell_steps, timed_steps


@given(any_event)
def test_an_event_survives_the_pipe_and_the_log(event: Event) -> None:
    assert unpack(pack(event)) == event
    line = to_line(event)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert from_line(line) == event
    assert json.loads(line)["type"] == type(event).__name__


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"[]", b"null", b'{"type":"Unheard","at":1}', b'{"type":"Notice","at":1}', b"\xff\xfe", b'{"a'],
)
def test_what_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        from_line(line)
    with pytest.raises(msgspec.MsgspecError):
        unpack(line)


def each_step(events: list[Event]) -> list[tuple[object, ...]]:
    """Every step by itself, whatever events it came in."""
    return [
        (
            *(e.cell, e.kind, e.first + i, t),
            *({phase: times[i] for phase, times in found.items()} for found in (e.phases_s, e.host_phases_s)),
            e.host_s[i] if e.host_s else None,
        )
        for e in events
        if isinstance(e, StepsTimed)
        for i, t in enumerate(e.times_s)
    ]


@given(st.lists(st.one_of(timed_steps(), any_event), max_size=12))
def test_gathering_keeps_every_step_and_every_other_event_in_order(events: list[Event]) -> None:
    gathered = coalesce(events)
    assert each_step(gathered) == each_step(events)
    others = [e for e in events if not isinstance(e, StepsTimed)]
    assert [e for e in gathered if not isinstance(e, StepsTimed)] == others
    for e in gathered:
        if isinstance(e, StepsTimed):
            assert all(len(v) == len(e.times_s) for v in e.phases_s.values())


@given(st.lists(cell_steps(), max_size=3))
def test_a_session_cannot_tell_gathered_steps_from_single_ones(batches: list[list[Event]]) -> None:
    events = [e for batch in batches for e in batch]
    start = session_start([a_spec() for _ in range(4)])
    single, gathered = state_of([*start, *events]), state_of([*start, *coalesce(events)])
    assert all(everything(a) == everything(b) for a, b in zip(cells_of(single), cells_of(gathered), strict=True))


def cells_of(state: SessionState) -> list[object]:
    return list(state.cells.values())


def everything(cell) -> dict[str, object]:
    parts = vars(cell) | vars(cell.times) | {"n": cell.running.n, "skew": vars(cell.times.skew)}
    return {name: value for name, value in parts.items() if name not in ("_times", "running")}


def test_adjoining_steps_become_one_event() -> None:
    events = [e for e in steps(0, WARMUP_S, MEASURED_S) if not isinstance(e, StageChanged)]
    gathered = coalesce(events)
    assert [(e.kind, e.first, e.times_s) for e in gathered] == [("warm-up", 0, WARMUP_S), ("measured", 0, MEASURED_S)]
    assert gathered[1].at == events[-1].at


def test_steps_with_a_gap_between_them_stay_apart_and_gathering_twice_changes_nothing_more() -> None:
    first, later = (StepsTimed(at=1.0, cell=0, kind="measured", first=n, times_s=(0.1,)) for n in (0, 2))
    assert coalesce([first, later]) == [first, later]
    once = coalesce(mixed_session())
    assert coalesce(once) == once


def test_numbers_beyond_64_bits_survive_the_pipe() -> None:
    prediction = msgspec.structs.replace(made_prediction(a_spec()), flops={"forward": 3 * 2**64})
    event = CellsPredicted(at=1.0, predictions=(prediction,))
    assert unpack(pack(event)) == event
    assert from_line(to_line(event)) == event
