"""Table of eager steps beside compiled ones: pairs of cells, and notes on compiling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.merge import Result, merge
from cs336_tui.events.events import Event, ModelPrepared
from cs336_tui.export.subjects.results import TableError
from cs336_tui.export.subjects.variants import compiled_tables
from cs336_tui.export.writing.formats import render_all
from tests.export.grids import MEDIUM, SMALL
from tests.export.keeping import by_header, csv_rows, kept
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


def test_a_row_sets_a_pass_as_written_beside_the_same_compiled(snapshot: SnapshotAssertion) -> None:
    tables = compiled_tables(
        results(
            ({"pass_": "forward"}, (0.010, 0.012) * 5),
            ({"pass_": "train-step"}, (0.040, 0.044) * 5),
            ({"pass_": "forward", "compile": "default"}, (0.005, 0.006) * 5),
            ({"pass_": "train-step", "compile": "default"}, (0.021, 0.021) * 5),
            recompiled=3,
        ),
        None,
    )
    assert kept(*tables) == snapshot


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
    forward, train = by_header(table)
    assert forward["as written (ms)"] == "not run"
    assert train["as written (ms)"] == "OOM"
    assert train["speed-up"] == "n/a"
    assert "no speed-up without a run as written; add --compile off,default" in table.footnotes
    assert table.records[1]["speed-up"] is table.records[1]["as written mean (ms)"] is None
    assert table.records[1]["compiled mean (ms)"] == pytest.approx(10.0)


def test_records_of_all_modes_fit_one_csv() -> None:
    cells = [({"compile": mode}, (0.01, 0.02)) for mode in ("off", "default", "max-autotune")]
    rows = csv_rows(render_all(compiled_tables(results(*cells), None), "csv"))
    assert [row["compile"] for row in rows] == ["default", "max-autotune"]
    assert float(rows[0]["compile (s)"]) == 12.34


@pytest.mark.parametrize(("warmup", "told"), [(0, True), (5, False)])
def test_a_first_compiled_step_without_warmup_is_said_not_to_be_cold(warmup: int, *, told: bool) -> None:
    cells = [({"compile": mode, "warmup_steps": warmup}, (0.01, 0.01)) for mode in ("off", "default")]
    (table,) = compiled_tables(results(*cells), None)
    assert any(note.startswith("warm-up 0: ") for note in table.footnotes) == told
    with pytest.raises(TableError, match="--compile off,default"):
        compiled_tables(results(cells[0]), None)
