"""The results of several sessions in one table, with chosen columns, units and digits."""

import json
from typing import Any

import msgspec
import pytest

from cs336_tui.config.flops import least_bytes, step_flops
from cs336_tui.events.environment import GpuSample, HostSample
from cs336_tui.events.events import DeviceSampled, StepsTimed
from cs336_tui.events.peaks import peak_key
from cs336_tui.export.subjects.results import TableError, results_table
from cs336_tui.export.subjects.results_columns import COLUMNS
from cs336_tui.export.writing.files import FORMATS
from cs336_tui.export.writing.formats import render
from cs336_tui.export.writing.tables import Table
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import Notation
from tests.export.grids import LAPTOP, SMALL, by, grid, merged, moved_session
from tests.made_peaks import made_peak
from tests.samples import ENVIRONMENT, a_spec, mixed_session, ranks_session, session_start, sized, state_of
from tests.session.made import Cell, events_of, results_of, session_of

STEADY = [0.1 + 0.0001 * (step % 3) for step in range(40)]
DRIFTING = [0.1 + 0.001 * step for step in range(40)]


def shown(table: Table) -> list[dict[str, str]]:
    return [dict(zip((column.header for column in table.columns), row, strict=True)) for row in table.rows]


def test_chosen_columns_in_the_chosen_order() -> None:
    table = results_table(merged(state_of(mixed_session())), columns=["pass", "mean", "size", "params", "reserved"])
    assert [column.header for column in table.columns] == [
        "pass", "mean (ms)", "size", "parameters", "peak reserved (GB)",
    ]  # fmt: skip
    assert table.rows[0] == ("forward+backward", "153.20", "small", "129M", "4.00")
    assert table.records[0] == {
        "pass": "forward+backward", "mean_s": pytest.approx(0.1532), "size": "small", "num_params": 128_634_624,
        "peak_reserved_bytes": 4_000_000_000,
    }  # fmt: skip


def test_every_column_can_be_asked_for() -> None:
    table = results_table(merged(state_of(mixed_session())), columns=list(COLUMNS))
    assert len(json.loads(render(table, "json"))["rows"][0]) == len(COLUMNS)


def test_an_unknown_column_is_named_with_what_is_allowed() -> None:
    with pytest.raises(TableError, match=r"^column speed: expected some of size, .*tokens"):
        results_table(merged(state_of(mixed_session())), columns=["size", "speed"])


def test_no_result_is_said() -> None:
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
    assert shown(table)[0][header] == mean
    assert f"times: {notation.symbol} per step" in "\n".join(table.footnotes)


def test_sessions_of_two_machines_are_told_apart() -> None:
    box = grid(by([SMALL], pass_=["forward"]), session="box")
    laptop = grid(by([SMALL], pass_=["forward"], device=["mps"]), session="laptop", environment=LAPTOP)
    table = results_table(merged(box, laptop))
    rows = shown(table)
    assert [row["session"] for row in rows] == ["box", "laptop"]
    assert "H100" in rows[0]["machine"]
    assert "laptop" in rows[1]["machine"]
    notes = "\n".join(table.footnotes)
    assert notes.count("std: sample standard deviation") == 1, "what both say is said once"
    assert "box: cuda:0: NVIDIA H100" in notes
    assert "laptop: mps: Some Laptop GPU" in notes
    assert "session" not in shown(results_table(merged(box)))[0]


def test_the_same_cell_twice_is_two_rows() -> None:
    state = grid(by([SMALL], pass_=["forward"]))
    assert [row["session"] for row in shown(results_table(merged(state, state)))] == ["sample", "sample (2)"]


def test_a_cell_that_ran_on_another_machine_is_marked() -> None:
    table = results_table(merged(moved_session()))
    assert [row["size"] for row in shown(table)] == ["small", "small †"]
    note = table.footnotes[0]
    assert note.startswith("† ")
    for words in ("torch 2.14.0 instead of 2.13.0", "NVIDIA A100 instead of NVIDIA H100"):
        assert words in note
    assert not any("†" in note for note in results_table(merged(state_of(mixed_session()))).footnotes)


PEAK = {peak_key(ENVIRONMENT, "cuda:0", "fp32"): made_peak(50e12, 2.5e12)}
LIMITS = ("flops", "sheet", "peak", "bandwidth")


def limits(device: str = "cuda:0", **spec: Any) -> Table:
    return results_table(results_of(Cell(a_spec(device=device, **spec), [0.1])), columns=LIMITS, peaks=PEAK.get)


def test_shares_of_both_peaks_can_be_asked_for() -> None:
    table = limits()
    flops_per_s = step_flops(a_spec()) / 0.1
    assert shown(table) == [{
        "achieved (TFLOP/s)": f"{flops_per_s / 1e12:.4g}", "% of data sheet": f"{flops_per_s / 67e12 * 100:.3g}",
        "% of measured peak": f"{flops_per_s / 50e12 * 100:.3g}", "bandwidth (GB/s)": "n/a",
    }]  # fmt: skip
    assert table.records[0]["share_of_measured_peak"] == pytest.approx(flops_per_s / 50e12)
    notes = "\n".join(table.footnotes)
    assert "data sheet: NVIDIA H100 Tensor Core GPU Datasheet" in notes
    assert "50 TFLOP/s and 2500 GB/s, measured" in notes


def test_a_peak_that_is_not_known_is_said_to_be_so_and_never_guessed() -> None:
    (row,) = shown(table := limits("cpu"))
    assert (row["% of data sheet"], row["% of measured peak"]) == ("unknown", "not measured")
    assert table.records[0]["share_of_sheet_peak"] is table.records[0]["share_of_measured_peak"] is None
    assert any("run cs336-tui peak" in note for note in table.footnotes)


def test_bandwidth_is_shown_where_it_is_the_bound() -> None:
    (row,) = shown(table := limits(pass_="forward", batch_size=1, context_length=1))
    assert row["bandwidth (GB/s)"].startswith("≥ ")
    assert table.records[0]["min_bytes_per_s"] == pytest.approx(
        least_bytes(a_spec(pass_="forward", batch_size=1, context_length=1)) / 0.1
    )


def test_verdict_interval_and_advice_are_columns() -> None:
    columns = ["verdict", "interval", "unobservable", "advice"]
    cells = (Cell(a_spec(), [0.1] * 3), Cell(a_spec(), [0.1] * 10), Cell(a_spec(), status="oom"))
    table = results_table(results_of(*cells), columns=columns)
    measured, more, without = shown(table)
    assert measured["verdict"] == "too-few-steps"
    assert (measured["95 % of mean (± %)"], more["95 % of mean (± %)"]) == ("n/a", "0")
    assert "drifting" in measured["not observable"]
    assert measured["warm-up advice"]
    assert set(without.values()) == {"n/a"}
    assert table.records[2] == dict.fromkeys(table.records[2])
    assert any("too-few-steps: " in note for note in table.footnotes)


def test_the_interval_stands_beside_the_verdict() -> None:
    headers = [column.header for column in results_table(merged(state_of(mixed_session()))).columns]
    assert headers[headers.index("verdict") - 1] == "95 % of mean (± %)"


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
    (row,) = shown(table)
    assert (row["energy (J/step)"], row["tokens/J"]) == ("50", "10.2")
    assert table.records[0]["joules_per_step"] == pytest.approx(50)
    assert any(note.startswith("energy: mean power") for note in table.footnotes)


def test_energy_that_is_not_known_is_no_column_and_says_why_when_asked_for() -> None:
    results = results_of(Cell(a_spec(device="cpu"), [0.1]))
    assert "energy (J/step)" not in shown(results_table(results))[0]
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
    assert [row["repeat"] for row in shown(results_table(merged(grid(specs, repeats=(1, 2)))))] == ["1", "2"]


def test_cells_of_several_ranks_show_ranks_sharing_and_skew_and_say_what_a_step_is() -> None:
    table = results_table(merged(state_of(ranks_session(4))))
    one, four = shown(table)
    assert (one["ranks"], one["skew (ms)"]) == ("1", "n/a")
    assert (four["ranks"], four["parallel"], four["skew (ms)"]) == ("4", "ddp", "6.3")
    assert table.records[1]["skew_s"] == pytest.approx((3 + 3 + 13) / 3 * 1e-3)
    assert four["peak RSS (GB)"] == "1.03"
    notes = "\n".join(table.footnotes)
    for said in ("its slowest rank's", "not a sum", "on its slowest rank minus that on its fastest"):
        assert said in notes


def test_cells_of_one_rank_say_nothing_of_ranks() -> None:
    table = results_table(merged(state_of(mixed_session())))
    assert "skew (ms)" not in [column.header for column in table.columns]
    assert "rank" not in "\n".join(table.footnotes)


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


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("field", ADDED)
def test_the_std_stays_when_a_column_is_added(field: str, format_: str) -> None:
    cells = [
        Cell(a_spec(**sized(size), pass_=pass_, precision=precision, context_length=context, measure_steps=40), times)
        for size in ("small", "medium")
        for pass_ in ("forward", "train-step")
        for precision in ("fp32", "bf16-mixed")
        for context, times in ((128, STEADY), (1024, DRIFTING))
    ]
    cells = [
        each._replace(spec=msgspec.structs.replace(each.spec, **{field: value}))
        for each in cells
        for value in ADDED[field]
    ]
    table = results_table(results_of(*cells))
    assert "std_s" in [column.key for column in table.columns]
    text = render(table, format_)
    head = text.partition("left out to fit the page")[0]
    assert ("std_s" if format_ == "csv" else "std (ms)") in head
    assert "drifting" in text
