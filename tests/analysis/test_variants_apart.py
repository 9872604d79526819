"""Cells of different variants: told apart in tables, paired by shared settings, never merged."""

from __future__ import annotations

import msgspec
import pytest

from cs336_tui.analysis.comparison import compare, mixed_provenance
from cs336_tui.analysis.fields import FIELDS, shown_of
from cs336_tui.analysis.merge import Result, merge
from cs336_tui.analysis.pivot import PivotError, pivot
from cs336_tui.analysis.reference import matching
from cs336_tui.events.events import CellFinished, EffectiveSettings, Event, ModelBuilt, ModelPrepared
from cs336_tui.export.record import document_of
from cs336_tui.export.subjects.results import results_table
from cs336_tui.export.writeups import layout_tables
from cs336_tui.export.writing.provenance import variant_notes
from cs336_tui.session.state import SessionState
from tests.samples import a_spec, state_of
from tests.session.made import cell, events_of, results_of

TIMES = (0.10, 0.11, 0.10, 0.11)
OWN = "mine.model:Net"


def in_force(cell: int, **facts: object) -> Event:
    found = EffectiveSettings(**({"matmul_precision": "highest"} | facts))
    return ModelBuilt(at=0.0, cell=cell, num_params=10, num_params_without_head=8, in_force=found)


def with_facts(*facts: Event, **choices: object) -> SessionState:
    """Two cells, naive attention and sdpa, with further events about them."""
    cells = (cell(TIMES, **choices), cell(TIMES, **({"attention": "sdpa"} | choices)))
    return state_of([*events_of(*cells), *facts])


def test_variants_are_fields_of_a_pivot() -> None:
    results = results_of(
        cell(TIMES),
        cell((0.05,) * 4, compile="default"),
        cell((0.2,) * 4, checkpoint=2),
        cell((0.1,) * 4, checkpoint=10),
    )
    with pytest.raises(PivotError, match="compile"):
        pivot(results, ["size"], ["checkpoint"])
    table = pivot(results, ["compile"], ["checkpoint"], "speedup", {"compile": "off", "checkpoint": "0"})
    assert table.column_keys == (("0",), ("2",), ("10",))
    figure = table.figure(("default",), ("0",))
    assert figure is not None
    assert figure.value == pytest.approx(2.1)


def test_what_is_as_usual_goes_without_saying() -> None:
    table = pivot(results_of(cell(TIMES), cell(TIMES, context_length=256)), ["context"], [])
    assert not {"workload", "model", "attention", "compile", "checkpoint", "optimizer", "loss"} & table.fixed.keys()
    table = pivot(
        results_of(cell(TIMES, compile="default"), cell(TIMES, compile="default", batch_size=8)), ["batch"], []
    )
    assert table.fixed["compile"] == "default"


def test_a_model_of_ones_own_has_its_own_attention() -> None:
    assert shown_of(a_spec(model=OWN), "attention") == "own"
    assert shown_of(a_spec(model=OWN), "model") == OWN
    assert FIELDS["model"].usual == shown_of(a_spec(), "model")


def test_sessions_of_two_variants_pair() -> None:
    pairs = compare(results_of(cell(TIMES)), results_of(cell((0.05,) * 4, attention="sdpa"))).pairs
    assert [(pair.a.spec.attention, pair.b.spec.attention) for pair in pairs] == [("naive", "sdpa")]
    a = results_of(cell(TIMES), cell(TIMES, context_length=256))
    b = results_of(cell(TIMES, model=OWN), cell(TIMES, model=OWN, context_length=256))
    found = compare(a, b)
    assert [pair.a.spec.context_length for pair in found.pairs] == [pair.b.spec.context_length for pair in found.pairs]
    assert any(note.startswith(f"model: reference | {OWN}") for note in found.notes)


def test_a_table_has_a_column_for_what_is_not_as_usual() -> None:
    headers = [
        column.header for column in results_table(results_of(cell(TIMES), cell(TIMES, attention="sdpa"))).columns
    ]
    assert "attention" in headers
    assert not {"model", "compile", "checkpoint", "optimizer"} & {*headers}
    headers = [column.header for column in results_table(results_of(cell(TIMES, compile="default"))).columns]
    assert "compile" in headers


def test_published_figures_are_no_match_without_a_word() -> None:
    plain = matching(a_spec(pass_="forward"), inexact_too=True)
    sdpa = matching(a_spec(pass_="forward", attention="sdpa"), inexact_too=True)
    assert plain
    assert len(plain) == len(sdpa)
    assert not any(match.differences == 0 for match in sdpa)
    assert all("sdpa here" in match.caveats for match in sdpa)


def test_kernels_of_different_choices_are_no_mixed_provenance() -> None:
    def results(*facts: Event, **choices: object) -> tuple[Result, ...]:
        return merge([("one", with_facts(*facts, **choices))])

    asked = results(in_force(0, attention="naive"), in_force(1, attention="sdpa: flash"))
    assert mixed_provenance(asked) == ()
    (line,) = mixed_provenance(
        results(in_force(0, attention="sdpa: flash"), in_force(1, attention="sdpa: math"), attention="sdpa")
    )
    assert "sdpa: flash" in line
    assert "sdpa: math" in line
    (line,) = mixed_provenance(
        results(
            in_force(0, model_revision="sha256 1"), in_force(1, model_revision="sha256 2"), model=OWN, attention="naive"
        )
    )
    assert "model revision sha256 1" in line


def test_a_graph_whose_optimizer_is_another_implementation_is_mixed_provenance() -> None:
    """One choice of optimizer may be several implementations: those of another device type or choice are no wonder."""

    def notes(first: str, second: str, **of_second: object) -> tuple[str, ...]:
        cells = cell(TIMES, pass_="train-step"), cell(TIMES, pass_="train-step", **of_second)
        facts = in_force(0, optimizer=first), in_force(1, optimizer=second)
        return mixed_provenance(merge([("one", state_of([*events_of(*cells), *facts]))]))

    captured = "AdamW (foreach, capturable)"
    (line,) = notes("AdamW (foreach)", captured, cuda_graph="step")
    assert line == f"mixed provenance: optimizer AdamW (foreach) (cell 1); {captured} (cell 2)"
    assert notes("AdamW (foreach)", "AdamW (fused)", optimizer="adamw-fused") == ()
    assert notes("AdamW (foreach)", "AdamW (for-loop)", device="cpu") == ()


def test_what_came_of_variants_is_told() -> None:
    state = with_facts(
        in_force(0, attention="naive (scores materialised)"),
        in_force(1, attention="sdpa: flash"),
        ModelPrepared(at=0.0, cell=0, compile_s=12.34, graphs=2, graph_breaks=("print is called (model.py:4)",)),
        ModelPrepared(at=0.0, cell=1, compile_s=20.0, graphs=1),
        CellFinished(at=1.0, cell=1, status="ok", recompilations=3),
        compile="default",
    )
    notes = "\n".join(variant_notes(list(state.cells.values())))
    assert "attention kernels: naive is naive (scores materialised); sdpa is sdpa: flash" in notes
    assert "torch.compile default: 12.3 to 20.0 s before the first step, not in step times; graphs: 1 to 2;" in notes
    assert "graph break: print is called (model.py:4)" in notes
    assert "compiled again 3 times" in notes
    first, second = document_of(state).runs
    assert (first.compile_s, first.compiled_graphs, second.recompilations) == (12.34, 2, 3)
    headers = [column.header for column in results_table(merge([("one", state)])).columns]
    assert "compile (s)" in headers


def test_cells_as_they_are_written_have_nothing_to_tell() -> None:
    (result,) = results_of(cell(TIMES))
    assert list(variant_notes([result.cell])) == []
    assert msgspec.json.encode(document_of(result.state)).count(b'"compile_s":null') == 1


def test_things_of_one_name_from_two_modules_are_never_one() -> None:
    """Two checkouts' classes are often called alike."""
    results = results_of(
        cell((0.1,) * 4, model="a:LM", optimizer="adamw"), cell((0.9,) * 4, model="b:LM", optimizer="adamw")
    )
    table = pivot(results, ["model"], [])
    assert table.row_keys == (("a:LM",), ("b:LM",))
    tables = layout_tables(results, "min-max")
    assert sorted(record["Avg (s)"] for table in tables for record in table.records) == pytest.approx([0.1, 0.9])
    alone = results_of(
        *(cell((time_s,) * 4, workload="attention", attention=name, pass_="forward")
          for time_s, name in ((0.1, "a:attend"), (0.9, "b:attend")))
    )  # fmt: skip
    (times,) = (table for table in layout_tables(alone, "attention") if "time" in table.caption)
    assert {"a:attend: forward (ms)", "b:attend: forward (ms)"} <= times.records[0].keys()
