"""Cells of several sessions side by side, and their fields: automatic step counts are told apart by the setting."""

from __future__ import annotations

from cs336_tui.analysis.fields import FIELDS, in_common, select, shown_of, steps_done, values, varies, warmup_done
from cs336_tui.analysis.merge import ddof_of, measured, merge, pooled
from cs336_tui.analysis.pivot import pivot
from cs336_tui.config.spec import CellSpec
from cs336_tui.stats.summaries import summarize
from tests.attention_cells import attention_spec
from tests.samples import a_spec, cell_start, session_start, state_of, steps
from tests.session.made import Cell, cell, results_of, session_of


def test_a_cell_that_is_in_several_sessions_is_there_as_often_and_told_apart() -> None:
    titles = ["run", "run", "run (2)", "run"]
    states = [session_of(cell([0.1 * number, 0.2])) for number in range(4)]
    found = merge(list(zip(titles, states, strict=True)))
    assert [(result.source, result.cell.step_times_s[0]) for result in found] == [(n, 0.1 * n) for n in range(4)]
    assert len({result.spec for result in found}) == 1
    names = [result.session for result in found]
    assert (names[0], "run (2)" in names, len(set(names))) == ("run", True, 4)


def test_repeats_and_cells_without_a_result_are_kept() -> None:
    ended = {"oom": "OOM", "failed": "failed", "killed": "killed", "cancelled": "unfinished", None: "not run"}
    lost = (cell([0.1, 0.2], status=status) for status in ended)
    found = merge([("one", session_of(Cell(a_spec(), [0.1]), Cell(a_spec(), [0.2], repeat=2), *lost))])
    assert [result.cell.repeat for result in found] == [1, 2, 1, 1, 1, 1, 1]
    assert [result.ending for result in found] == ["", "", *ended.values()]
    assert measured(found) == found[:2]


def test_pooled_repeats_are_one_summary_of_all_steps() -> None:
    found = merge([("one", session_of(Cell(a_spec(), [0.1, 0.2]), Cell(a_spec(), [0.3, 0.5], repeat=2)))])
    assert pooled(found, 0) == summarize([0.1, 0.2, 0.3, 0.5], 0)
    assert pooled(found[:1], 1) == summarize([0.1, 0.2])
    assert pooled([], 1) is None


def test_ddof_is_the_sessions_when_they_agree() -> None:
    numpys, sample = session_of(cell([0.1]), ddof=0), session_of(cell([0.1]))
    assert ddof_of(merge([("a", numpys)])) == 0
    assert ddof_of(merge([("a", numpys), ("b", sample)])) == 1


def automatic(**changes: object) -> CellSpec:
    fields = {"warmup_auto": True, "warmup_steps": 100, "steps_auto": 0.01, "measure_steps": 1000}
    return a_spec(**(fields | changes))


def test_what_was_really_done_is_shown_once_it_is_known() -> None:
    begun = [*session_start([automatic()]), *cell_start(0)]
    (waiting,) = state_of(session_start([automatic()])).cells.values()
    (building,) = state_of(begun).cells.values()
    (measuring,) = state_of([*begun, *steps(0, (0.1,) * 12, (0.1,) * 3)]).cells.values()
    assert [warmup_done(cell) for cell in (waiting, building, measuring)] == ["auto", "auto", "auto (12)"]
    assert [steps_done(cell) for cell in (waiting, building, measuring)] == ["auto", "auto", "auto"]
    (over,) = results_of(Cell(automatic(), (0.1,) * 140, (0.1,) * 12))
    assert FIELDS["warmup"].show_done(over) == warmup_done(over.cell) == "auto (12)"
    assert FIELDS["steps"].show_done(over) == steps_done(over.cell) == "auto (140)"


def test_fixed_counts_are_shown_as_numbers() -> None:
    (result,) = results_of(Cell(a_spec(), (0.1,) * 4, (0.1,) * 2))
    for key, shown in (("warmup", "2"), ("steps", "4")):
        assert FIELDS[key].show(result) == FIELDS[key].show_done(result) == shown_of(result.spec, key) == shown


def test_other_ceilings_and_widths_are_other_settings() -> None:
    assert shown_of(automatic(), "warmup") == "auto"
    assert shown_of(automatic(warmup_steps=50), "warmup") == "auto:50"
    assert shown_of(automatic(measure_steps=200, steps_auto=0.02), "steps") == "auto:200 2%"


def test_automatic_cells_are_picked_and_put_together_by_their_setting() -> None:
    """Two runs of an automatic cell are repeats, however many steps each came to; fixed ones come first."""
    results = results_of(
        Cell(automatic(), (0.1,) * 40, (0.1,) * 12),
        Cell(automatic(), (0.3,) * 20, (0.1,) * 15, repeat=2),
        Cell(automatic(warmup_steps=5, warmup_auto=False), (0.2,) * 20, (0.1,) * 5),
    )
    assert values(results, "warmup") == ("5", "auto")
    assert [result.cell.cell for result in select(results, {"warmup": "auto"})] == [0, 1]
    table = pivot(results, ["warm-up"], [])
    fixed, auto = (table.figures[(shown,), ()] for shown in ("5", "auto"))
    assert (fixed.n, auto.n, auto.runs) == (20, 60, 2)


def test_attention_alone_has_no_vocabulary_edition_or_architecture() -> None:
    both = results_of(Cell(a_spec(pass_="forward"), [0.1]), Cell(attention_spec(), [0.1]))
    of_models = ("edition", "arch", "vocab")
    assert not any(varies(both, key) for key in of_models)
    assert {in_common(both[1:], key) for key in of_models} == {""}
    assert in_common(both, "vocab") == "10000 (language-model)"
