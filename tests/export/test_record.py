"""The record of a cell: the fields that others script against."""

from typing import get_args

import msgspec
import pytest

from cs336_tui.analysis.judgement import VerdictName
from cs336_tui.analysis.merge import Result
from cs336_tui.config.flops import step_flops
from cs336_tui.events.environment import GpuSample, HostSample
from cs336_tui.events.events import CellSkipped, DeviceSampled
from cs336_tui.events.peaks import peak_key
from cs336_tui.export.record import document_of, record_of
from tests.export.grids import moved_session
from tests.made_peaks import made_peak
from tests.samples import (
    ENVIRONMENT,
    MEASURED_S,
    START,
    WARMUP_S,
    a_spec,
    cell_end,
    cell_start,
    mixed_session,
    session_start,
    state_of,
    steps,
)
from tests.session.made import cell
from tests.session.made import session_of as made_session

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
        record_of(Result(0, "one", state, state.cells[0]), {}.get)


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


def test_a_cell_says_how_far_it_can_be_trusted_and_how_close_to_the_limit_it_came() -> None:
    peaks = {peak_key(ENVIRONMENT, "cuda:0", "fp32"): made_peak(50e12)}
    good, oom, _ = document_of(state_of(mixed_session()), peaks=peaks.get).runs
    assert good.verdicts == ("too-few-steps",)
    assert good.verdict_evidence.keys() == set(get_args(VerdictName)), "those that do not hold too"
    assert all(good.verdict_evidence.values())
    assert "drifting" in good.not_observable
    assert good.warmup_advice
    assert good.energy_unknown_because or good.joules_per_step
    assert (good.interval_low_s, good.interval_half_share) == (None, None), "4 steps fix no interval"
    assert good.flops_per_step == step_flops(a_spec())
    assert good.flops_per_s == pytest.approx(step_flops(a_spec()) / 0.1532)
    assert good.share_of_sheet_peak == pytest.approx(good.flops_per_s / 67e12)
    assert good.share_of_measured_peak == pytest.approx(good.flops_per_s / 50e12)
    assert (oom.verdicts, oom.verdict_evidence, oom.not_observable, oom.warmup_advice) == ((), {}, (), None)
    assert (oom.interval_low_s, oom.interval_half_share, oom.flops_per_s, oom.share_of_sheet_peak) == (None,) * 4


def test_from_ten_steps_on_a_cell_has_an_interval() -> None:
    (run,) = document_of(made_session(cell([0.10, 0.11] * 5))).runs
    assert run.interval_method
    assert run.interval_low_s < run.summary.mean_s < run.interval_high_s
    assert run.interval_half_share == pytest.approx((run.interval_high_s - run.interval_low_s) / 2 / run.summary.mean_s)


def test_clocks_and_what_the_cell_waited_for_are_there() -> None:
    def sample(at: float, clock: int) -> DeviceSampled:
        gpu = GpuSample(sm_clock_mhz=clock, persistence_mode=True)
        return DeviceSampled(at=START + at, host=HostSample(), gpu=gpu)

    events = [
        *session_start([a_spec()]), *cell_start(0), sample(11, 1980), *steps(0, (), MEASURED_S), sample(12, 1700),
        cell_end(0, measured_for_s=0.7, cpu_wait_s=0.01),
    ]  # fmt: skip
    (run,) = document_of(state_of(events)).runs
    assert (run.clock_before_mhz, run.clock_after_mhz, run.persistence_mode) == (1980, 1700, True)
    assert (run.measured_for_s, run.cpu_wait_s) == (0.7, 0.01)
