"""JSON and CSV hold every finished cell with its raw times, and any parser reads them."""

import csv
import io
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.events.events import Event, ModelPrepared
from cs336_tui.export.record import to_csv, to_json
from cs336_tui.session.state import SessionState
from tests.samples import (
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
from tests.strategies import any_event


def no_constants(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def parsed_csv(state: SessionState) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(state))))


def test_json_is_the_promised_document() -> None:
    document = json.loads(to_json(state_of(mixed_session())))
    assert document["schema"] == 1
    assert document["environment"]["torch"] == "2.13.0"
    assert [run["status"] for run in document["runs"]] == ["ok", "oom", "failed"]
    good = document["runs"][0]
    assert good["spec"]["pass"] == "forward+backward"
    assert good["step_times_s"] == list(MEASURED_S)
    assert good["warmup_times_s"] == list(WARMUP_S)
    assert good["phase_times_s"].keys() == {"forward", "backward"}
    assert good["summary"]["n"] == 4
    assert good["summary"]["mean_s"] == pytest.approx(0.1532)
    assert good["tokens_per_s"] == pytest.approx(4 * 128 / 0.1532)
    assert good["in_force"]["parameter_dtype"] == "float32"
    assert document["runs"][1]["peak_allocated_bytes"] is None


def test_json_without_results_is_still_the_document() -> None:
    document = json.loads(to_json(SessionState()))
    assert (document["schema"], document["runs"]) == (1, [])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_no_number_in_the_json_is_not_a_number(bad: float) -> None:
    events = [*session_start([a_spec()]), *steps(0, (bad,)), cell_end(0)]
    document = json.loads(to_json(state_of(events)), parse_constant=no_constants)
    assert document["runs"][0]["warmup_times_s"] == [None]


@given(st.lists(any_event, max_size=20))
def test_any_session_exports(events: list[Event]) -> None:
    state = state_of(events)
    document = json.loads(to_json(state), parse_constant=no_constants)
    assert len(document["runs"]) == len(parsed_csv(state)) == len(state.finished_cells)


def test_csv_has_a_row_per_finished_cell() -> None:
    good, oom, failed = parsed_csv(state_of(mixed_session()))
    assert (good["cell"], good["status"], good["size"], good["pass"]) == ("0", "ok", "small", "forward+backward")
    assert [float(t) for t in good["step_times_s"].split(";")] == list(MEASURED_S)
    assert [float(t) for t in good["phase_forward_times_s"].split(";")] == [t / 3 for t in MEASURED_S]
    assert float(good["mean_s"]) == pytest.approx(0.1532)
    assert (good["in_force_matmul_precision"], good["torch"]) == ("highest", "2.13.0")
    assert (oom["status"], oom["mean_s"], oom["warmup_times_s"], oom["step_times_s"]) == ("oom", "", "0.9", "")
    assert failed["error"].startswith("the process crashed")


def test_csv_has_the_verdicts_and_what_they_rest_on() -> None:
    good, oom, _ = parsed_csv(state_of(mixed_session()))
    assert good["verdicts"] == "too-few-steps"
    assert ";too-few-steps: " in good["verdict_evidence"]
    assert good["verdict_advice"].startswith("too-few-steps: ")
    assert "drifting" in good["not_observable"].split(";")
    assert good["interval_low_s"] == "", "4 steps fix no interval"
    assert float(good["flops_per_s"]) > 0
    assert (oom["verdicts"], oom["verdict_evidence"], oom["interval_low_s"]) == ("", "", "")


def test_a_list_of_texts_can_be_split_whatever_the_texts_hold() -> None:
    breaks = ("print; a side effect (model.py:3)", "a;b")
    events = [
        *session_start([a_spec()]),
        *cell_start(0),
        ModelPrepared(at=START, cell=0, compile_s=1.0, graph_breaks=breaks),
        *steps(0, WARMUP_S, MEASURED_S),
        cell_end(0),
    ]
    state = state_of(events)
    (row,) = parsed_csv(state)
    assert row["graph_breaks"].split(";") == ["print, a side effect (model.py:3)", "a,b"]
    (run,) = json.loads(to_json(state))["runs"]
    assert run["graph_breaks"] == list(breaks)
    names = list(run["verdict_evidence"])
    assert [field.partition(":")[0] for field in row["verdict_evidence"].split(";")] == names


def test_csv_without_results_is_its_header() -> None:
    text = to_csv(SessionState())
    assert text.count("\n") == 1
    assert text.startswith("cell,status,size,")


@pytest.mark.parametrize("line_end", ["\n", "\r", "\r\n"])
def test_csv_quotes_an_error_of_several_lines(line_end: str) -> None:
    error = 'first, "quoted"{}second'
    events = [*session_start([a_spec()], environment=None), cell_end(0, "failed", error=error.format(line_end))]
    (row,) = parsed_csv(state_of(events))
    assert row["error"] == error.format("\n")
