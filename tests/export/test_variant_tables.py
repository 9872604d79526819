"""Tables of activation checkpointing, of optimizers, and of eager steps beside compiled ones."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.merge import Result, merge
from cs336_tui.analysis.pivot import pivot
from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.export.pivot import pivot_table
from cs336_tui.export.record import document_of
from cs336_tui.export.subjects.results import TableError, results_table
from cs336_tui.export.subjects.variants import compiled_tables
from cs336_tui.export.writeups import layout_tables
from cs336_tui.export.writing.formats import render_all
from cs336_tui.export.writing.tables import Table
from tests.export.grids import MEDIUM, SMALL
from tests.export.keeping import csv_rows, kept, shown
from tests.made_memory import a_memory_report, a_prediction
from tests.samples import START, a_spec, cell_end, cell_start, report_events, session_start, state_of

GB = 10**9


BREAK = "own.py, line 8: trace builtin operator `print`"


class Cell(NamedTuple):
    spec: CellSpec
    steps_s: Sequence[float] = ()
    """Step times in seconds; the optimizer, if any, takes a tenth of each."""
    status: str = "ok"
    allocated: int | None = None
    predicted: int | None = None
    recorded: int | None = None
    activations: int | None = None
    """The predicted activation peak."""
    recompiled: int = 0
    host_share: float = 1.0
    """Of a step, the time that the host takes to launch it."""


def k(every: int, step_s: float = 1.0, *, status: str = "ok", gb: tuple[float | None, ...] = (), **spec: Any) -> Cell:
    """A cell that recomputes blocks; `gb` is what was allocated, what was predicted, what a memory report recorded, and
    the predicted activation peak."""
    sizes = [None if size is None else round(size * GB) for size in (*gb, None, None, None, None)[:4]]
    steps_s = (step_s, step_s * 1.02) if status == "ok" else ()
    return Cell(a_spec(**({"checkpoint": every, "num_layers": 32} | spec)), steps_s, status, *sizes)


def results_of(*cells: Cell) -> tuple[Result, ...]:
    """Those compiled took 12 s and broke once."""
    events = session_start([cell.spec for cell in cells])
    for number, cell in enumerate(cells):
        events += cell_start(number)
        if cell.spec.compile != "off":
            broken = {"compile_s": 12.34, "graphs": 2, "graph_breaks": (BREAK,)}
            events.append(ev.ModelPrepared(at=START + 4, cell=number, **broken))
        events.append(ev.StageChanged(at=START + 1, cell=number, stage="measuring"))
        for first, step_s in enumerate(cell.steps_s):
            phases = {"zero_grad": (step_s * 0.02,), "optimizer": (step_s * 0.1,), "forward": (step_s * 0.88,)}
            times = {"times_s": (step_s,), "host_s": (step_s * cell.host_share,), "phases_s": phases}
            events.append(ev.StepsTimed(at=START + 2, cell=number, kind="measured", first=first, **times))
        end = {"peak_allocated_bytes": cell.allocated, "recompilations": cell.recompiled}
        events.append(cell_end(number, cell.status, peak_rss_bytes=5 * GB if cell.status == "ok" else None, **end))
        if cell.predicted:
            prediction = a_prediction(cell.spec, peak_bytes=cell.predicted, activation_peak_bytes=cell.activations)
            events.append(ev.CellsPredicted(at=START, predictions=(prediction,)))
        if cell.recorded:
            content = msgspec.structs.replace(a_memory_report(), spec=cell.spec, peak_bytes=cell.recorded)
            events += report_events(content, first=number)
    return merge([("one", state_of(events))])


def table_of(layout: str, *cells: Cell) -> Table:
    (table,) = layout_tables(results_of(*cells), layout)
    return table


# Activation checkpointing


CHECKPOINTING: dict[str, tuple[Cell, ...]] = {
    "the best k is marked with its neighbours": (
        k(4, 1.25, gb=(21, 20)), k(0, 1.0, gb=(70, 69)), k(1, 1.3, gb=(25, 24)), k(3, 1.26, gb=(20, 20.5)),
        k(2, 1.28, gb=(22, 21)), k(8, 1.22, gb=(30, 29)),
    ),
    "the optimizer's peak hides the activations of small groups": (
        k(0, 1.0, gb=(None, 183.4, None, 141.5)), k(1, 1.3, gb=(None, 69.1, None, 9.96)),
        k(2, 1.2, gb=(None, 69.1, None, 12.9)), k(4, 1.25, gb=(None, 74.0, 70, 20.9)),
    ),
    "activations alike have no least": tuple(k(every, gb=(9, 9, None, 5)) for every in (0, 1)),
    "nested groups stand beside the others": (
        k(0, 1.0, gb=(None, 183, None, 141)), k(1, 1.3, gb=(None, 80, None, 9.96)),
        k(1, 1.6, gb=(None, 69, None, 7.5), nesting="halves"), k(2, 1.25, gb=(None, 74, None, 12.9)),
        k(2, 1.5, gb=(None, 73, None, 11), nesting="halves"), k(0, 1.0, gb=(None, 183, None, 141), nesting="halves"),
    ),
    "nested groups alone": tuple(k(every, gb=(9 - every,), nesting="halves") for every in (0, 1)),
    "a neighbour of the best was not run": (k(0, gb=(70,)), k(1, gb=(25,)), k(2, gb=(20,)), k(4, gb=(22,))),
    "by prediction where not every peak was measured": (k(0, gb=(70, 60)), k(1, gb=(None, 25)), k(2, gb=(None, 30))),
    "out of memory is a row and no baseline": (k(0, status="oom", gb=(79, 130)), k(1, gb=(25, 24)), k(2, gb=(27, 26))),
    "the process's memory stands apart from that of tensors": tuple(k(every, device="cpu") for every in (0, 1)),
    "recorded on a cpu": tuple(k(every, gb=(None, None, 2 - every), device="cpu") for every in (0, 1)),
    "small models in MB": (k(0, gb=(0.0091, 0.009)), k(2, gb=(0.0062, 0.006))),
    "peaks alike": (k(0, 1.0, gb=(8,)), k(1, 1.3, gb=(8,)), k(2, 1.2, gb=(9,))),
    "another vocabulary": (k(0, gb=(8,), vocab_size=500), k(1, gb=(7,), vocab_size=500)),
}  # fmt: skip


def test_results_and_pivots_have_the_activation_peak_beside_the_peak(snapshot: SnapshotAssertion) -> None:
    results = results_of(k(0, gb=(90, 183, None, 141.5)), k(1, gb=(60, 69.1, None, 9.96)), k(2, gb=(60,)))
    pivoted = pivot_table(pivot(results, ["checkpoint"], [], "activations"), results)
    assert kept(results_table(results), pivoted) == snapshot
    runs = document_of(results[0].state).runs
    assert [(run.activation_peak_bytes, run.activation_peak_basis) for run in runs] == [
        (141_500_000_000, "predicted"), (9_960_000_000, "predicted"), (None, None),
    ]  # fmt: skip
    assert "activation peak (GB)" not in [column.header for column in results_table(results[:1]).columns]


@pytest.mark.parametrize("case", CHECKPOINTING)
def test_the_best_k_for_memory_is_marked_with_its_neighbours(case: str, snapshot: SnapshotAssertion) -> None:
    assert kept(table_of("checkpointing", *CHECKPOINTING[case])) == snapshot


def test_all_else_that_differs_makes_tables_of_its_own() -> None:
    cells = [
        k(every, context_length=context, pass_=pass_, gb=(context / (every + 1),))
        for every in (0, 1)
        for context in (128, 256)
        for pass_ in ("forward+backward", "train-step")
    ]
    plain = Cell(a_spec(pass_="inference", num_layers=32), (1.0, 1.1))
    tables = layout_tables(results_of(*cells, plain), "checkpointing")
    assert len(tables) == len({table.label for table in tables}) == 4
    assert all(shown(table, "k") == ["0", "1"] for table in tables)
    assert {(record["context"], record["pass"]) for table in tables for record in table.records} == {
        (context, pass_) for context in (128, 256) for pass_ in ("forward+backward", "train-step")
    }
    assert all(any("left out" in note and note.endswith(": 1 cell") for note in table.footnotes) for table in tables)


def test_nothing_recomputed_is_said_in_one_line() -> None:
    with pytest.raises(TableError, match=r"^layout checkpointing: no cell recomputes activations; run some with"):
        layout_tables(results_of(k(0)), "checkpointing")


# Optimizers


def train(optimizer: str, size: str = "small", *, gb: float | None = None, **spec: Any) -> Cell:
    allocated = None if gb is None else round(gb * GB)
    return Cell(a_spec(pass_="train-step", optimizer=optimizer, size=size, **spec), (0.1, 0.12), allocated=allocated)


def test_the_optimizer_s_share_of_each_step_without_passes_that_have_none(snapshot: SnapshotAssertion) -> None:
    failed = Cell(a_spec(pass_="train-step", optimizer="adamw-foreach", size="medium"), status="oom")
    trained = train("adamw-for-loop", gb=3), train("adamw-fused", gb=2), train("adamw-foreach", gb=4)
    forward = Cell(a_spec(pass_="forward"), (0.1, 0.2))
    left_out = table_of("optimizers", train("adamw"), forward)
    assert kept(table_of("optimizers", *trained, failed), left_out) == snapshot
    with pytest.raises(TableError, match=r"^layout optimizers: no cell with pass train-step"):
        layout_tables(results_of(forward), "optimizers")


def results(*cells: tuple[dict[str, Any], Sequence[float] | None], recompiled: int = 0) -> tuple[Result, ...]:
    """Finished cells with these times, None for one that ran out of memory."""
    made = [Cell(a_spec(**spec), times_s or (), "ok" if times_s else "oom", host_share=0.1) for spec, times_s in cells]
    return results_of(*(each._replace(recompiled=recompiled * (each.spec.compile != "off")) for each in made))


COMPILED: dict[str, tuple[Result, ...]] = {
    "a pass as written beside the same compiled": results(
        ({"pass_": "forward"}, (0.010, 0.012) * 5),
        ({"pass_": "train-step"}, (0.040, 0.044) * 5),
        ({"pass_": "forward", "compile": "default"}, (0.005, 0.006) * 5),
        ({"pass_": "train-step", "compile": "default"}, (0.021, 0.021) * 5),
        recompiled=3,
    ),
    "a table for each mode, without medium, of which nothing was compiled": results(
        ({}, (0.010, 0.012) * 5),
        ({"compile": "default"}, (0.005, 0.006) * 5),
        ({"compile": "reduce-overhead"}, (0.0025, 0.003) * 5),
        (MEDIUM, (0.1, 0.1)),
    ),
    "what else differs is a column": results(
        *(
            (size | {"context_length": context, "compile": mode}, (time_s, time_s * 1.1))
            for size in (SMALL, MEDIUM)
            for context, time_s in ((128, 0.01), (256, 0.02))
            for mode in ("off", "default")
        )
    ),
    **{
        f"a first step after {warmup} steps of warm-up": results(
            *(({"compile": mode, "warmup_steps": warmup}, (0.01, 0.01)) for mode in ("off", "default"))
        )
        for warmup in (0, 5)
    },
    "a side without times leaves no speed-up": results(
        ({"pass_": "forward", "compile": "default"}, (0.01, 0.01)),
        ({"pass_": "train-step"}, None),
        ({"pass_": "train-step", "compile": "default"}, (0.01, 0.01)),
    ),
}


@pytest.mark.parametrize("case", COMPILED)
def test_a_row_sets_a_pass_as_written_beside_the_same_compiled(case: str, snapshot: SnapshotAssertion) -> None:
    tables = compiled_tables(COMPILED[case], None)
    assert len({table.label for table in tables}) == len(tables)
    assert kept(*tables) == snapshot


def test_records_of_all_modes_fit_one_csv() -> None:
    cells = [({"compile": mode}, (0.01, 0.02)) for mode in ("off", "default", "max-autotune")]
    rows = csv_rows(render_all(compiled_tables(results(*cells), None), "csv"))
    assert [row["compile"] for row in rows] == ["default", "max-autotune"]
    assert float(rows[0]["compile (s)"]) == 12.34


def test_without_a_compiled_cell_there_is_no_table() -> None:
    with pytest.raises(TableError, match="--compile off,default"):
        compiled_tables(results(({}, (0.01, 0.01))), None)
