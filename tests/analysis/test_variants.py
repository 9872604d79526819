"""Variants and a user's own model in tables: told apart and named, never merged; implied settings are no difference."""

import csv
import io
from collections.abc import Sequence
from typing import Any

import pytest

from cs336_tui.analysis.comparison import compare, mixed_provenance
from cs336_tui.analysis.fields import FIELDS, PivotError, in_common, select, shown_of, varies
from cs336_tui.analysis.grouping import label, telling
from cs336_tui.analysis.merge import Result, merge
from cs336_tui.analysis.pivot import Pivot, pivot, suggest, varying
from cs336_tui.analysis.reference import matching
from cs336_tui.events.events import CellFinished, EffectiveSettings, Event, ModelBuilt, ModelPrepared
from cs336_tui.export.record import document_of, to_csv
from cs336_tui.export.subjects.results import results_table
from cs336_tui.export.writeups import layout_tables
from cs336_tui.export.writing.footnotes import results_notes
from cs336_tui.export.writing.provenance import variant_notes
from cs336_tui.export.writing.verdicts import verdict_table
from cs336_tui.session.state import SessionState
from tests.samples import a_spec, state_of
from tests.session.made import Cell, cell, events_of, results_of

GPT = "my_gpt:GPT"
RAW: dict[str, Any] = {"size": "custom", "warmup_steps": 0, "measure_steps": 4}


def ran(mean_s: float = 0.1, **spec: Any) -> Cell:
    times = (mean_s, mean_s * 1.01, mean_s * 0.99, mean_s)
    return cell(times, **(RAW | spec))


def both(**spec: Any) -> tuple[Result, ...]:
    """Two passes of a user's own model, which takes half the time, beside the reference."""
    return results_of(
        *(
            ran(mean_s, model=model, pass_=pass_, **spec)
            for model, mean_s in ((GPT, 0.1), ("reference", 0.2))
            for pass_ in ("forward", "train-step")
        )
    )


def speedups(found: Pivot) -> dict[tuple[str, ...], float | None]:
    return {(*row, *column): figure.value for (row, column), figure in found.figures.items()}


def written(results: Sequence[Result], layout: str) -> str:
    return "\n".join(
        text
        for table in layout_tables(results, layout)
        for text in (table.caption, *table.footnotes, *sum(table.rows, ()))
    )


def test_what_follows_from_a_model_is_no_field_that_differs() -> None:
    found = both()
    assert [shown_of(result.spec, "arch") for result in found[1:3]] == ["own", "swiglu-rope"]
    assert not {"attention", "arch", "edition"} & {*varying(found)}
    assert suggest(found) == (("pass",), ("model",))
    assert telling(found) == ("model", "pass")
    assert varying((*found, *results_of(ran(attention="sdpa")))).count("attention") == 1


@pytest.mark.parametrize("columns", [["model"], ["model", "attention"]])
def test_a_model_of_ones_own_has_a_speed_up_over_the_reference(columns: list[str]) -> None:
    found = speedups(pivot(both(), ["pass"], columns, "speedup", {"model": "reference"}))
    assert len(found) == 4
    assert [value for key, value in found.items() if GPT in key] == [pytest.approx(2.0)] * 2
    found = speedups(pivot(both(), ["pass"], columns, "speedup", {"model": "GPT"}))
    assert [value for key, value in found.items() if "reference" in key] == [pytest.approx(0.5)] * 2


def test_which_attention_of_the_reference_is_the_baseline_must_be_said() -> None:
    results = results_of(ran(0.1, model=GPT), ran(0.2), ran(0.15, attention="sdpa"))
    with pytest.raises(PivotError, match="fits several; add attention, one of naive, sdpa"):
        pivot(results, [], ["model", "attention"], "speedup", {"model": "reference"})
    found = pivot(results, [], ["model", "attention"], "speedup", {"model": "reference", "attention": "sdpa"})
    assert speedups(found)[GPT, "own"] == pytest.approx(1.5)
    with pytest.raises(PivotError, match="attention"):
        pivot(results, [], ["model"])
    with pytest.raises(PivotError, match="precision"):
        pivot(results_of(ran(model=GPT), ran(precision="bf16-mixed")), [], ["model"])


def test_what_is_said_of_all_cells_is_true_of_all() -> None:
    assert pivot(both(), ["pass"], ["model"]).fixed["arch"] == "swiglu-rope (reference)"
    own = select(both(), {"model": "GPT"})
    fixed = pivot(own, ["pass"], []).fixed
    assert fixed["model"] == GPT
    assert not {"arch", "edition", "attention"} & fixed.keys()
    assert in_common(results_of(ran(model=GPT, size="tiny")), "edition") == "2026"


@pytest.mark.parametrize("layout", ["forward-only", "min-max", "raw-steps", "warm-up", "by-mean", "devices"])
def test_layouts_name_the_model_and_what_is_not_as_usual(layout: str) -> None:
    said = written(results_of(ran(model=GPT, model_args=(("tie", "yes"),), compile="default")), layout)
    assert f"model {GPT}, model args tie=yes, compile default" in said
    assert "arch" not in said
    assert "edition" not in said
    usual = written(results_of(ran()), layout)
    assert "edition 2026, arch swiglu-rope" in usual
    assert not any(f"{key} " in usual for key in ("model", "compile", "optimizer"))


def test_layouts_of_variants_and_the_table_of_verdicts_name_the_model() -> None:
    compiled = {"model": GPT, "pass_": "train-step", "compile": "default"}
    cells = [ran(**compiled | {"compile": "off"}), *(ran(**compiled, checkpoint=each) for each in (0, 1))]
    for layout in ("compiled", "checkpointing", "optimizers"):
        assert f"model {GPT}" in written(results_of(*cells), layout)
    assert f"every cell: model {GPT}" in verdict_table(results_of(ran(model=GPT))).footnotes
    assert not any("every cell" in note for note in verdict_table(results_of(ran())).footnotes)


def test_notes_of_results_claim_no_architecture_of_a_model_of_ones_own() -> None:
    notes = "\n".join(results_notes(results_of(ran(model=GPT, model_args=(("tie", "yes"),)))))
    assert f"({GPT}, tie=yes): d_model" in notes
    assert "arch" not in notes
    assert "edition" not in notes
    headers = {column.header for column in results_table(both()).columns}
    assert "model" in headers
    assert not {"attention", "arch", "edition"} & headers


# Arguments.


def tied(*values: str, **spec: Any) -> list[Cell]:
    return [ran(0.1 * (at + 1), model=GPT, model_args=(("tie", value),), **spec) for at, value in enumerate(values)]


def test_arguments_of_a_model_are_a_column_where_they_differ() -> None:
    results = results_of(*tied("yes", "no"))
    assert varies(results, "model-args")
    assert "model args" in {column.header for column in results_table(results).columns}
    assert [label(result, telling(results)) for result in results] == ["model args tie=yes", "model args tie=no"]
    with pytest.raises(PivotError, match="model args"):
        pivot(results, ["model"], [])
    found = speedups(pivot(results, [], ["model-args"], "speedup", {"model-args": "tie=no"}))
    assert found == {("tie=yes",): pytest.approx(2.0), ("tie=no",): 1.0}
    assert results[0].spec.title.endswith("GPT · tie=yes")


def test_arguments_follow_from_the_model_where_each_has_one_set() -> None:
    arguments = (("tie", "yes"),)
    results = both(model_args=arguments)
    assert [shown_of(result.spec, "model-args") for result in results[1:3]] == ["tie=yes", "none"]
    assert "model-args" not in varying(results)
    found = speedups(pivot(results, ["pass"], ["model"], "speedup", {"model": "reference"}))
    assert found["forward", GPT] == pytest.approx(2.0)
    results = (*results_of(*tied("yes", "no"), ran(0.4)),)
    found = speedups(pivot(results, [], ["model", "model-args"], "speedup", {"model": "reference"}))
    assert found[GPT, "tie=yes"] == pytest.approx(4.0)
    assert found[GPT, "tie=no"] == pytest.approx(2.0)


def test_csv_has_what_tables_say() -> None:
    state = state_of(events_of(*tied("yes", annotations=(("softmax", "my_gpt:soft"),)), ran()))
    own, reference = csv.DictReader(io.StringIO(to_csv(document_of(state))))
    assert (own["attention"], own["arch"], own["model_args"]) == ("own", "own", "tie=yes")
    assert own["annotations"] == "softmax=my_gpt:soft"
    assert (reference["attention"], reference["arch"], reference["model_args"]) == ("naive", "swiglu-rope", "")


TIMES = (0.10, 0.11, 0.10, 0.11)
OWN = "mine.model:Net"


def in_force(cell: int, **facts: object) -> Event:
    found = EffectiveSettings(**({"matmul_precision": "highest"} | facts))
    return ModelBuilt(at=0.0, cell=cell, num_params=10, num_params_without_head=8, in_force=found)


def with_facts(*facts: Event, **choices: object) -> SessionState:
    """Two cells, naive attention and sdpa, with further events about them."""
    cells = (cell(TIMES, **choices), cell(TIMES, **({"attention": "sdpa"} | choices)))
    return state_of([*events_of(*cells), *facts])


def test_a_revision_is_of_all_code_that_a_cell_brings() -> None:
    def told(second: dict[str, Any]) -> tuple[str, ...]:
        cells = (ran(model=GPT, pass_="train-step"), ran(model=GPT, pass_="train-step", **second))
        own, more = "model.py sha256 1", "model.py sha256 1; opt.py sha256 2"
        events = [*events_of(*cells), in_force(0, model_revision=own), in_force(1, model_revision=more)]
        return mixed_provenance(merge([("one", state_of(events))]))

    assert told({"optimizer": "my_gpt.opt:AdamW"}) == ()
    assert "model revision" in told({})[0]


def test_variants_are_fields_of_a_pivot() -> None:
    recomputed = (cell((time_s,) * 4, checkpoint=every) for time_s, every in ((0.2, 2), (0.1, 10)))
    results = results_of(cell(TIMES), cell((0.05,) * 4, compile="default"), *recomputed)
    with pytest.raises(PivotError, match="compile"):
        pivot(results, ["size"], ["checkpoint"])
    table = pivot(results, ["compile"], ["checkpoint"], "speedup", {"compile": "off", "checkpoint": "0"})
    assert table.column_keys == (("0",), ("2",), ("10",))
    figure = table.figure(("default",), ("0",))
    assert figure.value == pytest.approx(2.1)


def test_what_is_as_usual_goes_without_saying() -> None:
    table = pivot(results_of(cell(TIMES), cell(TIMES, context_length=256)), ["context"], [])
    assert not {"workload", "model", "attention", "compile", "checkpoint", "optimizer", "loss"} & table.fixed.keys()
    compiled = (cell(TIMES, compile="default", batch_size=size) for size in (4, 8))
    assert pivot(results_of(*compiled), ["batch"], []).fixed["compile"] == "default"
    assert FIELDS["model"].usual == shown_of(a_spec(), "model")
    assert shown_of(a_spec(), "model-args") == "none"
    assert [shown_of(a_spec(model=OWN), key) for key in ("attention", "model")] == ["own", OWN]


def test_sessions_of_two_variants_pair() -> None:
    pairs = compare(results_of(cell(TIMES)), results_of(cell((0.05,) * 4, attention="sdpa"))).pairs
    assert [(pair.a.spec.attention, pair.b.spec.attention) for pair in pairs] == [("naive", "sdpa")]
    a = results_of(cell(TIMES), cell(TIMES, context_length=256))
    b = results_of(cell(TIMES, model=OWN), cell(TIMES, model=OWN, context_length=256))
    found = compare(a, b)
    assert [pair.a.spec.context_length for pair in found.pairs] == [pair.b.spec.context_length for pair in found.pairs]
    assert any(note.startswith(f"model: reference | {OWN}") for note in found.notes)


def test_published_figures_are_no_match_without_a_word() -> None:
    plain = matching(a_spec(pass_="forward"))
    sdpa = matching(a_spec(pass_="forward", attention="sdpa"))
    assert plain
    assert len(plain) == len(sdpa)
    assert not any(match.differences == 0 for match in sdpa)
    assert all("sdpa here" in match.caveats for match in sdpa)


def test_kernels_of_different_choices_are_no_mixed_provenance() -> None:
    def results(*facts: Event, **choices: object) -> tuple[Result, ...]:
        return merge([("one", with_facts(*facts, **choices))])

    asked = results(in_force(0, attention="naive"), in_force(1, attention="sdpa: flash"))
    assert mixed_provenance(asked) == ()
    kernels = in_force(0, attention="sdpa: flash"), in_force(1, attention="sdpa: math")
    (line,) = mixed_provenance(results(*kernels, attention="sdpa"))
    assert line.endswith("attention sdpa: flash (cell 1), sdpa: math (cell 2)")
    revisions = in_force(0, model_revision="sha256 1"), in_force(1, model_revision="sha256 2")
    (line,) = mixed_provenance(results(*revisions, model=OWN, attention="naive"))
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
    assert "compile (s)" in [column.header for column in results_table(merge([("one", state)])).columns]
    (usual,) = results_of(cell(TIMES))
    assert list(variant_notes([usual.cell])) == []
    assert [run.compile_s for run in document_of(usual.state).runs] == [None]


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
