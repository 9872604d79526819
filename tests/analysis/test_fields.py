"""Fields of automatic step counts: shown with the count reached, told apart by the setting."""

from __future__ import annotations

from cs336_tui.analysis.fields import FIELDS, in_common, shown_of, steps_done, values, varies, warmup_done
from cs336_tui.analysis.pivot import pivot, select
from cs336_tui.config.spec import CellSpec
from tests.attention_cells import attention_spec
from tests.samples import a_spec, cell_start, session_start, state_of, steps
from tests.session.made import Cell, results_of


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
