"""Progress of a race, in lines."""

from __future__ import annotations

import io
from typing import Any

from cs336_tui.cli.race_progress import RaceProgress
from cs336_tui.session.state import SessionState
from tests.made_race import made_tuning, race_events


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
