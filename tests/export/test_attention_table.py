"""Table of attention alone: methods side by side, measured beside expected memory, no cell left out."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from itertools import product
from typing import Any

import msgspec
import pytest

from cs336_tui.analysis.merge import Result
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import ModelBuilt
from cs336_tui.export.subjects.results import TableError
from cs336_tui.export.writeups import layout_tables
from cs336_tui.export.writing.formats import render, render_all
from cs336_tui.export.writing.tables import Table
from tests.attention_cells import attention_spec
from tests.export.grids import by, grid, merged
from tests.samples import cell_end, cell_start, session_start, state_of, steps

MIB = 2**20
MS = {("naive", "off"): 8.0, ("naive", "default"): 4.0, ("sdpa", "off"): 2.0, ("sdpa", "default"): 2.0}
PASSES = {"forward": 1.0, "backward": 2.0}


def specs(**axes: Iterable[Any]) -> list[CellSpec]:
    """The product of these, over two widths, two lengths, two passes and four methods where they are not given."""
    usual: dict[str, Iterable[Any]] = {
        "d_model": (16, 64),
        "context_length": (256, 1024),
        "attention": ("naive", "sdpa"),
        "compile": ("off", "default"),
        "pass_": ("forward", "backward"),
    }
    axes = usual | axes
    return [
        attention_spec(**{"device": "cuda:0", "batch_size": 8, "causal": False} | dict(zip(axes, values, strict=True)))
        for values in product(*axes.values())
    ]


def ran(cells: list[CellSpec], *, oom: Iterable[int] = (), held: int | None = 3 * MIB) -> tuple[Result, ...]:
    """Cells as in a log; those with a backward report the memory they held."""
    events = session_start(cells)
    for number, spec in enumerate(cells):
        events += cell_start(number)
        if number in oom:
            events.append(cell_end(number, "oom", error="CUDA out of memory", stage="warm-up", step=0))
            continue
        time_s = MS[spec.attention, spec.compile] * PASSES[spec.pass_] * spec.context_length / 256 / 1e3
        events += steps(number, (), [time_s * 0.99, time_s * 1.01])
        told = held if spec.pass_ == "backward" else None
        events.append(cell_end(number, before_backward_bytes=told))
    return merged(state_of(events))


def lines(table: Table) -> list[str]:
    return [line for line in render(table, "markdown").splitlines() if line.startswith("|")]


def test_methods_stand_side_by_side_with_how_much_faster_they_are() -> None:
    times, _ = layout_tables(ran(specs(d_model=[16])), "attention")
    assert [column.header for column in times.columns] == [
        "d", "sequence length", "naive: forward (ms)", "naive: backward (ms)",
        "naive, compiled: forward (ms)", "naive, compiled: backward (ms)",
        "sdpa: forward (ms)", "sdpa: backward (ms)",
        "sdpa, compiled: forward (ms)", "sdpa, compiled: backward (ms)",
    ]  # fmt: skip
    assert times.rows[0] == (
        "16", "256", "8.00", "16.00", "4.000 (2.00×)", "8.00 (2.00×)", "2.000 (4.00×)", "4.000 (4.00×)",
        "2.000 (4.00×)", "4.000 (4.00×)",
    )  # fmt: skip
    assert [row[:2] for row in times.rows] == [("16", "256"), ("16", "1024")]
    assert times.records[1]["sdpa: backward (ms)"] == pytest.approx(16)


def test_memory_stands_beside_what_was_accounted_for() -> None:
    _, memory = layout_tables(ran(specs(compile=["off"])), "attention")
    assert [column.header for column in memory.columns] == [
        "d", "sequence length", "naive: held (MiB)", "naive: accounted (MiB)", "sdpa: held (MiB)",
        "sdpa: accounted (MiB)",
    ]  # fmt: skip
    # 6 tensors of 8 x 256 x 16 and weights of 8 x 256 x 256; 5 tensors and the logsumexp of 8 x 256; 4 bytes each
    naive, fused = (6 * 8 * 256 * 16 + 8 * 256**2) * 4 / MIB, (5 * 8 * 256 * 16 + 8 * 256) * 4 / MIB
    assert memory.rows[0] == ("16", "256", "3.00", f"{naive:.2f}", "3.00", f"{fused:.3f}")
    assert memory.records[0]["naive: accounted (MiB)"] == pytest.approx(naive)
    notes = "\n".join(memory.footnotes)
    assert "accounted, naive: 3 B T K x 4 bytes (q, k, v)" in notes
    assert "torch's CUDA allocator counts" in notes


def test_a_cell_that_ran_out_of_memory_says_so_where_its_numbers_would_be() -> None:
    cells = specs(d_model=[16], attention=["naive"], compile=["off"])
    times, memory = layout_tables(ran(cells, oom=[2, 3]), "attention")
    assert times.rows[1] == ("16", "1024", "OOM", "OOM")
    accounted = (6 * 8 * 1024 * 16 + 8 * 1024**2) * 4 / MIB
    assert memory.rows[1] == ("16", "1024", "OOM", f"{accounted:.1f}"), "what it would have held is known all the same"
    assert times.records[1]["naive: forward (ms)"] is None


def test_what_was_not_run_or_not_seen_is_a_dash() -> None:
    cells = [*specs(d_model=[16], compile=["off"])]
    without = [cell for cell in cells if (cell.attention, cell.context_length) != ("sdpa", 1024)]
    times, memory = layout_tables(ran(without, held=None), "attention")
    assert times.rows[1][-2:] == ("–", "–")
    assert memory.rows[1][-2:] == ("–", "–")
    assert memory.rows[0][2] == "–"


def test_other_settings_have_tables_of_their_own() -> None:
    cells = specs(d_model=[16], compile=["off"], causal=[True, False], precision=["fp32", "bf16"])
    tables = layout_tables(ran(cells), "attention")
    assert len(tables) == 8
    assert len({table.caption for table in tables}) == 8
    assert len({table.label for table in tables}) == 8
    masks = [any("(mask)" in note for note in table.footnotes) for table in tables if "memory" in table.caption]
    assert masks == [True, True, False, False]
    rows = list(csv.DictReader(io.StringIO(render_all([t for t in tables if "time" in t.caption], "csv"))))
    assert len({tuple(row.values()) for row in rows}) == 8, "no two rows look alike"


def test_without_a_backward_there_is_no_table_of_memory() -> None:
    (table,) = layout_tables(ran(specs(pass_=["forward"])), "attention")
    assert "time" in table.caption


def test_a_users_function_has_columns_and_no_accounting() -> None:
    MS["theirs:attend", "off"] = 1.0
    _, memory = layout_tables(ran(specs(attention=["naive", "theirs:attend"], compile=["off"])), "attention")
    assert [column.header for column in memory.columns][2:] == [
        "naive: held (MiB)", "naive: accounted (MiB)", "theirs:attend: held (MiB)",
    ]  # fmt: skip


def test_language_models_are_left_out_and_alone_refused() -> None:
    models = by(pass_=["forward"])
    both = (*ran(specs(compile=["off"])), *merged(grid(models)))
    times, _ = layout_tables(both, "attention")
    assert any(note.startswith("left out") and f"{len(models)} cells" in note for note in times.footnotes)
    with pytest.raises(TableError, match="layout attention: no cell of attention alone"):
        layout_tables(merged(grid(models)), "attention")


def test_where_torch_chose_the_kernel_that_is_not_fused_that_one_is_accounted_for() -> None:
    cells = specs(d_model=[16], context_length=[256], attention=["sdpa"], compile=["off"], pass_=["backward"])
    events = [
        msgspec.structs.replace(
            event, in_force=msgspec.structs.replace(event.in_force, attention="sdpa: math (scores materialised)")
        )
        if isinstance(event, ModelBuilt)
        else event
        for event in [*session_start(cells), *cell_start(0), *steps(0, (), (0.1, 0.1)), cell_end(0)]
    ]
    _, memory = layout_tables(merged(state_of(events)), "attention")
    assert memory.records[0]["sdpa: accounted (MiB)"] == (7 * 8 * 256 * 16 + 8 * 256**2) * 4 / MIB


def test_norms_stand_side_by_side_with_their_bandwidth() -> None:
    """Two widths of 48 rows; 2 ms a forward as written, 1 ms compiled: 2 tensors of 48 x 1,000 floats in 1 ms."""
    norms = product((1000, 2000), ("rmsnorm", "layernorm"), ("off", "default"), ("forward", "forward+backward"))
    cells = [
        attention_spec(workload="norm", device="cuda:0", d_model=width, norm=norm, compile=mode, pass_=pass_)
        for width, norm, mode, pass_ in norms
    ]
    events = session_start(cells)
    for number, spec in enumerate(cells):
        time_s = (1e-3 if spec.compile == "default" else 2e-3) * (3 if "backward" in spec.pass_ else 1)
        events += [*cell_start(number), *steps(number, (), [time_s, time_s]), cell_end(number)]
    times, bandwidth, memory = layout_tables(merged(state_of(events)), "norm")
    assert [table.caption for table in (times, bandwidth, memory)] == [
        "Norm alone, mean step time in ms", "Norm alone, bandwidth in GB/s", "Norm alone, memory before backward",
    ]  # fmt: skip
    assert [row[:4] for row in times.rows] == [("1000", "48", "2.000", "6.000"), ("2000", "48", "2.000", "6.000")]
    assert times.rows[0][4:6] == ("1.000 (2.00×)", "3.000 (2.00×)")
    assert [column.header for column in bandwidth.columns][-2:] == [
        "layernorm, compiled: forward (GB/s)", "layernorm, compiled: forward+backward (GB/s)",
    ]  # fmt: skip
    one = bandwidth.records[0]
    assert one["rmsnorm, compiled: forward (GB/s)"] == pytest.approx(2 * 48 * 1000 * 4 / 1e-3 / 1e9)
    assert one["rmsnorm, compiled: forward+backward (GB/s)"] == pytest.approx(4 * 48 * 1000 * 4 / 3e-3 / 1e9)
    assert not any("accounted" in column.header for column in memory.columns)
