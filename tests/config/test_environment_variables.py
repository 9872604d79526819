"""Environment variables that change step times: which are recorded, and which make a number doubtful."""

import msgspec
import pytest

from cs336_tui.analysis.verdicts import judge
from cs336_tui.config.processes import KNOWN, set_variables, slowing
from cs336_tui.export.record import document_of
from cs336_tui.export.writing.provenance import in_force_notes
from cs336_tui.session.states import CellState
from cs336_tui.worker.measure.probe import probe
from tests.analysis.judging import FLAT, a_cell, events_of_cell, evidence
from tests.samples import state_of
from tests.worker.measure.cells import run, small_spec

NAMED = ("CUDA_LAUNCH_BLOCKING", "TORCH_SHOW_CPP_STACKTRACES", "NVIDIA_TF32_OVERRIDE", "CUDA_MODULE_LOADING",
         "PYTORCH_NO_CUDA_MEMORY_CACHING")  # fmt: skip


def test_only_those_that_are_set_and_of_the_device_are_recorded() -> None:
    environment = dict.fromkeys(NAMED, "1") | {"HOME": "/root", "MKL_VERBOSE": "2", "AWS_SECRET_ACCESS_KEY": "x"}
    assert set(set_variables("cuda", environment)) == {f"{name}=1" for name in NAMED}
    assert set_variables("cpu", environment) == ("MKL_VERBOSE=2", "TORCH_SHOW_CPP_STACKTRACES=1")
    assert set_variables("cpu", {}) == ()
    assert set_variables("cuda", {"CUDA_MODULE_LOADING": "x" * 10**6})[0] == "CUDA_MODULE_LOADING=" + "x" * 100
    assert len({each.name for each in KNOWN}) == len(KNOWN)


@pytest.mark.parametrize(
    ("said", "slows"),
    [
        ("CUDA_LAUNCH_BLOCKING=1", True),
        ("CUDA_LAUNCH_BLOCKING=0", False),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING=0", True),  # torch looks whether it is there
        ("CUDA_MODULE_LOADING=EAGER", False),
        ("PYTHONMALLOC=malloc", False),
        ("PYTHONMALLOC=pymalloc_debug", True),
        ("TORCH_SHOW_CPP_STACKTRACES=1", False),
        ("UNKNOWN_TO_US=1", False),
    ],
)
def test_which_make_steps_slower(said: str, *, slows: bool) -> None:
    assert bool(slowing((said,))) == slows


def with_variables(*variables: str, host_share: float = 0.95) -> CellState:
    cell = a_cell(FLAT, spec={"device": "cuda:0"}, host_share=host_share)
    cell.in_force = msgspec.structs.replace(cell.in_force, variables=variables)
    return cell


def test_a_cell_that_ran_under_one_is_doubted_and_not_called_launch_bound() -> None:
    found = judge(with_variables("CUDA_LAUNCH_BLOCKING=1", "CUDA_MODULE_LOADING=EAGER"))
    assert found.names == ("steady", "slowed-by-settings")
    assert found.is_doubted
    assert (
        "CUDA_LAUNCH_BLOCKING=1 is set: the host waits for every kernel (unset CUDA_LAUNCH_BLOCKING" in found.sentence
    )
    assert evidence(found, "launch-bound") == (None, "CUDA_LAUNCH_BLOCKING makes the host wait for every kernel")
    harmless = judge(with_variables("CUDA_MODULE_LOADING=EAGER"))
    assert harmless.names == ("steady", "launch-bound")
    assert evidence(harmless, "slowed-by-settings")[0] is False


def test_an_old_log_does_not_tell() -> None:
    cell = with_variables()
    cell.in_force = msgspec.structs.replace(cell.in_force, variables=None)
    found = judge(cell)
    (check,) = (check for check in found.checks if check.name == "slowed-by-settings")
    assert (check.holds, check.unknown_because) == (None, "not recorded")


def test_it_stands_under_the_table_and_in_every_export() -> None:
    state = state_of(events_of_cell(FLAT, spec={"device": "cuda:0"}))
    state.cells[0].in_force = with_variables("CUDA_LAUNCH_BLOCKING=1").in_force
    notes = [*in_force_notes(state, [*state.cells.values()])]
    assert any("environment variables CUDA_LAUNCH_BLOCKING=1" in note for note in notes)
    (record,) = document_of(state).runs
    assert "slowed-by-settings" in record.verdicts
    assert record.in_force.variables == ("CUDA_LAUNCH_BLOCKING=1",)
    state.cells[0].in_force = with_variables().in_force
    assert not any("environment variables" in note for note in in_force_notes(state, [*state.cells.values()]))


def test_a_cell_records_what_is_set_when_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in KNOWN:
        monkeypatch.delenv(each.name, raising=False)
    assert run(small_spec()).built.in_force.variables == ()
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert run(small_spec()).built.in_force.variables == ("OMP_WAIT_POLICY=ACTIVE",)


def test_the_machine_is_asked_for_those_that_make_steps_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor` names them, and so does a run before its first cell."""
    monkeypatch.setenv("MKL_VERBOSE", "1")
    assert "MKL_VERBOSE=1 is set: a library logs its calls, so that steps are slower; unset it" in probe().problems
    monkeypatch.setenv("MKL_VERBOSE", "0")
    assert not any("MKL_VERBOSE" in problem for problem in probe().problems)
