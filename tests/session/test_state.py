"""Session state as a fold over events: the same live and replayed."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.config.spec import CellSpec, recorded_spec
from cs336_tui.events import events as ev
from cs336_tui.events.environment import Environment, GpuSample, HostSample
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.events.prediction import report_key
from cs336_tui.events.reports import MemoryReport
from cs336_tui.export.record import document_of
from cs336_tui.session import state as state_module
from cs336_tui.session.load import load
from cs336_tui.session.state import DEVICE_HISTORY, OUTPUT_LIMIT, SessionState, fold
from cs336_tui.stats.summaries import summarize
from tests.made_kernels import a_kernel_report
from tests.samples import (
    ENVIRONMENT,
    MEASURED_S,
    START,
    WARMUP_S,
    a_spec,
    cell_end,
    cell_start,
    mixed_session,
    ranks_session,
    session_start,
    state_of,
    steps,
    write_log,
)
from tests.strategies import any_event


@given(st.lists(any_event, max_size=30))
def test_no_order_of_events_breaks_the_state(events: list[ev.Event]) -> None:
    state = state_of(events)
    document_of(state)
    assert state.steps_done >= 0
    assert state.current is None or state.current in state.cells
    assert all(cell.status == "running" for cell in state.running_cells)


def test_a_cell_goes_from_queued_over_running_to_its_end() -> None:
    state = state_of(session_start([a_spec(), a_spec(precision="tf32")]))
    cell = state.cells[0]
    assert (cell.status, state.running_cell, state.steps_total, state.steps_done) == ("queued", None, 12, 0)
    fold(cell_start(0), state)
    assert (cell.status, cell.stage, state.running_cell) == ("running", "building", cell)
    assert cell.pid == 1000
    assert cell.in_force is not None
    fold(steps(0, WARMUP_S, MEASURED_S[:3]), state)
    assert (cell.stage, cell.steps_done, state.steps_done, cell.is_over) == ("measuring", 5, 5, False)
    state.apply(cell_end(0, peak_allocated_bytes=7))
    assert (cell.status, cell.is_over, state.current) == ("ok", True, None)
    assert state.steps_done == 6, "a cell that is over counts as all of its steps, so that progress reaches its total"
    assert state.finished_cells == (cell,)


def test_a_cell_that_ended_early_counts_no_step_that_never_ran() -> None:
    events = [*session_start([a_spec(), a_spec(precision="tf32")]), *cell_start(0)]
    state = state_of([*events, cell_end(0, "failed", stage="compiling")])
    assert (state.steps_done, state.steps_total) == (0, 6)
    state = state_of([*events, *steps(0, WARMUP_S, MEASURED_S[:1]), cell_end(0, "killed", stage="measuring", step=1)])
    assert (state.steps_done, state.steps_total) == (3, 9)


def test_warmup_and_measured_steps_are_kept_apart() -> None:
    begun = [*session_start([a_spec()]), *cell_start(0)]
    assert state_of([*begun, *steps(0, WARMUP_S)]).cells[0].summary(1) is None
    cell = state_of([*begun, *steps(0, WARMUP_S, MEASURED_S)]).cells[0]
    assert cell.warmup_times_s == list(WARMUP_S)
    assert cell.step_times_s == list(MEASURED_S)
    assert cell.times.warmup_phases_s["forward"] == [t / 3 for t in WARMUP_S]
    assert cell.phase_times_s["forward"] == [t / 3 for t in MEASURED_S]
    assert cell.times.host_s == [t / 10 for t in MEASURED_S]
    summary = cell.summary(1)
    assert (summary.n, cell.running.n) == (4, 4)


def test_the_sessions_ddof_is_used() -> None:
    for ddof in (0, 1):
        events = [*session_start([a_spec()], ddof), *cell_start(0), *steps(0, (), MEASURED_S), cell_end(0)]
        (run,) = document_of(state_of(events)).runs
        assert run.summary.ddof == ddof


def test_events_of_unknown_cells_change_nothing() -> None:
    state = state_of(session_start([a_spec()]))
    output = ev.ChildOutput(at=1.0, cell=9, text="x")
    fold((ev.CellStarted(at=1.0, cell=9), cell_end(9), output, *steps(9, (1.0,))), state)
    assert list(state.cells) == [0]
    assert state.cells[0].status == "queued"
    assert state.current is None


def test_a_second_run_continues_the_session() -> None:
    state = state_of(mixed_session())
    assert state.ended is not None
    state.apply(ev.CellsQueued(at=1.0, first=4, specs=(a_spec(),), command="cs336-tui bench --size tiny"))
    assert state.ended is None
    assert list(state.cells) == [0, 1, 2, 3, 4]
    assert state.commands[-1] == "cs336-tui bench --size tiny"


def test_device_samples_know_the_cell_that_ran() -> None:
    state = state_of(session_start([a_spec()]))
    sample = ev.DeviceSampled(at=1.0, host=HostSample(cpu=0.5))
    state.apply(sample)
    fold((*cell_start(0), sample, cell_end(0), sample), state)
    assert [cell for _, cell in state.devices] == [None, 0, None]
    for _ in range(DEVICE_HISTORY + 5):
        state.apply(sample)
    assert len(state.devices) == DEVICE_HISTORY


def test_output_is_kept_to_a_limit_its_end_last() -> None:
    state = state_of(session_start([a_spec()]))
    state.apply(ev.ChildOutput(at=1.0, cell=0, text="early "))
    state.apply(ev.ChildOutput(at=1.0, cell=0, text="x" * OUTPUT_LIMIT + "last words"))
    state.apply(ev.ChildOutput(at=1.0, cell=None, text="of nobody"))
    assert len(state.cells[0].output) == OUTPUT_LIMIT
    assert state.cells[0].output.endswith("last words")
    assert [output.cell for output in state.output] == [0, 0, None]


def test_steps_without_phases_are_steps_too_and_notices_are_kept_in_order() -> None:
    state = state_of(session_start([a_spec()]))
    state.apply(ev.Notice(at=1.0, text="a"))
    state.apply(ev.StepsTimed(at=1.0, cell=0, kind="measured", first=0, times_s=(0.1, 0.2)))
    state.apply(ev.CellFinished(at=2.0, cell=0, status="ok"))
    state.apply(ev.Notice(at=3.0, text="b"))
    (run,) = document_of(state).runs
    assert (run.step_times_s, run.phase_times_s, run.host_times_s) == ((0.1, 0.2), {}, ())
    assert ([notice.text for notice in state.notices], state.last_at) == (["a", "b"], 3.0)


def two_running() -> SessionState:
    """Cells 0 and 1 take turns, cell 2 waits."""
    state = state_of([*session_start([a_spec(), a_spec(precision="tf32"), a_spec(batch_size=8)])])
    fold((*cell_start(0), *cell_start(1)), state)
    return state


def test_two_cells_may_run_at_once_and_the_one_started_last_is_the_current_one() -> None:
    state = two_running()
    assert [cell.cell for cell in state.running_cells] == [0, 1]
    assert state.running_cell is state.cells[1]
    for first, (of_a, of_b) in enumerate(zip(MEASURED_S, reversed(MEASURED_S), strict=True)):
        for cell, time_s in ((0, of_a), (1, of_b)):
            state.apply(ev.StepsTimed(at=1.0, cell=cell, kind="measured", first=first, times_s=(time_s,)))
    assert state.cells[0].step_times_s == list(MEASURED_S)
    assert state.cells[1].step_times_s == list(reversed(MEASURED_S))
    state.apply(cell_end(1))
    assert (state.current, [cell.cell for cell in state.running_cells]) == (0, [0])
    state.apply(cell_end(0))
    assert (state.current, state.running_cells) == (None, ())


def test_device_samples_are_of_all_cells_that_run_and_of_the_last_that_did() -> None:
    state = two_running()
    sample = ev.DeviceSampled(at=1.0, host=HostSample(), gpu=GpuSample(sm_clock_mhz=1000))
    for cell in (0, 1):
        state.apply(ev.StageChanged(at=1.0, cell=cell, stage="measuring"))
    state.apply(sample)
    state.apply(cell_end(1))
    state.apply(sample)
    assert [state.cells[cell].surroundings.samples for cell in (0, 1, 2)] == [2, 1, 0]
    state.apply(cell_end(0))
    state.apply(ev.DeviceSampled(at=2.0, host=HostSample(), gpu=GpuSample(sm_clock_mhz=700)))
    assert [state.cells[cell].surroundings.samples for cell in (0, 1, 2)] == [2, 1, 0]
    state.apply(ev.CellStarted(at=3.0, cell=2))
    assert [cell.cell for cell, _ in state.surrounded()] == [2], "the next cell's samples are not the last ones'"


def test_the_clock_after_a_cell_that_no_sample_fell_into_is_that_of_the_next_sample() -> None:
    state = two_running()
    fold((cell_end(0), cell_end(1)), state)
    for clock in (900, 300):
        state.apply(ev.DeviceSampled(at=2.0, host=HostSample(), gpu=GpuSample(sm_clock_mhz=clock)))
    assert [state.cells[cell].surroundings.clock_after_mhz for cell in (0, 1, 2)] == [900, 900, None]


@pytest.mark.parametrize(
    ("event", "left"),
    [
        (ev.SessionEnded(at=1.0, reason="interrupted"), []),
        (ev.SessionResumed(at=1.0, app="0.1.0"), []),
        (ev.CellRequeued(at=1.0, cell=1), [0]),
        (ev.CellSkipped(at=1.0, cell=1, reason="why not"), [0]),
    ],
)
def test_nothing_runs_after_the_end_nor_a_cell_that_waits_again_or_is_skipped(event: ev.Event, left: list[int]) -> None:
    state = two_running()
    state.apply(event)
    assert [cell.cell for cell in state.running_cells] == [cell.cell for cell, _ in state.surrounded()] == left
    assert state.current == (left[0] if left else None)
    if isinstance(event, ev.SessionResumed):
        assert list(state.waiting) == [0, 1, 2]
        assert [(state.cells[cell].status, len(state.cells[cell].earlier)) for cell in (0, 1)] == [("queued", 1)] * 2


def on_devices(*uuids: str | None) -> Environment:
    """A machine with a CPU and these GPUs."""
    cpu, gpu = ENVIRONMENT.devices
    gpus = [msgspec.structs.replace(gpu, name=f"cuda:{index}", uuid=uuid) for index, uuid in enumerate(uuids)]
    return msgspec.structs.replace(ENVIRONMENT, devices=(cpu, *gpus))


@pytest.mark.parametrize(
    ("device", "uuids", "sampled", "why_not"),
    [
        ("cuda:0", ["GPU-0", "GPU-1"], "GPU-0", None),
        ("cuda:1", ["GPU-0", "GPU-1"], "GPU-0", "another GPU than cuda:1 was sampled, GPU-0"),
        ("cuda:0", ["GPU-0"], "GPU-1", "another GPU than cuda:0 was sampled, GPU-1"),
        ("cuda:0", ["GPU-5"], "MIG-5", None),  # CUDA's UUID of an instance has no prefix of its own
        ("cuda:0", [None], "GPU-0", None),
        ("cuda:0", ["GPU-0"], None, None),
        ("cuda:0", [None, "GPU-1"], "GPU-0", "whether cuda:0 was sampled is not known"),
        ("cuda:1", [None], "GPU-0", "whether cuda:1 was sampled is not known"),
        ("cuda:0", [], "GPU-0", "whether cuda:0 was sampled is not known"),
        ("cuda:0", None, "GPU-0", "whether cuda:0 was sampled is not known"),  # the machine was not read yet
        ("cpu", ["GPU-0"], "GPU-0", ""),
        ("mps", ["GPU-0"], "GPU-0", ""),
    ],
)
def test_a_cell_takes_what_is_of_its_own_gpu(
    device: str, uuids: list[str | None] | None, sampled: str | None, why_not: str | None, tmp_path: Path
) -> None:
    """Live and from its log alike; `why_not` is None where the GPU is the cell's."""
    gpu = GpuSample(uuid=sampled, sm_clock_mhz=1000, clock_reasons=(), energy_j=1.0, other_processes=())
    sample = ev.DeviceSampled(at=START + 11, host=HostSample(load_1m=2.0), gpu=gpu)
    machine = None if uuids is None else on_devices(*uuids)
    events = [
        *session_start([a_spec(device=device)], environment=machine), *cell_start(0),
        ev.StageChanged(at=START + 11, cell=0, stage="measuring"), sample, cell_end(0), sample,
    ]  # fmt: skip
    for state in (state_of(events), load(write_log(tmp_path / "s.jsonl", events))):
        found = state.cells[0].surroundings
        own = why_not is None
        assert (found.samples, found.load_1m) == (1, 2.0)
        assert (found.reasons_known, found.others_known, bool(found.energies)) == (own, own, own)
        assert (found.clock_after_mhz, found.lowest_clock_mhz) == ((1000, 1000) if own else (None, None))
        assert found.why == (why_not or None)


def test_a_report_that_is_made_again_hides_no_earlier_one() -> None:
    report = a_kernel_report()
    state = SessionState()
    for number, content in enumerate((report, None)):
        state.apply(ev.ReportStarted(at=START, report=number, kind="kernels", spec=report.spec))
        if content:
            state.apply(ev.ReportFinished(at=START, report=number, status="ok", content=content))
    assert state.content_of(KernelReport, report.spec) == report
    assert state.content_of(MemoryReport, report.spec) is None
    assert state.content_of(KernelReport, a_spec(seed=report.spec.seed, d_model=report.spec.d_model * 2)) is None


def test_reports_are_found_in_a_time_that_grows_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace of a thousand devices has as many reports, and each cell asks for its own."""
    asked = 0

    def counted(spec: CellSpec) -> CellSpec:
        nonlocal asked
        asked += 1
        return report_key(spec)

    monkeypatch.setattr(state_module, "report_key", counted)
    specs = [recorded_spec("trace.json", f"cuda:{number}") for number in range(100)]
    state = fold(ev.ReportStarted(at=1.0, report=n, kind="kernels", spec=spec) for n, spec in enumerate(specs))
    for number, spec in enumerate(specs):
        found = state.report_of("kernels", spec)
        assert found
        assert found.report == number
        assert state.content_of(KernelReport, spec) is None
    assert asked <= 4 * len(specs)


def test_times_of_ranks_are_kept_apart_by_kind_and_their_skew_is_known_with_and_without_the_end() -> None:
    cell = state_of(ranks_session(4, is_over=False)).cells[1]
    assert [len(times_s) for times_s in cell.times.rank_s] == [3] * 4
    assert [len(times_s) for times_s in cell.times.warmup_rank_s] == [1] * 4
    assert (cell.skew.n, cell.skew.mean) == (3, pytest.approx((3 + 3 + 13) / 3 * 1e-3))
    state = state_of([*ranks_session(4, is_over=False), cell_end(1, skew=summarize([0.5, 0.7]))])
    assert (state.cells[1].skew.n, state.cells[1].skew.mean) == (2, pytest.approx(0.6))
    assert state.cells[0].skew.n == 0
