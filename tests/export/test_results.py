"""The results of several sessions in one table, with chosen columns, units and digits."""

from typing import Any

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.merge import Result
from cs336_tui.config.flops import least_bytes, step_flops
from cs336_tui.events import events as ev
from cs336_tui.events.environment import GpuSample, HostSample
from cs336_tui.events.peaks import peak_key
from cs336_tui.export.subjects.results import TableError, results_table
from cs336_tui.export.subjects.results_columns import COLUMNS
from cs336_tui.export.writeups import layout_tables
from cs336_tui.export.writing.files import FORMATS
from cs336_tui.export.writing.formats import render
from cs336_tui.export.writing.tables import Table
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import Notation
from tests.export.grids import SMALL, by, grid, merged, moved_session
from tests.export.keeping import by_header, kept
from tests.made_peaks import made_peak
from tests.samples import (
    ENVIRONMENT,
    LAPTOP,
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
    with pytest.raises(
        TableError, match=r"^column zzz: expected one of size, .* more; `cs336-tui export --help` lists them$"
    ):
        results_table(merged(state_of(mixed_session())), columns=["size", "zzz"])
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


def test_verdict_interval_and_advice_are_columns(snapshot: SnapshotAssertion) -> None:
    columns = ["verdict", "interval", "unobservable", "advice"]
    cells = (Cell(a_spec(), [0.1] * 3), Cell(a_spec(), [0.1] * 10), Cell(a_spec(), status="oom"))
    table = results_table(results_of(*cells), columns=columns)
    assert table.records[2] == dict.fromkeys(table.records[2])
    assert kept(table) == snapshot


def with_energy() -> SessionState:
    """A cell of 0.1 s a step, at 500 W by the counter."""
    events: list[ev.Event] = []
    for event in events_of(Cell(a_spec(measure_steps=20), [0.1] * 20)):
        events.append(event)
        if isinstance(event, ev.StepsTimed):
            measured = sum(isinstance(each, ev.StepsTimed) for each in events)
            gpu = GpuSample(uuid="GPU-0", energy_j=1000 + 50.0 * measured)
            events.append(ev.DeviceSampled(at=event.at, host=HostSample(), gpu=gpu))
    return state_of(events)


def with_and_without_energy() -> tuple[Result, ...]:
    """Two cells of which no energy is known, one as it ran in turns, and one with it."""
    turns, alone = a_spec(), a_spec(seed=2)
    results = merged(session_of(Cell(turns, [0.1]), Cell(alone, [0.1]), Cell(a_spec(seed=3), [0.1])), with_energy())
    results[0].cell.in_turns = True
    return results


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
    events = session_start((a_spec(),) * len(hosts))
    for cell, host in enumerate(hosts):
        more = other if cell == len(hosts) - 1 else {}
        machine = msgspec.structs.replace(ENVIRONMENT, host=host, **more)
        events += [
            ev.JobSubmitted(at=1.0, job=str(cell), launcher="slurm", id=f"{host}:s/{cell}", cells=(cell,)),
            ev.EnvironmentRead(at=2.0, environment=machine),
            ev.CellStarted(at=3.0, cell=cell, job=str(cell)),
            *steps(cell, (), [0.1] * 12),
            cell_end(cell),
        ]
    return state_of(events)


BOX = grid(by([SMALL], pass_=["forward"]), session="box")


ON_LAPTOP = grid(by([SMALL], pass_=["forward"], device=["mps"]), session="laptop", environment=LAPTOP)


TABLES: dict[str, Table] = {
    "sessions of two machines": results_table(merged(BOX, ON_LAPTOP)),
    "one session is not named": results_table(merged(BOX)),
    "each row says which machine it is from": results_table(merged(ran_on("gpu1", "gpu2"))),
    "but not on one machine": results_table(merged(ran_on("gpu1", "gpu1"))),
    "a machine that differs in more than its name is marked": results_table(merged(ran_on("gpu1", "gpu2", torch="2"))),
    "devices of several machines side by side": layout_tables(merged(ran_on("gpu1", "gpu2")), "devices")[0],
    "the same cell twice": results_table(merged(BOX, BOX)),
    "runs of one spec": results_table(merged(grid(by([SMALL], pass_=["forward"]) * 2, repeats=(1, 2)))),
    "a cell that ran on another machine": results_table(merged(moved_session())),
    "several ranks: the skew is the mean of 3, 3 and 13 ms": results_table(merged(state_of(ranks_session(4)))),
    "a peak that is not known is never guessed": limits("cpu"),
    "energy that is known": results_table(merged(with_energy())),
    "energy that is not known is no column": results_table(results_of(Cell(a_spec(device="cpu"), [0.1]))),
    "energy that is not known": results_table(results_of(Cell(a_spec(device="cpu"), [0.1])), columns=["energy"]),
    "every reason for an unknown energy, with its count": results_table(with_and_without_energy(), columns=["energy"]),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables_of_results(case: str, snapshot: SnapshotAssertion) -> None:
    assert kept(TABLES[case]) == snapshot
