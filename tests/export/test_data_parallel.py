"""Tables and figures of ways to share a step, of scaling and of collectives, of sessions whose times are known."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.merge import Result, merge
from cs336_tui.cli.ab import ab
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.export.figures import by_message, by_ranks, passes_by_size
from cs336_tui.export.record import document_of, to_csv, to_json
from cs336_tui.export.reference import reference_table, reference_tables
from cs336_tui.export.subjects.data_parallel import (
    collective_tables,
    data_parallel_tables,
    in_turns_command,
    sharding_tables,
)
from cs336_tui.export.subjects.results import TableError, results_table
from cs336_tui.export.subjects.scaling import scaling_tables
from cs336_tui.export.writing.drawing import Absent
from cs336_tui.export.writing.tables import Table
from cs336_tui.stats.summaries import summarize
from tests.export.keeping import as_drawn, kept
from tests.made_ranks import a_rank_memory_report
from tests.samples import ENVIRONMENT, HEADER, a_spec, report_events, sized, state_of

SYNCS_S = ((0.052, 0.050), (0.011, 0.012))
"""Gradient sync of rank 0, which waits for rank 1, and of rank 1, in two steps."""


def ranks_spec(parallel: str, ranks: int = 2, **changes: Any) -> CellSpec:
    return a_spec(parallel=parallel, ranks=ranks, pass_="train-step", **changes)


class Ran:
    """A cell and its two steps on the slowest rank; `syncs_s` of each rank, `pid` that of two cells in turns."""

    def __init__(self, spec: CellSpec, *times_s: float, **more: Any) -> None:
        self.spec, self.times_s, self.more = spec, times_s, more


def results_of(cells: Sequence[Ran], title: str = "s", repeats: tuple[int, ...] = ()) -> tuple[Result, ...]:
    return merge([(title, state_of(events_of(cells, repeats)))])


def events_of(cells: Sequence[Ran], repeats: tuple[int, ...] = ()) -> list[ev.Event]:
    events: list[ev.Event] = [HEADER, ev.EnvironmentRead(at=0.0, environment=ENVIRONMENT)]
    events.append(ev.CellsQueued(at=0.0, first=0, specs=tuple(ran.spec for ran in cells), repeats=repeats))
    pids = [ran.more.get("pid", 100 + cell) for cell, ran in enumerate(cells)]
    for _, both in groupby(range(len(cells)), key=pids.__getitem__):
        together = list(both)
        events += (ev.CellStarted(at=1.0, cell=cell, pid=pids[cell]) for cell in together)
        for cell in together:
            events += cell_events(cell, cells[cell])
    return events


def cell_events(cell: int, ran: Ran) -> list[ev.Event]:
    syncs_s = ran.more.get("syncs_s", ())
    phases = {"optimizer": tuple(time_s / 4 for time_s in ran.times_s)}
    phases |= {"gradient sync": syncs_s[0]} if syncs_s else {}
    several = (ran.times_s, tuple(time_s - 0.002 for time_s in ran.times_s)) if ran.spec.ranks > 1 else ()
    peaks = ran.more.get("peaks", (9 * 10**9, 10**10))
    return [
        ev.StepsTimed(
            at=2.0, cell=cell, kind="measured", first=0, times_s=ran.times_s, phases_s=phases, rank_times_s=several,
            rank_sync_s=syncs_s,
        ),
        ev.CellFinished(
            at=3.0, cell=cell, status="ok", rank_peak_bytes=peaks,
            **{"peak_allocated_bytes" if ran.more.get("allocator", True) else "peak_rss_bytes": max(peaks)},
        ),
    ]  # fmt: skip


def records(table: Table) -> list[Mapping[str, Any]]:
    return list(table.records)


NAIVE = Ran(ranks_spec("my.adapters:get_naive"), 0.5, 0.6, syncs_s=SYNCS_S)


def test_communication_is_that_of_the_rank_which_waits_for_none(snapshot: SnapshotAssertion) -> None:
    """The mean of 11 and 12 ms, not rank 0's of 52 and 50; its wait beside it."""
    assert kept(*data_parallel_tables(results_of([NAIVE, Ran(ranks_spec("ddp"), 0.5, 0.5)]), None)) == snapshot


def test_buckets_are_a_column_and_functions_of_one_name_are_told_apart_by_their_modules(
    snapshot: SnapshotAssertion,
) -> None:
    buckets = [f"{name}:{size}" for name in ("ddp", "my:get_b") for size in ("10MB", "1MB")]
    each = (buckets, ["mine:get_ddp", "hers:get_ddp", "hers:get_flat"])
    cells = [results_of([Ran(ranks_spec(name), 0.5, 0.5) for name in names]) for names in each]
    assert kept(*(table for found in cells for table in data_parallel_tables(found, None))) == snapshot


def in_turns(a: str, b: str, *rounds: tuple[float, float], **changes: Any) -> list[Ran]:
    """Rounds of two cells; each has two steps, 1 % apart."""
    return [
        Ran(ranks_spec(parallel, **changes), time_s, time_s * 1.01, pid=7 + number)
        for number, both in enumerate(rounds)
        for parallel, time_s in zip((a, b), both, strict=True)
    ]


@pytest.mark.parametrize(("a", "b", "order"), [("ddp", "none", 1), ("none", "ddp", -1)])
def test_exposed_communication_is_of_rounds_in_turns_and_has_an_interval(a: str, b: str, order: int) -> None:
    rounds = ((0.5, 0.4), (0.5, 0.401), (0.501, 0.4))
    (table,) = data_parallel_tables(results_of(in_turns(a, b, *(each[::order] for each in rounds))), None)
    (row,) = [each for each in records(table) if each["wrapper"] == "ddp"]
    expected = 1e3 * 1.005 * (1.501 - 1.201) / 3
    assert row["exposed communication (ms)"] == pytest.approx(expected)
    low, high = row["exposed interval (ms)"]
    assert low < expected < high
    assert row["exposed of step (%)"] == pytest.approx(100 * expected / (1e3 * 1.005 * 1.501 / 3))
    (note,) = [note for note in table.footnotes if note.startswith("exposed: ")]
    assert "in turns in one process (cs336-tui ab), 3 rounds" in note


def test_cells_that_ran_one_after_the_other_give_no_exposed_communication_and_say_what_does() -> None:
    (table,) = data_parallel_tables(results_of([Ran(ranks_spec(each), 0.5, 0.5) for each in ("none", "ddp")]), None)
    assert not {"exposed communication (ms)", "gradient sync (ms)"} & records(table)[0].keys()
    (hint,) = [note for note in table.footnotes if note.startswith("exposed communication is not measured for ddp: ")]
    command = shlex.split(hint.partition(": ")[2].partition(";")[0])
    assert command[:2] == ["cs336-tui", "ab"]
    made = ab.make_context("ab", command[2:]).params
    assert (made["a"], made["b"]) == ({"parallels": ("ddp",)}, {"parallels": ("none",)})
    assert (made["ranks"], made["batches"]) == ((2,), (4,))


def test_repeats_round_after_round_give_it_too_with_an_interval_as_wide_as_they_differ() -> None:
    times = ((0.50, 0.40), (0.52, 0.41), (0.54, 0.42))
    cells = [
        Ran(ranks_spec(way), time_s, time_s)
        for both in times
        for way, time_s in zip(("ddp", "none"), both, strict=True)
    ]
    (table,) = data_parallel_tables(results_of(cells, repeats=(1, 1, 2, 2, 3, 3)), None)
    row = records(table)[0]
    assert row["exposed communication (ms)"] == pytest.approx(520 - 410)
    low, high = row["exposed interval (ms)"]
    assert low < 110 < high
    assert high - low > 20, "the runs of either differ by 4 %"
    (note,) = [note for note in table.footnotes if note.startswith("exposed: ")]
    assert "bench --repeats), which differ as the machine drifts, 3 rounds" in note
    (table,) = data_parallel_tables(results_of(cells[:4], repeats=(1, 1, 2, 2)), None)
    assert "exposed communication (ms)" not in records(table)[0]


def test_the_command_in_turns_keeps_the_cell_but_for_its_wrapper() -> None:
    command = in_turns_command(ranks_spec("my.adapters:get_ddp", model_path=("/here",)))
    assert command.startswith("cs336-tui ab --a '--parallel my.adapters:get_ddp' --b '--parallel none' ")
    assert command.count("--parallel") == 2
    assert " --ranks 2 " in command
    assert "--model-path /here" in command


def test_an_exposed_number_of_another_session_stands_beside_the_row_of_this_one(snapshot: SnapshotAssertion) -> None:
    """A step of 520 ms, with an exposed mean of 1.005 times 500 less 405."""
    alone = results_of([Ran(ranks_spec("ddp", measure_steps=10), 0.52, 0.52)])
    turns = results_of(in_turns("ddp", "none", (0.5, 0.4), (0.5, 0.41)), "t")
    both = merge([("s", alone[0].state), ("t", turns[0].state)])
    assert kept(*data_parallel_tables(both, None)) == snapshot


def test_sharding_saves_against_ddp_and_own_optimizers_against_the_same_wrapper(snapshot: SnapshotAssertion) -> None:
    """Saved are 52 - 39 GB, 52 - 54 GB, and of the own optimizer 54 - 40 GB."""
    gb = 10**9
    cells = [
        Ran(ranks_spec("ddp"), 1.1, 1.1, peaks=(50 * gb, 52 * gb)),
        Ran(ranks_spec("zero1"), 1.3, 1.3, peaks=(39 * gb, 38 * gb)),
        Ran(ranks_spec("my:get_ddp"), 1.2, 1.2, peaks=(54 * gb, 54 * gb)),
        Ran(ranks_spec("my:get_ddp", optimizer="my:get_sharded_optimizer"), 1.4, 1.4, peaks=(40 * gb, 40 * gb)),
    ]
    assert kept(*sharding_tables(results_of(cells), None)) == snapshot


def test_without_an_allocator_the_peak_is_that_of_tensors_as_reports_count_them_else_resident_memory(
    snapshot: SnapshotAssertion,
) -> None:
    """Saved are 9 MB: of 20 MB of state rank 1 has 11."""
    cells = [Ran(ranks_spec(way, device="cpu"), 0.5, 0.5, allocator=False) for way in ("ddp", "zero1")]
    events = events_of(cells)
    resident = sharding_tables(merge([("s", state_of(events))]), None)
    events += report_events(*(a_rank_memory_report(ran.spec) for ran in cells), at=5.0)
    assert kept(*resident, *sharding_tables(merge([("s", state_of(events))]), None)) == snapshot


def test_weak_and_strong_scaling_are_tables_of_their_own_with_their_own_efficiency(snapshot: SnapshotAssertion) -> None:
    cells = [
        Ran(ranks_spec("none", 1), 0.4, 0.4),
        Ran(ranks_spec("ddp", 2), 0.5, 0.5),
        Ran(ranks_spec("ddp", 4), 0.8, 0.8),
        Ran(ranks_spec("ddp", 2, batch_is="global"), 0.25, 0.25),
    ]
    results = results_of(cells)
    assert kept(*scaling_tables(results, None)) == snapshot
    assert as_drawn(by_ranks(results)) == snapshot


def test_without_a_cell_of_one_rank_there_is_no_efficiency_but_a_word_on_it(snapshot: SnapshotAssertion) -> None:
    results = results_of([Ran(ranks_spec("ddp"), 0.5, 0.5)])
    assert kept(*scaling_tables(results, None)) == snapshot
    assert isinstance(by_ranks(results), Absent)


def test_the_own_row_beside_published_steps_tells_its_gradient_sync(snapshot: SnapshotAssertion) -> None:
    """Of 550 ms, which are 1.03 times the 531.74 ms of a naive wrapper there."""
    xl = {**sized("xl", "2025"), "batch_size": 16, "batch_is": "global", "warmup_steps": 5}
    cell = Ran(ranks_spec("my.adapters:get_naive", **xl), 0.5, 0.6, syncs_s=SYNCS_S)
    assert kept(reference_table(results_of([cell]))) == snapshot


@pytest.mark.parametrize("make", [data_parallel_tables, sharding_tables, scaling_tables, collective_tables])
def test_a_session_of_one_rank_has_no_such_table(make: Any) -> None:
    with pytest.raises(TableError, match=r"no cell of (several ranks; run some with --ranks|a collective; .* comm)"):
        make(results_of([Ran(ranks_spec("none", 1), 0.4, 0.4)]), None)


TIMES_S = {("1MB", 2): 1e-3, ("1MB", 4): 2e-3, ("100MB", 2): 50e-3, ("100MB", 4): 200e-3}


def known(**choices: object) -> tuple[Result, ...]:
    """A session of all-reduces whose steps took `TIMES_S`, and one rank half of that."""
    sweep = sweep_from(
        **{"workload": "collective", "devices": ("cpu",), "sizes": ("100MB", "1MB"), "ranks": (4, 2)} | choices
    )
    events: list[ev.Event] = [HEADER, ev.EnvironmentRead(at=0.0, environment=ENVIRONMENT)]
    for number, spec in enumerate(sweep.cells()):
        time_s = TIMES_S[spec.size, spec.ranks]
        ranks = ((time_s,) * 3, *((time_s / 2,) * 3 for _ in range(spec.ranks - 1)))
        events += [
            ev.CellsQueued(at=0.0, first=number, specs=(spec,)),
            ev.CellStarted(at=0.0, cell=number),
            ev.StepsTimed(at=1.0, cell=number, kind="measured", first=0, times_s=ranks[0], rank_times_s=ranks),
            ev.CellFinished(at=2.0, cell=number, status="ok", skew=summarize([time_s / 2] * 3)),
        ]
    return merge([("s", state_of(events))])


def test_sizes_stand_below_each_other_and_ranks_side_by_side_and_results_have_skew_and_bandwidths(snapshot):
    (table,), results = collective_tables(known(), None), results_table(known(ranks=(4,)))
    # 1 MB in 1 ms over 2 ranks: 1 GB/s x 2/2; 100 MB in 200 ms over 4: 0.5 GB/s x 6/4.
    assert kept(table, results) == snapshot


def test_the_figure_is_of_bandwidth_over_size_with_what_others_published_of_the_same(snapshot):
    figure = by_message(known())
    assert as_drawn(figure) == snapshot
    assert isinstance(by_message(known(sizes=("1MB",))), Absent)
    assert isinstance(passes_by_size(known()), Absent)


def test_tables_set_published_times_beside_ones_own(snapshot):
    """1 ms here, 0.57 ms there."""
    assert kept(*reference_tables(known(ranks=(2,), sizes=("1MB",)))) == snapshot


def test_data_of_a_collective_have_no_stand_ins_for_what_it_lacks(snapshot):
    state = known(ranks=(2,), sizes=("1MB",))[0].state
    assert [to_json(document_of(state)), to_csv(document_of(state))] == snapshot
