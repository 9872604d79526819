"""Tables of ways to share a step and of scaling, of sessions whose times are known."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import pytest

from cs336_tui.analysis.merge import Result, merge
from cs336_tui.cli.ab import ab
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import (
    CellFinished,
    CellsQueued,
    CellStarted,
    EnvironmentRead,
    Event,
    ReportFinished,
    ReportStarted,
    StepsTimed,
)
from cs336_tui.export.figures import by_ranks
from cs336_tui.export.reference import reference_table
from cs336_tui.export.subjects.data_parallel import data_parallel_tables, in_turns_command, sharding_tables
from cs336_tui.export.subjects.results import TableError
from cs336_tui.export.subjects.scaling import scaling_tables
from cs336_tui.export.writing.drawing import Absent, Drawing
from cs336_tui.export.writing.tables import Table
from tests.made_ranks import a_rank_memory_report
from tests.samples import ENVIRONMENT, HEADER, a_spec, sized, state_of

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


def events_of(cells: Sequence[Ran], repeats: tuple[int, ...] = ()) -> list[Event]:
    events: list[Event] = [HEADER, EnvironmentRead(at=0.0, environment=ENVIRONMENT)]
    events.append(CellsQueued(at=0.0, first=0, specs=tuple(ran.spec for ran in cells), repeats=repeats))
    pids = [ran.more.get("pid", 100 + cell) for cell, ran in enumerate(cells)]
    for _, both in groupby(range(len(cells)), key=pids.__getitem__):
        together = list(both)
        events += (CellStarted(at=1.0, cell=cell, pid=pids[cell]) for cell in together)
        for cell in together:
            events += cell_events(cell, cells[cell])
    return events


def cell_events(cell: int, ran: Ran) -> list[Event]:
    syncs_s = ran.more.get("syncs_s", ())
    phases = {"optimizer": tuple(time_s / 4 for time_s in ran.times_s)}
    phases |= {"gradient sync": syncs_s[0]} if syncs_s else {}
    several = (ran.times_s, tuple(time_s - 0.002 for time_s in ran.times_s)) if ran.spec.ranks > 1 else ()
    peaks = ran.more.get("peaks", (9 * 10**9, 10**10))
    return [
        StepsTimed(
            at=2.0, cell=cell, kind="measured", first=0, times_s=ran.times_s, phases_s=phases, rank_times_s=several,
            rank_sync_s=syncs_s,
        ),
        CellFinished(
            at=3.0, cell=cell, status="ok", rank_peak_bytes=peaks,
            **{"peak_allocated_bytes" if ran.more.get("allocator", True) else "peak_rss_bytes": max(peaks)},
        ),
    ]  # fmt: skip


def records(table: Table) -> list[Mapping[str, Any]]:
    return list(table.records)


NAIVE = Ran(ranks_spec("my.adapters:get_naive"), 0.5, 0.6, syncs_s=SYNCS_S)


def test_communication_is_that_of_the_rank_which_waits_for_none() -> None:
    """The mean of 11 and 12 ms, not rank 0's of 52 and 50; its wait beside it."""
    (table,) = data_parallel_tables(results_of([NAIVE, Ran(ranks_spec("ddp"), 0.5, 0.5)]), None)
    own, ddp = records(table)
    assert (own["wrapper"], own["step (ms)"]) == ("get_naive", pytest.approx(550))
    assert own["gradient sync (ms)"] == pytest.approx(11.5)
    assert own["of step (%)"] == pytest.approx(100 * 0.0115 / 0.55)
    assert own["longest wait (ms)"] == pytest.approx((41 + 38) / 2)
    assert own["skew (ms)"] == pytest.approx(2)
    assert (ddp["gradient sync (ms)"], ddp["of step (%)"]) == (None, None)
    assert any("it waits for no other" in note for note in table.footnotes)


def test_buckets_are_a_column_in_the_order_in_which_they_were_asked_for() -> None:
    cells = [Ran(ranks_spec(f"{name}:{size}"), 0.5, 0.5) for name in ("ddp", "my:get_b") for size in ("10MB", "1MB")]
    (table,) = data_parallel_tables(results_of(cells), None)
    assert [(each["wrapper"], each["buckets (MB)"]) for each in records(table)] == [
        ("ddp", 10), ("ddp", 1), ("get_b", 10), ("get_b", 1),
    ]  # fmt: skip
    assert table.texts("buckets (MB)") == ("10", "1", "10", "1")


def test_functions_of_one_name_are_told_apart_by_their_modules() -> None:
    cells = [Ran(ranks_spec(name), 0.5, 0.5) for name in ("mine:get_ddp", "hers:get_ddp", "hers:get_flat")]
    (table,) = data_parallel_tables(results_of(cells), None)
    assert [each["wrapper"] for each in records(table)] == ["mine:get_ddp", "hers:get_ddp", "get_flat"]


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
    assert row["exposed (ms)"] == pytest.approx(expected)
    low, high = row["exposed interval (ms)"]
    assert low < expected < high
    assert row["exposed of step (%)"] == pytest.approx(100 * expected / (1e3 * 1.005 * 1.501 / 3))
    (note,) = [note for note in table.footnotes if note.startswith("exposed: ")]
    assert "in turns in one process (cs336-tui ab), 3 rounds" in note


def test_cells_that_ran_one_after_the_other_give_no_exposed_communication_and_say_what_does() -> None:
    (table,) = data_parallel_tables(results_of([Ran(ranks_spec(each), 0.5, 0.5) for each in ("none", "ddp")]), None)
    assert not {"exposed (ms)", "gradient sync (ms)"} & records(table)[0].keys()
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
    assert row["exposed (ms)"] == pytest.approx(520 - 410)
    low, high = row["exposed interval (ms)"]
    assert low < 110 < high
    assert high - low > 20, "the runs of either differ by 4 %"
    (note,) = [note for note in table.footnotes if note.startswith("exposed: ")]
    assert "bench --repeats), which differ as the machine drifts, 3 rounds" in note
    (table,) = data_parallel_tables(results_of(cells[:4], repeats=(1, 1, 2, 2)), None)
    assert "exposed (ms)" not in records(table)[0]


def test_the_command_in_turns_keeps_the_cell_but_for_its_wrapper() -> None:
    words = shlex.split(in_turns_command(ranks_spec("my.adapters:get_ddp", model_path=("/here",))))
    assert words[2:6] == ["--a", "--parallel my.adapters:get_ddp", "--b", "--parallel none"]
    assert "--parallel" not in words[6:]
    assert words[words.index("--ranks") + 1] == "2"
    assert words[words.index("--model-path") + 1] == "/here"


def test_an_exposed_number_of_another_session_stands_beside_the_row_of_this_one() -> None:
    alone = results_of([Ran(ranks_spec("ddp", measure_steps=10), 0.52, 0.52)])
    turns = results_of(in_turns("ddp", "none", (0.5, 0.4), (0.5, 0.41)), "t")
    both = merge([("s", alone[0].state), ("t", turns[0].state)])
    (table,) = data_parallel_tables(both, None)
    by_name = {each["wrapper"]: each for each in records(table)}
    assert by_name["ddp"]["step (ms)"] == pytest.approx(520)
    assert by_name["ddp"]["exposed (ms)"] == pytest.approx(1.005 * (500 - 405))
    assert list(by_name) == ["ddp", "none"]


def test_sharding_saves_against_ddp_and_own_optimizers_against_the_same_wrapper() -> None:
    gb = 10**9
    cells = [
        Ran(ranks_spec("ddp"), 1.1, 1.1, peaks=(50 * gb, 52 * gb)),
        Ran(ranks_spec("zero1"), 1.3, 1.3, peaks=(39 * gb, 38 * gb)),
        Ran(ranks_spec("my:get_ddp"), 1.2, 1.2, peaks=(54 * gb, 54 * gb)),
        Ran(ranks_spec("my:get_ddp", optimizer="my:get_sharded_optimizer"), 1.4, 1.4, peaks=(40 * gb, 40 * gb)),
    ]
    (table,) = sharding_tables(results_of(cells), None)
    found = [(each["wrapper"], each["peak allocated (GB)"], each["saved (GB)"]) for each in records(table)]
    assert found == [("ddp", 52, None), ("zero1", 39, 13), ("get_ddp", 54, -2), ("get_ddp", 40, 14)]
    assert records(table)[1]["saved (%)"] == pytest.approx(25)
    assert [each["optimizer (ms)"] for each in records(table)] == pytest.approx([275, 325, 300, 350])
    assert table.texts("optimizer") == ("adamw", "adamw", "adamw", "get_sharded_optimizer")


def test_without_an_allocator_the_peak_is_that_of_tensors_as_reports_count_them_else_resident_memory() -> None:
    cells = [Ran(ranks_spec(way, device="cpu"), 0.5, 0.5, allocator=False) for way in ("ddp", "zero1")]
    events = events_of(cells)
    (table,) = sharding_tables(merge([("s", state_of(events))]), None)
    assert [each["peak RSS (GB)"] for each in records(table)] == [10, 10]
    for number, ran in enumerate(cells):
        report = a_rank_memory_report(ran.spec)
        events.append(ReportStarted(at=4.0, report=number, kind="memory", spec=ran.spec))
        events.append(ReportFinished(at=5.0, report=number, status="ok", content=report))
    (table,) = sharding_tables(merge([("s", state_of(events))]), None)
    whole = max(each.peak_bytes for each in a_rank_memory_report(cells[0].spec).moments)
    assert records(table)[0]["peak of tensors (GB)"] == pytest.approx(whole / 1e9)
    assert records(table)[1]["saved (GB)"] == pytest.approx(0.009), "of 20 MB of state rank 1 has 11"


def test_weak_and_strong_scaling_are_tables_of_their_own_with_their_own_efficiency() -> None:
    cells = [
        Ran(ranks_spec("none", 1), 0.4, 0.4),
        Ran(ranks_spec("ddp", 2), 0.5, 0.5),
        Ran(ranks_spec("ddp", 4), 0.8, 0.8),
        Ran(ranks_spec("ddp", 2, batch_is="global"), 0.25, 0.25),
    ]
    results = results_of(cells)
    weak, strong = scaling_tables(results, None)
    assert weak.caption.startswith("Weak scaling")
    assert [each["ranks"] for each in records(weak)] == [1, 2, 4]
    assert [each["efficiency (%)"] for each in records(weak)] == pytest.approx([100, 80, 50])
    assert [each["speed-up"] for each in records(weak)] == pytest.approx([1, 1.6, 2])
    assert [each["tokens/s"] for each in records(weak)] == pytest.approx([4 * 128 / 0.4, 8 * 128 / 0.5, 16 * 128 / 0.8])
    assert strong.caption.startswith("Strong scaling")
    assert [each["efficiency (%)"] for each in records(strong)] == pytest.approx([100, 80])
    assert records(strong)[1]["tokens/s"] == pytest.approx(4 * 128 / 0.25)
    figure = by_ranks(results)
    assert isinstance(figure, Drawing)
    assert figure.files(formats=("png",))["png"].startswith(b"\x89PNG")


def test_without_a_cell_of_one_rank_there_is_no_efficiency_but_a_word_on_it() -> None:
    (table,) = scaling_tables(results_of([Ran(ranks_spec("ddp"), 0.5, 0.5)]), None)
    assert [each["efficiency (%)"] for each in records(table)] == [None]
    assert any("--ranks 1,2,4" in note for note in table.footnotes)
    assert isinstance(by_ranks(results_of([Ran(ranks_spec("ddp"), 0.5, 0.5)])), Absent)


def test_the_own_row_beside_published_steps_tells_its_gradient_sync() -> None:
    xl = {**sized("xl", "2025"), "batch_size": 16, "batch_is": "global", "warmup_steps": 5}
    cell = Ran(ranks_spec("my.adapters:get_naive", **xl), 0.5, 0.6, syncs_s=SYNCS_S)
    table = reference_table(results_of([cell]))
    own, *theirs = table.texts("what differs")
    assert own == "of it 11.50 ms gradient sync here (2.1 %)"
    assert len(theirs) == 7
    naive = next(place for place, text in enumerate(table.texts("what differs")) if text.startswith("naive there"))
    assert table.texts("here / there")[naive] == f"{550 / 531.74:.2f}"


@pytest.mark.parametrize("make", [data_parallel_tables, sharding_tables, scaling_tables])
def test_a_session_of_one_rank_has_no_such_table(make: Any) -> None:
    with pytest.raises(TableError, match="no cell of several ranks; run some with --ranks"):
        make(results_of([Ran(ranks_spec("none", 1), 0.4, 0.4)]), None)
