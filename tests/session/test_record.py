"""The record of a cell: the fields that others script against."""

import msgspec
import pytest

from cs336_tui.events import CellSkipped
from cs336_tui.session.record import document_of, record_of
from tests.export.grids import moved_session
from tests.samples import MEASURED_S, WARMUP_S, a_spec, cell_end, cell_start, mixed_session, session_start, state_of

SPEC_FIELDS = {
    "size", "edition", "arch", "d_model", "d_ff", "num_layers", "num_heads", "vocab_size", "context_length",
    "batch_size", "pass", "precision", "device", "sync", "warmup_steps", "measure_steps", "seed",
}  # fmt: skip
RUN_FIELDS = {
    "spec", "status", "num_params", "warmup_times_s", "step_times_s", "phase_times_s", "summary", "tokens_per_s",
    "peak_allocated_bytes", "peak_reserved_bytes", "peak_rss_bytes", "error",
}  # fmt: skip
SUMMARY_FIELDS = {"n", "mean_s", "std_s", "median_s", "min_s", "max_s", "ddof"}


def test_every_promised_field_is_there() -> None:
    document = msgspec.to_builtins(document_of(state_of(mixed_session())))
    assert {"schema", "environment", "runs"} <= document.keys()
    assert document["schema"] == 1
    for run in document["runs"]:
        assert run.keys() >= RUN_FIELDS
        assert run["spec"].keys() >= SPEC_FIELDS
    assert document["runs"][0]["summary"].keys() >= SUMMARY_FIELDS


def test_a_good_cell_holds_its_raw_times_and_memory() -> None:
    run = document_of(state_of(mixed_session())).runs[0]
    assert (run.status, run.error) == ("ok", None)
    assert (run.warmup_times_s, run.step_times_s) == (WARMUP_S, MEASURED_S)
    assert run.phase_times_s["backward"] == pytest.approx([t * 2 / 3 for t in MEASURED_S])
    assert (run.peak_allocated_bytes, run.peak_reserved_bytes) == (3_512_000_000, 4_000_000_000)
    assert run.num_params == 128_634_624


def test_cells_that_ended_badly_keep_what_they_had() -> None:
    runs = document_of(state_of(mixed_session())).runs
    assert [run.status for run in runs] == ["ok", "oom", "failed"], "the cell that never started is not a result"
    assert (runs[1].warmup_times_s, runs[1].step_times_s, runs[1].summary) == ((0.9,), (), None)
    assert "out of memory" in (runs[1].error or "")


def test_a_running_cell_has_no_record() -> None:
    state = state_of([*session_start([a_spec()]), *cell_start(0)])
    with pytest.raises(ValueError, match="cell 0 is running"):
        record_of(state.cells[0], 1)


def test_a_cell_without_a_result_is_listed_with_its_reason() -> None:
    events = [*mixed_session(), CellSkipped(at=1.0, cell=3, reason="needs more memory than cell 2, which ran out")]
    (left,) = document_of(state_of(events)).without_result
    assert (left.cell, left.status, left.reason) == (3, "skipped", "needs more memory than cell 2, which ran out")
    assert [cell.status for cell in document_of(state_of(mixed_session())).without_result] == ["queued"]
    running = state_of([*session_start([a_spec()]), *cell_start(0)])
    assert [cell.status for cell in document_of(running).without_result] == ["running"]


def test_each_run_says_on_which_machine_it_ran() -> None:
    document = document_of(moved_session())
    assert [run.environment for run in document.runs] == [0, 1]
    assert [environment.torch for environment in document.environments] == ["2.13.0", "2.14.0"]
    assert document.environment == document.environments[1]


def test_which_run_of_its_spec_a_cell_is_and_what_could_not_be_allocated() -> None:
    events = [
        *session_start([a_spec()]),
        *cell_start(0),
        cell_end(0, "oom", stage="measuring", step=3, failed_allocation_bytes=2 << 30),
    ]
    (run,) = document_of(state_of(events)).runs
    assert (run.repeat, run.stage, run.step, run.failed_allocation_bytes) == (1, "measuring", 3, 2 << 30)
