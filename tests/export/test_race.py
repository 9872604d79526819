"""A session with a race as it is exported: its report, figure, findings, summary and data."""

import json
from collections.abc import Sequence

from matplotlib.figure import Figure
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.ab import runs_in_turns
from cs336_tui.analysis.comparison import compare
from cs336_tui.analysis.merge import Result, merge
from cs336_tui.analysis.next_step import DECIDED
from cs336_tui.analysis.pivot import pivot
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.tuning import Over
from cs336_tui.events.events import CellsQueued, SessionAnnotated, TuningEnded
from cs336_tui.export.catalogue import Choice, offers, text_of
from cs336_tui.export.figures import MOST_ROWS, race_figure
from cs336_tui.export.findings import findings
from cs336_tui.export.folder import figures_of, tables_of
from cs336_tui.export.pivot import pivot_table
from cs336_tui.export.record import document_of, to_csv, to_json
from cs336_tui.export.reports import report_tables
from cs336_tui.export.summary import summary_markdown
from cs336_tui.export.writing.drawing import Absent
from cs336_tui.session.state import SessionState
from tests.analysis.racing import Made
from tests.export.keeping import as_drawn, csv_rows, kept
from tests.export.test_summary import sections
from tests.samples import START, a_spec, cell_end, cell_start, steps

VISITS = 12
"""Of four candidates in two rounds each, and of two in two rounds of turns."""


def raced() -> Made:
    """A race in which sdpa is best, recomputation out, and both together differ from the starting point."""
    made = Made((Over("attention", ("naive", "sdpa")), Over("checkpoint", (0, 1))))
    for number in (1, 2):
        made.round(number, (1.0, 2.0, 0.8, 0.5))
    made.checked(wrong=[3])
    for _ in range(2):
        made.turns(0, 2, (1.0, 0.8))
    made.tell(TuningEnded(at=made.at, reason=DECIDED))
    return made


def with_cells(made: Made, *specs: CellSpec) -> SessionState:
    """The race's session after these were run in it, too."""
    made.tell(CellsQueued(at=made.at, first=made.cells, specs=specs))
    for number in range(made.cells, made.cells + len(specs)):
        made.tell(*cell_start(number), *steps(number, (), [0.1, 0.11] * 6), cell_end(number))
    return made.state


OTHERS = a_spec(pass_="forward"), a_spec(pass_="inference")


def results_of(state: SessionState) -> Sequence[Result]:
    return merge([("made", state)])


def told(state: SessionState) -> dict[str, str]:
    return {each.topic: each.text for each in findings(results_of(state), [state])}


def test_the_report_has_the_ranking_the_gains_and_those_that_are_wanted(snapshot: SnapshotAssertion) -> None:
    state = raced().state
    assert kept(*report_tables([state], results_of(state), keys=["race"])["race"]) == snapshot
    (few, _) = report_tables([state], results_of(state), lambda spec: spec.checkpoint == 1, keys=["race"])["race"]
    assert [record["candidate"] for record in few.records] == ["checkpoint 1", "attention sdpa, checkpoint 1"]
    assert len(few.rows) == 2
    assert not report_tables([SessionState()], (), keys=["race"])


def test_two_sessions_have_a_race_each() -> None:
    states = [raced().state, raced().state]
    for state, name in zip(states, ("one", "two"), strict=True):
        state.apply(SessionAnnotated(at=START, name=name))
    results = merge([("one", states[0]), ("two", states[1])])
    said = [each.text.partition(" takes")[0] for each in findings(results, states) if each.topic == "Race"]
    assert said == ["one: attention sdpa", "two: attention sdpa"]
    tables = report_tables(states, results, keys=["race"])["race"]
    assert [table.label.partition("-")[0] for table in tables] == ["race", "gains"] * 2
    assert [each.name for each in figures_of(states, ())] == ["race", "race-2"]


def test_a_race_is_offered_where_there_is_one() -> None:
    state = raced().state
    assert "report race" in {offer.what for offer in offers(state)}
    assert "attention sdpa" in text_of(Choice(what="report race"), state)
    assert "report race" not in {offer.what for offer in offers(SessionState())}


def test_the_first_finding_is_the_best_and_visits_are_compared_by_the_race_alone(snapshot: SnapshotAssertion) -> None:
    """Other cells of the session are compared without the visits."""
    assert told(raced().state) == snapshot
    assert told(with_cells(raced(), *OTHERS)) == snapshot


def test_the_summary_begins_with_the_race_and_has_its_visits_in_an_appendix(snapshot: SnapshotAssertion) -> None:
    found = sections(summary_markdown(raced().state))
    assert [*found] == snapshot
    first = found["Findings"]
    assert first.index("Race of 4 candidates") < first.index("What each choice gains")
    assert "too-few-steps" not in first
    assert found["Appendix: visits"].count("attention sdpa · checkpoint 0 · repeat 1 ") >= 2
    both = sections(summary_markdown(with_cells(raced(), *OTHERS)))
    assert "sdpa" not in both["Cells"]
    assert "inference" in both["Cells"]


def test_tables_of_single_cells_leave_visits_out_but_for_results_and_verdicts() -> None:
    state = raced().state
    assert {*tables_of(results_of(state))} == {"results", "verdicts"}
    assert len(tables_of(results_of(state))["results"][0].rows) == VISITS
    (by_mean,) = tables_of(results_of(with_cells(raced(), *OTHERS)))["by-mean"]
    assert len(by_mean.rows) == 2


def test_visits_before_the_turns_are_no_rounds_of_them() -> None:
    made = Made((Over("attention", ("naive", "sdpa")),))
    made.round(1, (1.0, 0.8))
    made.turns(0, 1, (1.0, 0.8))
    (rounds,) = runs_in_turns(results_of(made.state))
    assert [(a.cell.cell, b.cell.cell) for a, b in rounds] == [(2, 3)]


def test_the_figure_has_a_row_a_candidate_best_first_with_those_out_in_grey(snapshot: SnapshotAssertion) -> None:
    drawing = race_figure(raced().race)
    drawing.draw(figure := Figure())
    (axis,) = figure.axes
    assert axis.get_ylim()[0] > axis.get_ylim()[1], "the first row is at the top"
    black, *grey = (tick.get_color() for tick in axis.get_yticklabels())
    assert black == "black"
    assert "black" not in grey
    assert [bool(container.lines[2]) for container in axis.containers].count(False) == 1, "the baseline has no interval"
    assert as_drawn(drawing) == snapshot


def test_a_figure_of_many_says_how_many_and_one_of_none_is_absent() -> None:
    made = Made((Over("seed", tuple(range(MOST_ROWS + 5))),))
    assert race_figure(made.race) == Absent("race", "no candidate was measured")
    made.round(1, [1.0 + number / 100 for number in range(MOST_ROWS + 2)])
    drawing = race_figure(made.race)
    title = drawing.title.splitlines()
    assert title[0] == f"Race of {len(made.candidates)} candidates: the best {MOST_ROWS}"
    assert title[-1].startswith("without a ratio: ")


def test_data_says_which_visits_ran_in_turns_and_has_the_race() -> None:
    state = raced().state
    rows = csv_rows(to_csv(document_of(state)))
    assert [row["in_turns"] for row in rows] == ["False"] * 8 + ["True"] * 4
    document = json.loads(to_json(document_of(state)))
    assert document["race"]["best"]["attention"] == "sdpa"
    assert [each["status"] for each in document["race"]["ranking"]] == ["best", "out", "out", "differs"]
    assert json.loads(to_json(document_of(SessionState())))["race"] is None


def test_a_pivot_and_a_comparison_leave_turns_out_where_the_same_was_measured_alone() -> None:
    results = results_of(raced().state)
    made = pivot(results, ["attention"], ["checkpoint"])
    figures = {key: figure.runs for key, figure in made.figures.items()}
    assert set(figures.values()) == {2}, "two visits each; two of them ran in turns twice, too"
    note = "left out: 4 cells in turns with another one; the same ran alone, too"
    assert made.notes == (note,)
    notes = pivot_table(made, results).footnotes
    assert note in notes
    assert not [line for line in notes if "ran in turns" in line]
    found = compare(results, results)
    assert [pair.a.runs for pair in found.pairs] == [2] * 4
    assert found.mixed[:1] == (f"A: {note}",)
    assert f"B: {note}" in found.mixed


def test_turns_stand_for_a_cell_that_was_not_measured_alone() -> None:
    results = results_of(raced().state)
    turns, alone = (tuple(each for each in results if each.cell.in_turns == kind) for kind in (True, False))
    assert pivot(turns, ["attention"], []).notes == ()
    assert {figure.runs for figure in pivot(turns, ["attention"], []).figures.values()} == {2}
    assert "in turns with another cell: yes | no" in compare(turns, alone).notes
