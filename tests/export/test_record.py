"""The record of a cell, as JSON and CSV: the fields that others script against, which any parser reads."""

import json
import math
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.merge import Result
from cs336_tui.config.flops import step_flops
from cs336_tui.events.environment import GpuSample, HostSample
from cs336_tui.events.events import CellSkipped, DeviceSampled, ModelPrepared
from cs336_tui.events.peaks import peak_key
from cs336_tui.export.record import document_of, record_of, to_csv, to_json
from cs336_tui.session.state import SessionState
from tests.analysis.judging import VERDICTS
from tests.export.grids import moved_session
from tests.export.keeping import csv_rows
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


def test_json_and_csv_are_the_promised_documents(snapshot: SnapshotAssertion) -> None:
    """Fields and columns that others script against: a new one may come, none may go or change its meaning."""
    state = state_of(mixed_session())
    assert to_json(document_of(state)) == snapshot
    assert to_csv(document_of(state)) == snapshot


def test_a_cell_without_a_result_is_listed_with_its_reason_and_a_running_one_has_no_record() -> None:
    events = [*mixed_session(), CellSkipped(at=1.0, cell=3, reason="needs more memory than cell 2, which ran out")]
    (left,) = document_of(state_of(events)).without_result
    assert (left.cell, left.status, left.reason) == (3, "skipped", "needs more memory than cell 2, which ran out")
    assert [cell.status for cell in document_of(state_of(mixed_session())).without_result] == ["queued"]
    running = state_of([*session_start([a_spec()]), *cell_start(0)])
    assert [cell.status for cell in document_of(running).without_result] == ["running"]
    with pytest.raises(ValueError, match="cell 0 is running"):
        record_of(Result(0, "one", running, running.cells[0]), {}.get)


def test_each_run_says_on_which_machine_it_ran() -> None:
    document = document_of(moved_session())
    assert [run.environment for run in document.runs] == [0, 1]
    assert [environment.torch for environment in document.environments] == ["2.13.0", "2.14.0"]
    assert document.environment == document.environments[1]


def test_which_run_of_its_spec_a_cell_is_and_what_could_not_be_allocated() -> None:
    end = cell_end(0, "oom", stage="measuring", step=3, failed_allocation_bytes=2 << 30)
    (run,) = document_of(state_of([*session_start([a_spec()]), *cell_start(0), end])).runs
    assert (run.repeat, run.stage, run.step, run.failed_allocation_bytes) == (1, "measuring", 3, 2 << 30)


def test_a_cell_says_how_far_it_can_be_trusted_and_how_close_to_the_limit_it_came() -> None:
    peaks = {peak_key(ENVIRONMENT, "cuda:0", "fp32"): made_peak(50e12)}
    good, oom, _ = document_of(state_of(mixed_session()), peaks=peaks.get).runs
    assert good.verdict_evidence.keys() == set(VERDICTS), "those that do not hold too"
    assert all(good.verdict_evidence.values())
    assert good.flops_per_step == step_flops(a_spec())
    assert good.share_of_sheet_peak == pytest.approx(step_flops(a_spec()) / 0.1532 / 67e12)
    assert good.share_of_measured_peak == pytest.approx(step_flops(a_spec()) / 0.1532 / 50e12)
    assert (oom.verdict_evidence, oom.flops_per_s, oom.share_of_sheet_peak) == ({}, None, None)


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


def no_constants(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def parsed_csv(state: SessionState) -> list[dict[str, str]]:
    return csv_rows(to_csv(document_of(state)))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_no_number_in_the_json_is_not_a_number(bad: float) -> None:
    events = [*session_start([a_spec()]), *steps(0, (bad,)), cell_end(0)]
    document = json.loads(to_json(document_of(state_of(events))), parse_constant=no_constants)
    assert document["runs"][0]["warmup_times_s"] == [None]


def test_a_list_of_texts_can_be_split_whatever_the_texts_hold() -> None:
    breaks = ("print; a side effect (model.py:3)", "a;b")
    prepared = ModelPrepared(at=START, cell=0, compile_s=1.0, graph_breaks=breaks)
    events = [*session_start([a_spec()]), *cell_start(0), prepared, *steps(0, WARMUP_S, MEASURED_S), cell_end(0)]
    state = state_of(events)
    (row,) = parsed_csv(state)
    assert row["graph_breaks"].split(";") == ["print, a side effect (model.py:3)", "a,b"]
    (run,) = json.loads(to_json(document_of(state)))["runs"]
    assert run["graph_breaks"] == list(breaks)
    assert [field.partition(":")[0] for field in row["verdict_evidence"].split(";")] == list(run["verdict_evidence"])


def test_without_results_json_is_still_the_document_and_csv_its_header() -> None:
    document = json.loads(to_json(document_of(SessionState())))
    assert (document["schema"], document["runs"]) == (1, [])
    text = to_csv(document_of(SessionState()))
    assert text.count("\n") == 1
    assert text.startswith("cell,status,size,")


@pytest.mark.parametrize("line_end", ["\n", "\r", "\r\n"])
def test_csv_quotes_an_error_of_several_lines(line_end: str) -> None:
    error = 'first, "quoted"{}second'
    events = [*session_start([a_spec()], environment=None), cell_end(0, "failed", error=error.format(line_end))]
    (row,) = parsed_csv(state_of(events))
    assert row["error"] == error.format("\n")
