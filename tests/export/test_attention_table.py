"""Table of attention alone: methods side by side, measured beside expected memory, no cell left out."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.merge import Result
from cs336_tui.config.spec import CellSpec
from cs336_tui.export.subjects.results import TableError
from cs336_tui.export.writeups import layout_tables
from cs336_tui.export.writing.formats import render_all
from tests.attention_cells import attention_spec
from tests.export.grids import by, grid, merged, with_in_force
from tests.export.keeping import csv_rows, kept
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

    def times(spec: CellSpec) -> list[float]:
        time_s = MS[spec.method, spec.compile] * PASSES[spec.pass_] * spec.context_length / 256 / 1e3
        return [time_s * 0.99, time_s * 1.01]

    def ends(spec: CellSpec) -> dict[str, int | None]:
        return {"before_backward_bytes": held if "backward" in spec.pass_ else None}

    return merged(grid(cells, times=times, oom=oom, ends=ends))


def test_methods_stand_side_by_side_and_memory_beside_what_was_accounted_for(snapshot: SnapshotAssertion) -> None:
    times, memory = layout_tables(ran(specs()), "attention")
    # 6 tensors of 8 x 256 x 16 and weights of 8 x 256 x 256; 5 tensors and the logsumexp of 8 x 256; 4 bytes each
    naive, fused = (6 * 8 * 256 * 16 + 8 * 256**2) * 4 / MIB, (5 * 8 * 256 * 16 + 8 * 256) * 4 / MIB
    found = memory.records[0]
    assert (found["naive: accounted (MiB)"], found["sdpa: accounted (MiB)"]) == pytest.approx((naive, fused))
    assert kept(times, memory) == snapshot


def test_a_cell_out_of_memory_says_so_and_what_was_not_run_or_not_seen_is_a_dash(snapshot: SnapshotAssertion) -> None:
    cells = specs(d_model=[16], attention=["naive"], compile=["off"])
    times, memory = layout_tables(ran(cells, oom=[2, 3]), "attention")
    accounted = (6 * 8 * 1024 * 16 + 8 * 1024**2) * 4 / MIB
    assert memory.rows[1] == ("16", "1024", "OOM", f"{accounted:.1f}"), "what it would have held is known all the same"
    assert times.records[1]["naive: forward (ms)"] is None
    both = specs(d_model=[16], compile=["off"])
    without = [cell for cell in both if (cell.attention, cell.context_length) != ("sdpa", 1024)]
    assert kept(times, memory, *layout_tables(ran(without, held=None), "attention")) == snapshot


def test_other_settings_have_tables_of_their_own() -> None:
    cells = specs(d_model=[16], compile=["off"], causal=[True, False], precision=["fp32", "bf16"])
    tables = layout_tables(ran(cells), "attention")
    assert len(tables) == 8
    assert len({table.caption for table in tables}) == 8
    assert len({table.label for table in tables}) == 8
    masks = [any("(mask)" in note for note in table.footnotes) for table in tables if "memory" in table.caption]
    assert masks == [True, True, False, False]
    rows = csv_rows(render_all([t for t in tables if "time" in t.caption], "csv"))
    assert len({tuple(row.values()) for row in rows}) == 8, "no two rows look alike"


def test_a_users_function_has_columns_and_no_accounting_and_without_a_backward_there_is_no_memory(
    snapshot: SnapshotAssertion,
) -> None:
    MS["theirs:attend", "off"] = 1.0
    theirs = layout_tables(ran(specs(attention=["naive", "theirs:attend"], compile=["off"])), "attention")
    assert kept(*theirs, *layout_tables(ran(specs(pass_=["forward"])), "attention")) == snapshot


def test_language_models_are_left_out_and_alone_refused() -> None:
    models = by(pass_=["forward"])
    both = (*ran(specs(compile=["off"])), *merged(grid(models)))
    times, _ = layout_tables(both, "attention")
    assert any(note.startswith("left out") and f"{len(models)} cells" in note for note in times.footnotes)
    with pytest.raises(TableError, match="layout attention: no cell of attention alone"):
        layout_tables(merged(grid(models)), "attention")


def test_where_torch_chose_the_kernel_that_is_not_fused_that_one_is_accounted_for() -> None:
    cells = specs(d_model=[16], context_length=[256], attention=["sdpa"], compile=["off"], pass_=["backward"])
    events = [*session_start(cells), *cell_start(0), *steps(0, (), (0.1, 0.1)), cell_end(0)]
    chosen = with_in_force(events, attention="sdpa: math (scores materialised)")
    _, memory = layout_tables(merged(state_of(chosen)), "attention")
    assert memory.records[0]["sdpa: accounted (MiB)"] == (7 * 8 * 256 * 16 + 8 * 256**2) * 4 / MIB


def test_norms_stand_side_by_side_with_their_bandwidth(snapshot: SnapshotAssertion) -> None:
    """Two widths of 48 rows; 2 ms a forward as written, 1 ms compiled: 2 tensors of 48 x 1,000 floats in 1 ms."""
    norms = product((1000, 2000), ("rmsnorm", "layernorm"), ("off", "default"), ("forward", "forward+backward"))
    cells = [
        attention_spec(workload="norm", device="cuda:0", d_model=width, norm=norm, compile=mode, pass_=pass_)
        for width, norm, mode, pass_ in norms
    ]

    def both(spec: CellSpec) -> list[float]:
        return [(1e-3 if spec.compile == "default" else 2e-3) * (3 if "backward" in spec.pass_ else 1)] * 2

    times, bandwidth, memory = layout_tables(merged(grid(cells, times=both, ends=lambda _: {})), "norm")
    one = bandwidth.records[0]
    assert one["rmsnorm, compiled: forward (GB/s)"] == pytest.approx(2 * 48 * 1000 * 4 / 1e-3 / 1e9)
    assert one["rmsnorm, compiled: forward+backward (GB/s)"] == pytest.approx(4 * 48 * 1000 * 4 / 3e-3 / 1e9)
    assert kept(times, bandwidth, memory) == snapshot
