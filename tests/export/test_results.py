"""The results of several sessions in one table, with chosen columns, units and digits."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.config.flops import least_bytes, step_flops
from cs336_tui.events import events as ev
from cs336_tui.events.environment import GpuSample, HostSample
from cs336_tui.events.events import DeviceSampled, StepsTimed
from cs336_tui.events.peaks import peak_key
from cs336_tui.export.subjects.results import TableError, results_table
from cs336_tui.export.subjects.results_columns import COLUMNS
from cs336_tui.export.writeups import layout_tables
from cs336_tui.export.writing.files import FORMATS
from cs336_tui.export.writing.formats import render
from cs336_tui.export.writing.tables import Table
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import Notation
from tests.export.grids import LAPTOP, SMALL, by, grid, merged, moved_session
from tests.export.keeping import by_header, kept
from tests.made_peaks import made_peak
from tests.samples import (
    ENVIRONMENT,
    a_spec,
    cell_end,
    mixed_session,
    ranks_session,
    session_start,
    sized,
    state_of,
    steps,
)
from tests.session.made import Cell, events_of, results_of, session_of

STEADY = [0.1 + 0.0001 * (step % 3) for step in range(40)]
DRIFTING = [0.1 + 0.001 * step for step in range(40)]


def test_chosen_columns_in_the_chosen_order(snapshot: SnapshotAssertion) -> None:
    results = merged(state_of(mixed_session()))
    table = results_table(results, columns=["pass", "mean", "size", "params", "reserved"])
    assert kept(table, results_table(results), results_table(results, columns=list(COLUMNS))) == snapshot


def test_an_unknown_column_is_named_with_what_is_allowed_and_no_result_is_said() -> None:
    with pytest.raises(TableError, match=r"^column speed: expected some of size, .*tokens"):
        results_table(merged(state_of(mixed_session())), columns=["size", "speed"])
    with pytest.raises(TableError, match="no cell has a result yet"):
        results_table(merged(state_of(session_start([a_spec()]))))


@pytest.mark.parametrize(
    ("notation", "header", "mean"),
    [
        (Notation("s"), "mean (s)", "0.15320"),
        (Notation("us"), "mean (µs)", "153200"),
        (Notation("ms", 1), "mean (ms)", "153.2"),
        (Notation("s", 2), "mean (s)", "0.15"),
    ],
)
def test_times_are_written_in_the_unit_and_digits_asked_for(notation: Notation, header: str, mean: str) -> None:
    table = results_table(merged(state_of(mixed_session())), notation=notation)
    assert by_header(table)[0][header] == mean
    assert f"times: {notation.symbol} per step" in "\n".join(table.footnotes)


def test_sessions_of_two_machines_are_told_apart() -> None:
    box = grid(by([SMALL], pass_=["forward"]), session="box")
    laptop = grid(by([SMALL], pass_=["forward"], device=["mps"]), session="laptop", environment=LAPTOP)
    table = results_table(merged(box, laptop))
    rows = by_header(table)
    assert [row["session"] for row in rows] == ["box", "laptop"]
    assert "H100" in rows[0]["machine"]
    assert "laptop" in rows[1]["machine"]
    notes = "\n".join(table.footnotes)
    assert notes.count("std: sample standard deviation") == 1, "what both say is said once"
    assert "box: cuda:0: NVIDIA H100" in notes
    assert "laptop: mps: Some Laptop GPU" in notes
    assert "session" not in by_header(results_table(merged(box)))[0]


def test_the_same_cell_twice_is_two_rows() -> None:
    state = grid(by([SMALL], pass_=["forward"]))
    assert [row["session"] for row in by_header(results_table(merged(state, state)))] == ["sample", "sample (2)"]


def test_a_cell_that_ran_on_another_machine_is_marked() -> None:
    table = results_table(merged(moved_session()))
    assert [row["size"] for row in by_header(table)] == ["small", "small †"]
    note = table.footnotes[0]
    assert note.startswith("† ")
    for words in ("torch 2.14.0 instead of 2.13.0", "NVIDIA A100 instead of NVIDIA H100"):
        assert words in note
    assert not any("†" in note for note in results_table(merged(state_of(mixed_session()))).footnotes)


PEAK = {peak_key(ENVIRONMENT, "cuda:0", "fp32"): made_peak(50e12, 2.5e12)}
LIMITS = ("flops", "sheet", "peak", "bandwidth")


def limits(device: str = "cuda:0", **spec: Any) -> Table:
    return results_table(results_of(Cell(a_spec(device=device, **spec), [0.1])), columns=LIMITS, peaks=PEAK.get)


def test_shares_of_both_peaks_can_be_asked_for_and_bandwidth_where_it_is_the_bound(snapshot: SnapshotAssertion) -> None:
    table, narrow = limits(), limits(pass_="forward", batch_size=1, context_length=1)
    assert table.records[0]["share_of_measured_peak"] == pytest.approx(step_flops(a_spec()) / 0.1 / 50e12)
    least = least_bytes(a_spec(pass_="forward", batch_size=1, context_length=1))
    assert narrow.records[0]["min_bytes_per_s"] == pytest.approx(least / 0.1)
    assert kept(table, narrow) == snapshot


def test_a_peak_that_is_not_known_is_said_to_be_so_and_never_guessed() -> None:
    (row,) = by_header(table := limits("cpu"))
    assert (row["% of data sheet"], row["% of measured peak"]) == ("unknown", "not measured")
    assert table.records[0]["share_of_sheet_peak"] is table.records[0]["share_of_measured_peak"] is None
    assert any("run cs336-tui peak" in note for note in table.footnotes)


def test_verdict_interval_and_advice_are_columns(snapshot: SnapshotAssertion) -> None:
    columns = ["verdict", "interval", "unobservable", "advice"]
    cells = (Cell(a_spec(), [0.1] * 3), Cell(a_spec(), [0.1] * 10), Cell(a_spec(), status="oom"))
    table = results_table(results_of(*cells), columns=columns)
    assert table.records[2] == dict.fromkeys(table.records[2])
    assert kept(table) == snapshot


def with_energy() -> SessionState:
    """A cell of 0.1 s a step, at 500 W by the counter."""
    cell = Cell(a_spec(measure_steps=20), [0.1] * 20)
    state = SessionState()
    measured = 0
    for event in events_of(cell):
        state.apply(event)
        if isinstance(event, StepsTimed):
            measured += 1
            gpu = GpuSample(uuid="GPU-0", energy_j=1000 + 50.0 * measured)
            state.apply(DeviceSampled(at=event.at, host=HostSample(), gpu=gpu))
    return state


def test_energy_is_shown_where_it_is_known() -> None:
    table = results_table(merged(with_energy()))
    (row,) = by_header(table)
    assert (row["energy (J/step)"], row["tokens/J"]) == ("50", "10.2")
    assert table.records[0]["joules_per_step"] == pytest.approx(50)
    assert any(note.startswith("energy: mean power") for note in table.footnotes)


def test_energy_that_is_not_known_is_no_column_and_says_why_when_asked_for() -> None:
    results = results_of(Cell(a_spec(device="cpu"), [0.1]))
    assert "energy (J/step)" not in by_header(results_table(results))[0]
    table = results_table(results, columns=["energy"])
    assert table.rows == (("n/a",),)
    assert any(note.startswith("energy unknown on cpu: ") for note in table.footnotes)


def test_every_reason_for_an_unknown_energy_is_given_with_its_count() -> None:
    turns, alone = a_spec(), a_spec(seed=2)
    results = merged(session_of(Cell(turns, [0.1]), Cell(alone, [0.1]), Cell(a_spec(seed=3), [0.1])), with_energy())
    results[0].cell.in_turns = True
    said = [note for note in results_table(results, columns=["energy"]).footnotes if note.startswith("energy unknown")]
    assert [note.rpartition(", of ")[2] for note in said] == ["2 of 3 such cells", "1 of 3 such cells"]
    assert "in turns" in said[1]


def test_runs_of_one_spec_are_told_apart() -> None:
    specs = by([SMALL], pass_=["forward"]) * 2
    assert [row["repeat"] for row in by_header(results_table(merged(grid(specs, repeats=(1, 2)))))] == ["1", "2"]


def test_cells_of_several_ranks_show_ranks_sharing_and_skew_and_say_what_a_step_is(snapshot: SnapshotAssertion) -> None:
    table = results_table(merged(state_of(ranks_session(4))))
    assert table.records[1]["skew_s"] == pytest.approx((3 + 3 + 13) / 3 * 1e-3)
    assert kept(table) == snapshot


ADDED: dict[str, tuple[object, object]] = {
    "attention": ("naive", "sdpa"),
    "batch_size": (4, 8),
    "bias": ("off", "on"),
    "checkpoint": (0, 2),
    "compile": ("off", "reduce-overhead"),
    "dropout": (0.0, 0.1),
    "edition": ("2025", "2026"),
    "model": ("reference", "my_models.transformer:Transformer"),
    "optimizer": ("adamw", "adamw-foreach"),
    "parallel": ("none", "ddp"),
    "threads": (None, 1),
    "warmup_steps": (2, 5),
}


@pytest.mark.parametrize("field", ADDED)
def test_the_std_stays_when_a_column_is_added(field: str) -> None:
    cells = [
        Cell(
            a_spec(**sized(size) | {"pass_": pass_, "context_length": context, "measure_steps": 40, field: value}),
            times,
        )
        for size in ("small", "medium")
        for pass_ in ("forward", "train-step")
        for context, times in ((128, STEADY), (1024, DRIFTING))
        for value in ADDED[field]
    ]
    table = results_table(results_of(*cells))
    assert "std_s" in [column.key for column in table.columns]
    for format_ in FORMATS:
        text = render(table, format_)
        head = text.partition("left out to fit the page")[0]
        assert ("std_s" if format_ == "csv" else "std (ms)") in head, format_
        assert "drifting" in text, format_


def ran_on(*hosts: str, **other: str) -> SessionState:
    """A session of the same cell on each of these hosts; the last one differs from the first in `other`."""
    state = SessionState()
    specs = (a_spec(),) * len(hosts)
    for event in session_start(specs):
        state.apply(event)
    for cell, host in enumerate(hosts):
        state.apply(ev.JobSubmitted(at=1.0, job=str(cell), launcher="slurm", id=f"{host}:s/{cell}", cells=(cell,)))
        more = other if cell == len(hosts) - 1 else {}
        machine = msgspec.structs.replace(ENVIRONMENT, host=host, **more)
        state.apply(ev.EnvironmentRead(at=2.0, environment=machine))
        state.apply(ev.CellStarted(at=3.0, cell=cell, job=str(cell)))
        for event in (*steps(cell, (), [0.1] * 12), cell_end(cell)):
            state.apply(event)
    return state


def test_each_row_says_which_machine_it_is_from() -> None:
    table = results_table(merged(ran_on("gpu1", "gpu2")))
    assert [text.rpartition(" · ")[2] for text in table.texts("machine")] == ["gpu1", "gpu2"]
    assert not any("change of the machine" in note or "differs" in note for note in table.footnotes)
    one = results_table(merged(ran_on("gpu1", "gpu1")))
    assert "machine" not in [column.key for column in one.columns]


def test_a_machine_that_differs_in_more_than_its_name_is_marked() -> None:
    table = results_table(merged(ran_on("gpu1", "gpu2", torch="2.0")))
    assert f"† ran on a different machine: torch 2.0 instead of {ENVIRONMENT.torch}" in table.footnotes


def test_the_layout_of_devices_has_the_machines_side_by_side() -> None:
    (table,) = layout_tables(merged(ran_on("gpu1", "gpu2")), "devices")
    groups = {column.group.rpartition(" · ")[2].rstrip(")") for column in table.columns if column.group}
    assert groups == {"gpu1", "gpu2"}
