"""The memory of each rank as a table: ways of sharing a step are neighbours, amounts are those of each rank."""

from __future__ import annotations

import msgspec

from cs336_tui.events.prediction import PhaseMemory
from cs336_tui.events.reports import RankMoment
from cs336_tui.export.subjects.memory_peaks import rank_memory_table
from cs336_tui.stats.quantities import NONE
from tests.made_predictions import made_prediction
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
        parts = (
            "parameters", "gradients", "optimizer_state", "activations", "communication", "buffers", "rest"
        )  # fmt: skip
        assert sum(record[f"{part}_bytes"] for part in parts) == record["live_bytes"]
        assert record["rest_bytes"] == 3_000_000


def test_predictions_stand_beside_the_later_step() -> None:
    phases = {
        name: PhaseMemory(by_category={"parameters": end}, peak_bytes=peak)
        for name, end, peak in (("zero_grad", 1, 9), ("forward", 5, 6), ("loss", 6, 7), ("backward", 3, 8))
    }
    prediction = msgspec.structs.replace(made_prediction(WHOLE), phases=phases)
    report = msgspec.structs.replace(a_rank_memory_report(WHOLE), prediction=prediction)
    table = rank_memory_table([report, a_rank_memory_report(SHARDED)])

    found = {
        (record["step"], record["moment"], record["predicted_live_bytes"], record["predicted_peak_bytes"])
        for record in table.records
        if record["parallel"] == "ddp"
    }
    assert {each for each in found if each[2]} == {(3, "after forward", 6, 9), (3, "before optimizer", 3, 8)}
    assert all(record["predicted_live_bytes"] is None for record in table.records if record["parallel"] == "zero1")


def test_uses_that_an_old_log_lacks_are_not_known() -> None:
    first = RankMoment(rank=0, step=0, moment="initialised", by_category={"parameters": 4}, live_bytes=6)
    table = rank_memory_table([msgspec.structs.replace(a_rank_memory_report(WHOLE), moments=(first,))])

    (record,) = table.records
    assert (record["activations_bytes"], record["communication_bytes"], record["rest_bytes"]) == (None, None, 2)


def test_what_nobody_counts_is_not_known() -> None:
    report = a_rank_memory_report(WHOLE)
    first = RankMoment(rank=0, step=0, moment="initialised", by_category={"parameters": 4})
    table = rank_memory_table([msgspec.structs.replace(report, moments=(first,))])
    assert (table.records[0]["rest_bytes"], table.records[0]["live_bytes"]) == (None, None)
    assert table.rows[0][-3:] == (NONE, NONE, NONE)
