"""Memory reports as tables, documents and a figure; the memory of each rank."""

import json

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.events.prediction import PhaseMemory
from cs336_tui.events.reports import RankMoment
from cs336_tui.export.reports import document_of_reports
from cs336_tui.export.subjects.memory import MOST_ROWS, memory_document, memory_tables
from cs336_tui.export.subjects.memory_peaks import CellPeaks, memory_figure, oom_table, peaks_table, rank_memory_table
from tests.export.keeping import as_drawn, kept
from tests.made_memory import MB, MemoryMaker, a_memory_report, an_oom_report, many_events
from tests.made_predictions import made_prediction
from tests.made_ranks import MOMENTS, a_rank_memory_report
from tests.samples import a_spec

REPORT = a_memory_report()


def test_peaks_have_a_row_for_each_context_and_precision_and_the_unit_of_the_largest(
    snapshot: SnapshotAssertion,
) -> None:
    specs = [a_spec(context_length=c, precision=p) for c in (128, 512) for p in ("fp32", "bf16-mixed")]
    made = MemoryMaker()
    made.allocate(46_500 * MB, "parameters")
    made.phase("forward")
    noted = a_memory_report(spec=specs[0], note="Only tensors are seen.", prediction=None)
    reports = [noted, *(a_memory_report(spec=spec) for spec in specs[1:])]
    peaks, one = (peaks_table([*map(CellPeaks.recorded, each)]) for each in (reports, [made.report()]))
    assert kept(peaks, one, memory_tables(noted)[1]) == snapshot


def test_levels_more_rows_than_are_shown_blocks_without_what_they_saved_and_what_was_not_seen(
    snapshot: SnapshotAssertion,
) -> None:
    """The largest allocations of a level, of none and of many; nothing saved is no table."""
    largest, none = (memory_tables(REPORT, min_bytes=least)[2] for least in (30 * MB, 10**12))
    many = memory_tables(many_events(2_000))[2]
    unseen = oom_table(an_oom_report(observed=False, phase=None, request_bytes=None, capacity_bytes=None))
    assert (len(many.rows), none.rows, memory_document(a_memory_report(blocks=()))["blocks"]) == (MOST_ROWS, (), [])
    many = msgspec.structs.replace(many, rows=many.rows[:1])
    assert kept(largest, many, *memory_tables(a_memory_report(saved=()))[3:], unseen) == snapshot


def test_a_document_has_every_allocation_only_when_asked() -> None:
    document = json.loads(json.dumps(memory_document(REPORT)))
    assert document["peak_bytes"] == REPORT.peak_bytes == sum(document["by_category"].values())
    assert document["forward_end_bytes"] == sum(document["forward_end_by_category"].values())
    assert (document["peak_phase"], document["spec"]["pass"]) == ("optimizer", "train-step")
    assert document["saved_for_backward"][-1]["node"] == "all"
    assert "born" not in document
    whole = json.loads(json.dumps(memory_document(REPORT, arrays=True)))
    assert (whole["born"], whole["bytes"]) == ([*REPORT.born], [*REPORT.bytes])
    assert document_of_reports([an_oom_report()])["by_category"]["activations"] == 38_000 * MB


def test_the_figure_names_the_activations_at_the_peak(snapshot: SnapshotAssertion) -> None:
    assert as_drawn(memory_figure(a_memory_report(activation_peak_bytes=12_345_678))) == snapshot


def test_a_long_timeline_and_one_without_events_can_be_drawn() -> None:
    assert len(memory_figure(many_events(50_000)).files(["svg"])["svg"]) < 2_000_000
    made = MemoryMaker()
    made.allocate(MB, "parameters")
    made.phase("forward")
    assert memory_figure(made.report()).files(["svg"])["svg"]


WHOLE, SHARDED = (a_spec(ranks=2, parallel=parallel, pass_="train-step") for parallel in ("ddp", "zero1"))


def test_predictions_stand_beside_the_later_step() -> None:
    phases = {
        name: PhaseMemory(by_category={"parameters": end}, peak_bytes=peak)
        for name, end, peak in (("zero_grad", 1, 9), ("forward", 5, 6), ("loss", 6, 7), ("backward", 3, 8))
    }
    prediction = msgspec.structs.replace(made_prediction(WHOLE), phases=phases)
    report = msgspec.structs.replace(a_rank_memory_report(WHOLE), prediction=prediction)
    keys = ("parallel", "step", "moment", "predicted_live_bytes", "predicted_peak_bytes")
    records = rank_memory_table([report, a_rank_memory_report(SHARDED)]).records
    found = {tuple(record[key] for key in keys) for record in records if record["predicted_live_bytes"] is not None}
    assert found == {("ddp", 3, "after forward", 6, 9), ("ddp", 3, "before optimizer", 3, 8)}


@pytest.mark.parametrize(("live", "rest"), [(6, 2), (None, None)])
def test_uses_that_an_old_log_lacks_and_what_nobody_counts_are_not_known(live: int | None, rest: int | None) -> None:
    first = RankMoment(rank=0, step=0, moment="initialised", by_category={"parameters": 4}, live_bytes=live)
    (record,) = rank_memory_table([msgspec.structs.replace(a_rank_memory_report(WHOLE), moments=(first,))]).records
    keys = ("activations_bytes", "communication_bytes", "rest_bytes", "live_bytes")
    assert [record[key] for key in keys] == [None, None, rest, live]


def test_ways_of_sharing_are_neighbours_and_the_rest_is_what_no_use_has() -> None:
    table = rank_memory_table([a_rank_memory_report(WHOLE), a_rank_memory_report(SHARDED)])
    order = [(record["step"], record["moment"], record["rank"], record["parallel"]) for record in table.records]
    assert order == [(*moment, rank, way) for moment in MOMENTS for rank in (0, 1) for way in ("ddp", "zero1")]
    parts = ("parameters", "gradients", "optimizer_state", "activations", "communication", "buffers", "rest")
    for record in table.records:
        assert sum(record[f"{part}_bytes"] for part in parts) == record["live_bytes"]
        assert record["rest_bytes"] == 3_000_000
