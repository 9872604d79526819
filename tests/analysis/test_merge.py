"""Cells of several sessions side by side."""

from __future__ import annotations

from cs336_tui.analysis.merge import ddof_of, measured, merge, pooled
from cs336_tui.stats.summaries import summarize
from tests.samples import a_spec
from tests.session.made import LAPTOP, Cell, cell, session_of


def test_a_cell_that_is_in_two_sessions_is_there_twice_and_told_apart() -> None:
    here, there = session_of(cell([0.1, 0.2])), session_of(cell([0.3, 0.4]), environment=LAPTOP)
    found = merge([("box", here), ("laptop", there)])
    assert [(result.source, result.session) for result in found] == [(0, "box"), (1, "laptop")]
    assert found[0].spec == found[1].spec
    assert [result.cell.step_times_s for result in found] == [[0.1, 0.2], [0.3, 0.4]]


def test_titles_that_are_the_same_are_told_apart() -> None:
    state = session_of(cell([0.1]))
    titles = ["run", "run", "run (2)", "run"]
    found = [result.session for result in merge([(title, state) for title in titles])]
    assert found[0] == "run"
    assert "run (2)" in found
    assert len(set(found)) == 4


def test_repeats_and_cells_without_a_result_are_kept() -> None:
    state = session_of(Cell(a_spec(), [0.1]), Cell(a_spec(), [0.2], repeat=2), cell(status="oom"), cell(status=None))
    found = merge([("one", state)])
    assert [result.cell.repeat for result in found] == [1, 2, 1, 1]
    assert [result.ending for result in found] == ["", "", "OOM", "not run"]
    assert len(measured(found)) == 2


def test_steps_of_a_cell_that_did_not_end_well_are_not_measured() -> None:
    for status in ("oom", "failed", "killed", "cancelled"):
        (result,) = merge([("one", session_of(cell([0.1, 0.2], status=status)))])
        assert not result.is_measured
        assert result.ending in ("OOM", "failed", "killed", "unfinished")


def test_pooled_repeats_are_one_summary_of_all_steps() -> None:
    found = merge([("one", session_of(Cell(a_spec(), [0.1, 0.2]), Cell(a_spec(), [0.3, 0.5], repeat=2)))])
    assert pooled(found, 0) == summarize([0.1, 0.2, 0.3, 0.5], 0)
    assert pooled(found[:1], 1) == summarize([0.1, 0.2])
    assert pooled([], 1) is None


def test_ddof_is_the_sessions_when_they_agree() -> None:
    numpys, sample = session_of(cell([0.1]), ddof=0), session_of(cell([0.1]))
    assert ddof_of(merge([("a", numpys)])) == 0
    assert ddof_of(merge([("a", numpys), ("b", sample)])) == 1
