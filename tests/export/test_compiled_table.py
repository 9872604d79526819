"""Table of eager steps beside compiled ones: pairs of cells, and notes on compiling."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import pytest

from cs336_tui.analysis.merge import Result, merge
from cs336_tui.events.events import Event, ModelPrepared
from cs336_tui.export.subjects.results import TableError
from cs336_tui.export.subjects.variants import compiled_tables
from cs336_tui.export.writing.formats import render_all
from cs336_tui.export.writing.tables import Table
from tests.export.grids import MEDIUM, SMALL
from tests.samples import START, a_spec, cell_end, cell_start, session_start, state_of, steps

BREAK = "own.py, line 8: trace builtin operator `print`"


def results(*cells: tuple[dict[str, Any], Sequence[float] | None], recompiled: int = 0) -> tuple[Result, ...]:
    """Finished cells with these times, None for one that ran out of memory; those compiled took 12 s and broke once."""
    specs = tuple(a_spec(**changes) for changes, _ in cells)
    events: list[Event] = [*session_start(specs)]
    for cell, (spec, (_, times_s)) in enumerate(zip(specs, cells, strict=True)):
        events += cell_start(cell)
        is_compiled = spec.compile != "off"
        if is_compiled:
            events.append(ModelPrepared(at=START + 4, cell=cell, compile_s=12.34, graphs=2, graph_breaks=(BREAK,)))
        if times_s is None:
            events.append(cell_end(cell, "oom", error="CUDA out of memory", stage="warm-up", step=0))
            continue
        events += steps(cell, (), times_s)
        events.append(cell_end(cell, recompilations=recompiled if is_compiled else 0))
    return merge([("one", state_of(events))])


def cells_of(table: Table) -> list[dict[str, str]]:
    return [dict(zip([column.header for column in table.columns], row, strict=True)) for row in table.rows]


def test_a_row_sets_a_pass_as_written_beside_the_same_compiled() -> None:
    (table,) = compiled_tables(
        results(
            ({"pass_": "forward"}, (0.010, 0.012) * 5),
            ({"pass_": "train-step"}, (0.040, 0.044) * 5),
            ({"pass_": "forward", "compile": "default"}, (0.005, 0.006) * 5),
            ({"pass_": "train-step", "compile": "default"}, (0.021, 0.021) * 5),
        ),
        None,
    )
    forward, train = cells_of(table)
    assert (forward["pass"], train["pass"]) == ("forward", "train-step")
    assert forward["as written (ms)"] == "11.0 ± 1.1"
    assert forward["compiled (ms)"] == "5.50 ± 0.53"
    assert forward["speed-up"].startswith("2 [")
    assert train["speed-up"].startswith("2 [")
    assert (forward["compile (s)"], forward["graphs"], forward["graph breaks"]) == ("12.3", "2", "1")
    assert table.caption == "Step time as written and under torch.compile, mode default"
    assert f"graph break in small · forward: {BREAK}" in table.footnotes
    assert any("without compile time, unless a line below says so" in note for note in table.footnotes)


def test_every_mode_has_a_table_beside_the_same_model_as_written() -> None:
    tables = compiled_tables(
        results(
            ({}, (0.010, 0.012) * 5),
            ({"compile": "default"}, (0.005, 0.006) * 5),
            ({"compile": "reduce-overhead"}, (0.0025, 0.003) * 5),
            (MEDIUM, (0.1, 0.1)),
        ),
        None,
    )
    assert [table.caption.rpartition(" ")[2] for table in tables] == ["default", "reduce-overhead"]
    for table, speedup in zip(tables, (2.0, 4.0), strict=True):
        (row,) = table.records  # nothing of medium was compiled
        assert row["size"] == "small"
        assert row["speed-up"] == pytest.approx(speedup)
        assert row["speed-up low"] < speedup < row["speed-up high"]
    assert len({table.label for table in tables}) == 2


def test_what_else_differs_is_a_column_and_never_put_together() -> None:
    (table,) = compiled_tables(
        results(
            *(
                (size | {"context_length": context, "compile": mode}, (time_s, time_s * 1.1))
                for size in (SMALL, MEDIUM)
                for context, time_s in ((128, 0.01), (256, 0.02))
                for mode in ("off", "default")
            )
        ),
        None,
    )
    assert [(row["size"], row["context"]) for row in table.records] == [
        ("small", 128), ("small", 256), ("medium", 128), ("medium", 256),
    ]  # fmt: skip
    assert all(row["speed-up"] == pytest.approx(1.0) for row in table.records)


def test_a_side_without_times_says_why_and_leaves_no_speedup() -> None:
    (table,) = compiled_tables(
        results(
            ({"pass_": "forward", "compile": "default"}, (0.01, 0.01)),
            ({"pass_": "train-step"}, None),
            ({"pass_": "train-step", "compile": "default"}, (0.01, 0.01)),
        ),
        None,
    )
    forward, train = cells_of(table)
    assert forward["as written (ms)"] == "not run"
    assert train["as written (ms)"] == "OOM"
    assert train["speed-up"] == "n/a"
    assert "no speed-up without a run as written; add --compile off,default" in table.footnotes
    assert table.records[1]["speed-up"] is table.records[1]["as written mean (ms)"] is None
    assert table.records[1]["compiled mean (ms)"] == pytest.approx(10.0)


def test_recompilations_are_told_below_the_table() -> None:
    (table,) = compiled_tables(results(({}, (0.01, 0.02)), ({"compile": "default"}, (0.01, 0.02)), recompiled=3), None)
    assert not any("without a run as written" in note for note in table.footnotes)
    assert any("compiled again 3 times during warm-up and measuring" in note for note in table.footnotes)


def test_records_of_all_modes_fit_one_csv() -> None:
    found = results(
        ({}, (0.01, 0.02)), ({"compile": "default"}, (0.01,) * 2), ({"compile": "max-autotune"}, (0.02,) * 2)
    )
    rows = list(csv.DictReader(io.StringIO(render_all(compiled_tables(found, None), "csv"))))
    assert [row["compile"] for row in rows] == ["default", "max-autotune"]
    assert float(rows[0]["compile (s)"]) == 12.34
    assert float(rows[0]["compiled std (ms)"]) == 0.0


def test_nothing_compiled_is_an_error_that_says_what_to_run() -> None:
    with pytest.raises(TableError, match="--compile off,default"):
        compiled_tables(results(({}, (0.01, 0.02))), None)


@pytest.mark.parametrize(("warmup", "told"), [(0, True), (5, False)])
def test_a_first_compiled_step_without_warmup_is_said_not_to_be_cold(warmup: int, *, told: bool) -> None:
    cells = [({"compile": mode, "warmup_steps": warmup}, (0.01, 0.01)) for mode in ("off", "default")]
    (table,) = compiled_tables(results(*cells), None)
    assert any(note.startswith("warm-up 0: ") for note in table.footnotes) == told
