"""A log that is opened at once tells what it tells event by event."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cs336_tui.events import CellRequeued, CellSkipped, CellsQueued, Event, StepsTimed, to_line
from cs336_tui.export.data import to_json
from cs336_tui.session.load import load
from cs336_tui.session.log import TORN, LogError, LogReader
from cs336_tui.session.state import SessionState, fold
from tests.samples import (
    MEASURED_S,
    WARMUP_S,
    a_spec,
    cell_end,
    cell_start,
    mixed_session,
    session_start,
    steps,
    summary_of,
)
from tests.session.test_log import HEADER
from tests.strategies import any_event


def write(path: Path, events: list[Event]) -> Path:
    path.write_bytes(b"".join(map(to_line, events)))
    return path


def seen(state: SessionState) -> list[object]:
    """What a person could see of a session."""
    cells = [
        (
            number, cell.spec, cell.status, cell.skipped_because, cell.stage, cell.environment, cell.num_params,
            cell.warmup_times_s, cell.step_times_s, cell.phase_times_s, cell.host_times_s, cell.warmup_phase_times_s,
            cell.steps_done, cell.output, [before.step_times_s for before in cell.earlier],
        )
        for number, cell in state.cells.items()
    ]  # fmt: skip
    return [cells, list(state.waiting), state.current, list(state.devices), state.notices, state.last_at, state.ddof]


def test_an_ordinary_session(tmp_path: Path) -> None:
    path = write(tmp_path / "s.jsonl", mixed_session())
    assert seen(load(path)) == seen(fold(mixed_session()))
    assert to_json(load(path)) == to_json(fold(mixed_session()))


def of_the_running_cell(events: list[Event]) -> list[Event]:
    """The same without steps of cells that do not run, which no run records."""
    state, kept = SessionState(), []
    for event in events:
        if not isinstance(event, StepsTimed) or event.cell == state.current:
            state.apply(event)
            kept.append(event)
    return kept


@settings(deadline=None, max_examples=60)
@given(events=st.lists(any_event, max_size=30))
def test_whatever_happened(events: list[Event]) -> None:
    with TemporaryDirectory() as home:
        path = write(Path(home) / "s.jsonl", [HEADER, *of_the_running_cell(events)])
        assert seen(load(path)) == seen(fold(LogReader(path)))


def test_the_summary_of_a_finished_cell_is_known_before_its_steps_are_read(tmp_path: Path) -> None:
    events = [*session_start([a_spec()]), *cell_start(0), *steps(0, WARMUP_S, MEASURED_S)]
    end = cell_end(0, warmup_steps_done=len(WARMUP_S), summary=summary_of(MEASURED_S))
    path = write(tmp_path / "s.jsonl", [*events, end])
    cell = load(path).cells[0]
    path.write_bytes(b"")  # whatever is said now was not read from the steps
    for ddof in (0, 1):
        expected = fold([*events, end]).cells[0].summary(ddof)
        found = cell.summary(ddof)
        assert found.std_s == pytest.approx(expected.std_s)
        assert (found.n, found.mean_s, found.median_s, found.min_s, found.max_s) == (
            expected.n, expected.mean_s, expected.median_s, expected.min_s, expected.max_s,
        )  # fmt: skip
    assert cell.running.n == len(MEASURED_S)
    assert cell.steps_done == len(WARMUP_S) + len(MEASURED_S)


def test_the_steps_can_be_read_when_the_log_is_gone(tmp_path: Path) -> None:
    path = write(tmp_path / "s.jsonl", mixed_session())
    state = load(path)
    path.unlink()
    assert state.cells[0].step_times_s == list(MEASURED_S)


def test_a_torn_last_line_is_left_out_and_damage_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "s.jsonl", mixed_session())
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"type":"StepsTimed","at":17')
    found = load(path)
    notice = found.notices.pop()
    assert notice.text == f"s.jsonl: {TORN}"
    assert seen(found) == seen(fold(mixed_session()))
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], b'{"type":"CellSt\n', *lines[4:]]))
    with pytest.raises(LogError, match="line 5: damaged"):
        load(path)
    with pytest.raises(LogError, match="No such file"):
        load(tmp_path / "none.jsonl")


def test_steps_are_kept_when_cells_are_added_or_skipped_while_one_runs(tmp_path: Path) -> None:
    timed = [*steps(0, WARMUP_S, MEASURED_S)]
    others = [
        CellsQueued(at=timed[3].at, first=1, specs=(a_spec(batch_size=8), a_spec(batch_size=16))),
        CellSkipped(at=timed[3].at, cell=1, reason="why not"),
        CellRequeued(at=timed[3].at, cell=1),
    ]
    events = [*session_start([a_spec()]), *cell_start(0), *timed[:4], *others, *timed[4:], cell_end(0)]
    found = load(write(tmp_path / "s.jsonl", events))
    assert found.cells[0].warmup_times_s == list(WARMUP_S)
    assert found.cells[0].step_times_s == list(MEASURED_S)
