"""Progress of a race, in lines."""

from __future__ import annotations

import io
from typing import Any

import pytest

from cs336_tui.cli.progress import RunProgress
from cs336_tui.cli.tune import RaceProgress
from cs336_tui.config.tuning import space_of
from cs336_tui.events.events import CellsQueued, CellStarted, Event, TuningStarted
from cs336_tui.session.state import SessionState
from tests.cli.test_progress import Terminal, shown
from tests.made_race import made_tuning, race_events
from tests.samples import START, a_spec, cell_end, cell_start, session_start, steps


def lines(**more: Any) -> list[str]:
    """The lines of a race that is piped."""
    state, stream = SessionState(), io.StringIO()
    progress = RaceProgress(state, stream)
    for event in race_events(**more):
        state.apply(event)
        progress.show(event)
    return stream.getvalue().splitlines()


def test_a_line_a_round_with_the_best_who_is_out_and_the_budget() -> None:
    first, one, *_ = lines()
    assert first == "race of 8 candidates, 1 combination left out; 1:00 left"
    assert one.startswith("round 1: 2 of 8 left; best: attention sdpa 0.60; out: attention sdpa, checkpoint 1 (+29")
    assert one.endswith(" and 4 more; 0:52 left")


def test_a_candidate_that_fails_is_out_with_its_reason() -> None:
    one = lines(lost={3: "CUDA error: an illegal memory access"})[1]
    assert "; out: checkpoint 1, optimizer adamw-for-loop (CUDA error: an illegal memory access), " in one


def test_rounds_that_change_nothing_are_told_every_few_seconds() -> None:
    rounds = [range(8), *[(0, 4)] * 40]
    said = lines(tuning=made_tuning(budget_s=600.0), rounds=rounds)
    assert 10 < len(said) < 25, "each of 40 rounds takes two seconds"
    assert not [line for line in said if "verdict" in line or "too few" in line]


@pytest.mark.parametrize("before", [[], race_events(ended="decided")], ids=["no-race", "over"])
def test_where_no_race_goes_on_cells_are_told_as_those_of_any_run(
    before: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cs336_tui.cli.progress._REDRAW_S", 0.0)
    told = []
    for kind in (RunProgress, RaceProgress):
        state, terminal = SessionState(), Terminal()
        progress = kind(state, terminal)
        for event in before:
            state.apply(event)
        cell = len(state.cells)
        queued = CellsQueued(at=START + 10 * cell, first=cell, specs=(a_spec(),))
        for event in (queued, *cell_start(cell), *steps(cell, [0.2], [0.1, 0.12]), cell_end(cell)):
            state.apply(event)
            progress.show(event)
        told.append(terminal.getvalue())
    assert told[0] == told[1]
    assert "budget" not in told[1]


def test_the_place_in_a_round_is_that_among_its_visits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cs336_tui.cli.progress._REDRAW_S", 0.0)
    tuning, state, terminal = made_tuning(), SessionState(), Terminal()
    candidates = space_of(tuning).candidates
    for event in session_start([a_spec()] * 3):
        state.apply(event)
    progress = RaceProgress(state, terminal)
    for event in (
        TuningStarted(at=START, tuning=tuning, candidates=candidates),
        CellsQueued(at=START, first=3, specs=candidates),
        CellStarted(at=START, cell=3, pid=1),
    ):
        state.apply(event)
        progress.show(event)
    assert "round 1 · 1/8 · starting point · starting" in shown(terminal)


def test_those_that_the_budget_left_unvisited_are_counted_once() -> None:
    *_, first, second, third = lines(rounds=((0, 1, 4), (0, 4), (0, 4), (0, 4)), tuning=made_tuning(budget_s=600.0))
    said = [line for line in (first, second, third) if "did not allow" in line]
    assert len(said) == 1
    assert "; the budget did not allow a visit of 5; " in said[0]
    assert said[0].startswith("round 2: 1 of 8 left; ")
