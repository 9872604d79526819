"""Tables of activation checkpointing and of optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from cs336_tui.analysis.merge import Result, merge
from cs336_tui.analysis.pivot import pivot
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import (
    CellsPredicted,
    CellsQueued,
    EnvironmentRead,
    Event,
    ReportFinished,
    ReportStarted,
    SessionStarted,
    StageChanged,
    StepsTimed,
)
from cs336_tui.export.pivot import pivot_table
from cs336_tui.export.record import document_of
from cs336_tui.export.subjects.results import TableError, results_table
from cs336_tui.export.writeups import layout_tables
from cs336_tui.export.writing.files import FORMATS
from cs336_tui.export.writing.formats import render
from cs336_tui.export.writing.tables import Table
from tests.made_memory import a_memory_report, a_prediction
from tests.samples import ENVIRONMENT, SCHEMA, START, a_spec, cell_end, cell_start, state_of

GB = 10**9


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


def k(every: int, step_s: float = 1.0, *, status: str = "ok", gb: tuple[float | None, ...] = (), **spec: Any) -> Cell:
    """A cell that recomputes blocks; `gb` is what was allocated, what was predicted, what a memory report recorded, and
    the predicted activation peak."""
    sizes = [None if size is None else round(size * GB) for size in (*gb, None, None, None, None)[:4]]
    steps_s = (step_s, step_s * 1.02) if status == "ok" else ()
    return Cell(a_spec(**({"checkpoint": every, "num_layers": 32} | spec)), steps_s, status, *sizes)


def results_of(*cells: Cell) -> tuple[Result, ...]:
    events: list[Event] = [
        SessionStarted(at=START, schema=SCHEMA, session="made", app="0.1.0"),
        EnvironmentRead(at=START, environment=ENVIRONMENT),
        CellsQueued(at=START, first=0, specs=tuple(cell.spec for cell in cells), ddof=1),
    ]
    for number, cell in enumerate(cells):
        events += cell_start(number)
        events.append(StageChanged(at=START + 1, cell=number, stage="measuring"))
        for first, step_s in enumerate(cell.steps_s):
            phases = {"zero_grad": (step_s * 0.02,), "optimizer": (step_s * 0.1,), "forward": (step_s * 0.88,)}
            events.append(
                StepsTimed(at=START + 2, cell=number, kind="measured", first=first, times_s=(step_s,), host_s=(step_s,),
                           phases_s=phases)
            )  # fmt: skip
        rss = 5 * GB if cell.status == "ok" else None
        events.append(cell_end(number, cell.status, peak_allocated_bytes=cell.allocated, peak_rss_bytes=rss))
        if cell.predicted:
            prediction = a_prediction(cell.spec, peak_bytes=cell.predicted, activation_peak_bytes=cell.activations)
            events.append(CellsPredicted(at=START, predictions=(prediction,)))
        if cell.recorded:
            content = msgspec.structs.replace(a_memory_report(), spec=cell.spec, peak_bytes=cell.recorded)
            events += [
                ReportStarted(at=START, report=number, kind="memory", spec=cell.spec),
                ReportFinished(at=START, report=number, status="ok", content=content),
            ]
    return merge([("one", state_of(events))])


def table_of(layout: str, *cells: Cell) -> Table:
    (table,) = layout_tables(results_of(*cells), layout)
    return table


def shown(table: Table, header: str) -> list[str]:
    """A column's cells."""
    place = [column.header for column in table.columns].index(header)
    return [row[place] for row in table.rows]


# Activation checkpointing


def test_the_best_k_for_memory_is_marked_with_its_neighbours() -> None:
    table = table_of(
        "checkpointing",
        k(4, 1.25, gb=(21, 20)), k(0, 1.0, gb=(70, 69)), k(1, 1.3, gb=(25, 24)), k(3, 1.26, gb=(20, 20.5)),
        k(2, 1.28, gb=(22, 21)), k(8, 1.22, gb=(30, 29)),
    )  # fmt: skip
    assert shown(table, "k") == ["0", "1", "2", "3", "4", "8"]
    assert shown(table, "mark") == ["", "", "‡", "†", "‡", ""]
    assert shown(table, "measured peak (GB)") == ["70.0", "25.0", "22.0", "20.0", "21.0", "30.0"]
    assert shown(table, "predicted peak (GB)") == ["69.0", "24.0", "21.0", "20.5", "20.0", "29.0"]
    assert shown(table, "time / k = 0") == ["1.00", "1.30", "1.28", "1.26", "1.25", "1.22"]
    assert "† least memory by measured peak" in table.footnotes
    assert "‡ one block more or less than k = 3" in table.footnotes
    assert not any("not run" in note for note in table.footnotes)
    assert any("sqrt(N) = 5.7" in note and "Chen et al. 2016" in note for note in table.footnotes)
    assert [record["mark"] for record in table.records] == ["", "", "neighbour", "best", "neighbour", ""]
    assert table.records[3]["measured peak (GB)"] == 20
    assert table.records[3]["step time (ms)"] == pytest.approx(1272.6)
    assert table.records[3]["time / k = 0"] == pytest.approx(1.26)


def test_activations_apart_tell_groups_of_one_peak_from_another() -> None:
    """The optimizer's peak hides the activations of small groups."""
    table = table_of(
        "checkpointing",
        k(0, 1.0, gb=(None, 183.4, None, 141.5)), k(1, 1.3, gb=(None, 69.1, None, 9.96)),
        k(2, 1.2, gb=(None, 69.1, None, 12.9)), k(4, 1.25, gb=(None, 74.0, 70, 20.9)),
    )  # fmt: skip
    assert shown(table, "predicted peak (GB)") == ["183", "69.1", "69.1", "74.0"]
    assert shown(table, "predicted activation peak (GB)") == ["142", "9.96", "12.9", "20.9"]
    assert shown(table, "recorded activation peak (GB)") == ["–", "–", "–", "0.118"]
    assert [record["mark"] for record in table.records] == ["", "neighbour, least activations", "best", ""]
    assert shown(table, "mark") == ["", "‡§", "†", ""]
    assert "§ least predicted activation peak, but not the least memory" in table.footnotes
    assert "† least memory by predicted peak, which k = 1 has too; of these the fastest" in table.footnotes
    alike = table_of("checkpointing", *(k(every, gb=(9, 9, None, 5)) for every in (0, 1)))
    assert "least activations" not in {record["mark"] for record in alike.records}


def test_results_and_pivots_have_the_activation_peak_beside_the_peak() -> None:
    results = results_of(k(0, gb=(90, 183, None, 141.5)), k(1, gb=(60, 69.1, None, 9.96)), k(2, gb=(60,)))
    table = results_table(results)
    assert shown(table, "peak allocated (GB)") == ["90.0", "60.0", "60.0"]
    assert shown(table, "activation peak (GB)") == ["142", "9.96", "n/a"]
    assert [record["activation_peak_bytes"] for record in table.records] == [141_500_000_000, 9_960_000_000, None]
    (said,) = (note for note in table.footnotes if note.startswith("activation peak: the most activations"))
    assert said.endswith("; predicted of 2 cells")
    found = pivot_table(pivot(results, ["checkpoint"], [], "activations"), results)
    assert [row[-1] for row in found.rows] == ["142 †", "9.96 †", "not known"]
    assert "† predicted" in found.footnotes
    runs = document_of(results[0].state).runs
    assert [(run.activation_peak_bytes, run.activation_peak_basis) for run in runs] == [
        (141_500_000_000, "predicted"), (9_960_000_000, "predicted"), (None, None),
    ]  # fmt: skip
    assert "activation peak (GB)" not in [column.header for column in results_table(results[:1]).columns]


def test_nested_groups_stand_beside_the_others() -> None:
    table = table_of(
        "checkpointing",
        k(0, 1.0, gb=(None, 183, None, 141)), k(1, 1.3, gb=(None, 80, None, 9.96)),
        k(1, 1.6, gb=(None, 69, None, 7.5), nesting="halves"), k(2, 1.25, gb=(None, 74, None, 12.9)),
        k(2, 1.5, gb=(None, 73, None, 11), nesting="halves"), k(0, 1.0, gb=(None, 183, None, 141), nesting="halves"),
    )  # fmt: skip
    rows = list(zip(shown(table, "k"), shown(table, "nesting"), shown(table, "mark"), strict=True))
    assert rows == [
        ("0", "off", "‡"), ("1", "off", ""), ("1", "halves", "†"), ("2", "off", ""), ("2", "halves", "‡"),
    ]  # fmt: skip
    assert shown(table, "predicted activation peak (GB)") == ["141", "9.96", "7.50", "12.9", "11.0"]
    assert shown(table, "time / k = 0") == ["1.00", "1.30", "1.60", "1.25", "1.50"]
    assert "‡ one block more or less than k = 1 nested" in table.footnotes
    assert any(note.startswith("nesting halves: of N = 32 blocks each half keeps") for note in table.footnotes)
    assert table.records[2]["nesting"] == "halves"
    only = table_of("checkpointing", *(k(every, gb=(9 - every,), nesting="halves") for every in (0, 1)))
    assert list(zip(shown(only, "k"), shown(only, "nesting"), strict=True)) == [("0", "off"), ("1", "halves")]
    flat = table_of("checkpointing", k(0, gb=(70,)), k(1, gb=(25,)))
    assert "nesting" not in [column.header for column in flat.columns]


def test_what_was_not_run_beside_the_best_is_named() -> None:
    table = table_of("checkpointing", k(0, gb=(70,)), k(1, gb=(25,)), k(2, gb=(20,)), k(4, gb=(22,)))
    assert shown(table, "mark") == ["", "‡", "†", ""]
    assert "not run: k = 3, beside the best" in table.footnotes
    assert shown(table, "predicted peak (GB)") == ["–"] * 4


def test_the_best_is_by_prediction_where_not_every_peak_was_measured() -> None:
    table = table_of("checkpointing", k(0, gb=(70, 60)), k(1, gb=(None, 25)), k(2, gb=(None, 30)))
    assert shown(table, "mark") == ["‡", "†", "‡"]
    assert "† least memory by predicted peak" in table.footnotes
    assert shown(table, "measured peak (GB)") == ["70.0", "–", "–"]


def test_a_cell_out_of_memory_is_a_row_and_no_baseline() -> None:
    table = table_of("checkpointing", k(0, status="oom", gb=(79, 130)), k(1, gb=(25, 24)), k(2, gb=(27, 26)))
    assert shown(table, "step time (ms)")[0] == "OOM"
    assert shown(table, "measured peak (GB)")[0] == "–"  # it is not known what it would have needed
    assert shown(table, "time / k = 0") == ["–", "–", "–"]
    assert shown(table, "mark") == ["‡", "†", "‡"]


def test_on_a_cpu_the_process_s_memory_stands_apart_from_that_of_tensors() -> None:
    cells = [k(every, device="cpu") for every in (0, 1)]
    table = table_of("checkpointing", *cells)
    assert shown(table, "measured peak (GB)") == ["–", "–"]
    assert shown(table, "peak RSS (GB)") == ["5.00", "5.00"]
    assert shown(table, "mark") == ["", ""]
    assert any(note.startswith("peak RSS: the whole process") for note in table.footnotes)
    assert any(note.startswith("the best k is not marked: peaks of tensors are not known") for note in table.footnotes)
    recorded = [k(every, gb=(None, None, 2 - every), device="cpu") for every in (0, 1)]
    table = table_of("checkpointing", *recorded)
    assert shown(table, "measured peak (GB)") == ["2.00", "1.00"]
    assert shown(table, "mark") == ["‡", "†"]


def test_small_models_are_told_in_mb() -> None:
    small = table_of("checkpointing", k(0, gb=(0.0091, 0.009)), k(2, gb=(0.0062, 0.006)))
    assert [column.header for column in small.columns][2:4] == ["predicted peak (MB)", "measured peak (MB)"]
    assert [row[2:4] for row in small.rows] == [("9.00", "9.10"), ("6.00", "6.20")]
    assert small.records[1]["measured peak (MB)"] == pytest.approx(6.2)


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


def test_the_optimizer_s_share_of_each_step() -> None:
    table = table_of(
        "optimizers", train("adamw-for-loop", gb=3), train("adamw-fused", gb=2), train("adamw-foreach", gb=4)
    )
    assert shown(table, "optimizer") == ["adamw-fused", "adamw-foreach", "adamw-for-loop"]
    assert shown(table, "optimizer (ms)") == ["11.0"] * 3
    assert shown(table, "share of step (%)") == ["10"] * 3
    assert shown(table, "zero_grad (%)") == ["2"] * 3
    assert shown(table, "peak allocated (GB)") == ["2.00", "4.00", "3.00"]
    (first, *_) = table.records
    assert first["step (ms)"] == pytest.approx(110)
    assert first["optimizer (ms)"] == pytest.approx(11)
    assert first["std (ms)"] == pytest.approx(1.4142, rel=1e-3)
    assert first["share of step (%)"] == pytest.approx(10)


def test_passes_without_an_optimizer_are_left_out_and_counted() -> None:
    forward = Cell(a_spec(pass_="forward"), (0.1, 0.2))
    table = table_of("optimizers", train("adamw"), forward)
    assert len(table.rows) == 1
    assert any("left out" in note and ": 1 " in note for note in table.footnotes)
    with pytest.raises(TableError, match=r"^layout optimizers: no cell with pass train-step"):
        layout_tables(results_of(forward), "optimizers")


def test_a_cell_that_failed_is_a_row_that_says_so() -> None:
    failed = Cell(a_spec(pass_="train-step", optimizer="adamw-foreach"), status="oom")
    table = table_of("optimizers", train("adamw-fused"), failed)
    assert shown(table, "step (ms)") == ["110", "OOM"]
    assert shown(table, "share of step (%)")[1] == "–"


@pytest.mark.parametrize("format_", FORMATS)
def test_both_are_rendered_in_every_format(format_: Any) -> None:
    for table in (
        table_of("checkpointing", k(0, gb=(2,)), k(1, gb=(1,))),
        table_of("optimizers", train("adamw"), train("adamw-fused")),
    ):
        assert render(table, format_).strip()


def test_peaks_that_are_alike_are_not_called_the_least_of_one() -> None:
    table = table_of("checkpointing", k(0, 1.0, gb=(8,)), k(1, 1.3, gb=(8,)), k(2, 1.2, gb=(9,)))
    assert shown(table, "mark") == ["†", "‡", ""]
    assert "† least memory by measured peak, which k = 1 has too; of these the fastest" in table.footnotes


def test_below_stands_of_which_size_and_vocabulary_all_rows_are() -> None:
    table = table_of("checkpointing", k(0, gb=(8,), vocab_size=500), k(1, gb=(7,), vocab_size=500))
    (said,) = (note for note in table.footnotes if note.startswith("every row: "))
    for words in ("size small", "pass forward+backward", "vocabulary 500", "sync each-step"):
        assert words in said
