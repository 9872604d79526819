"""The memory of each rank as a table: ways of sharing a step are neighbours, amounts are those of each rank."""

from __future__ import annotations

import msgspec

from cs336_tui.events.memory_report import RankMoment
from cs336_tui.export.rank_memory import rank_memory_table
from cs336_tui.stats.quantities import NONE
from tests.made_ranks import MOMENTS, a_rank_memory_report
from tests.samples import a_spec

WHOLE, SHARDED = (a_spec(ranks=2, parallel=parallel, pass_="train-step") for parallel in ("ddp", "zero1"))


def test_ways_of_sharing_are_neighbours_at_each_moment_of_each_rank() -> None:
    table = rank_memory_table([a_rank_memory_report(WHOLE), a_rank_memory_report(SHARDED)])
    order = [(record["step"], record["moment"], record["rank"], record["parallel"]) for record in table.records]
    assert order == [(*moment, rank, way) for moment in MOMENTS for rank in (0, 1) for way in ("ddp", "zero1")]


def test_amounts_are_of_each_rank_and_the_rest_is_what_no_use_has() -> None:
    table = rank_memory_table([a_rank_memory_report(WHOLE), a_rank_memory_report(SHARDED)])
    state = [record["optimizer_state_bytes"] for record in table.records if record["moment"] == "after optimizer"]
    assert state[:4] == [20_000_000, 9_000_000, 20_000_000, 11_000_000]
    for record in table.records:
        parts = ("parameters", "gradients", "optimizer_state", "buffers", "rest")
        assert sum(record[f"{part}_bytes"] for part in parts) == record["live_bytes"]
        assert record["rest_bytes"] == 3_000_000


def test_what_nobody_counts_is_not_known() -> None:
    report = a_rank_memory_report(WHOLE)
    first = RankMoment(rank=0, step=0, moment="initialised", by_category={"parameters": 4})
    table = rank_memory_table([msgspec.structs.replace(report, moments=(first,))])
    assert (table.records[0]["rest_bytes"], table.records[0]["live_bytes"]) == (None, None)
    assert table.rows[0][-3:] == (NONE, NONE, NONE)
