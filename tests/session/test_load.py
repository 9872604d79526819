"""A log loaded at once gives the same state as one read event by event."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cs336_tui.events import events as ev
from cs336_tui.events.environment import GpuProcess, GpuSample, HostSample
from cs336_tui.export.record import document_of, to_json
from cs336_tui.session.load import LONGEST_PAUSE_S, Pace, load, replay
from cs336_tui.session.log import TORN, LogError, LogReader
from cs336_tui.session.state import SessionState, fold
from tests.samples import (
    ENVIRONMENT,
    HEADER,
    MEASURED_S,
    WARMUP_S,
    a_spec,
    cell_end,
    cell_start,
    mixed_session,
    session_start,
    steps,
    summary_of,
    write_log,
)
from tests.strategies import any_event, at, cells, timed_steps

MACHINE = ev.EnvironmentRead(at=1.0, environment=ENVIRONMENT)
TWO = ev.CellsQueued(at=1.0, first=0, specs=(a_spec(), a_spec(batch_size=8)))
device_samples = st.builds(
    ev.DeviceSampled,
    at=at,
    host=st.builds(HostSample, cpu=st.floats(0, 1), cpu_count=st.just(4), child_cores=st.floats(0, 4)),
    gpu=st.none()
    | st.builds(
        GpuSample,
        uuid=st.sampled_from([None, "GPU-0", "GPU-1"]),
        sm_clock_mhz=st.integers(1, 2000),
        energy_j=st.none() | st.floats(0, 1e6),
        other_processes=st.none() | st.just(()) | st.builds(GpuProcess, pid=st.integers(1, 9)).map(lambda one: (one,)),
        processes_age_s=st.none() | st.floats(0, 1e9),
    ),
)


def seen(state: SessionState) -> list[object]:
    """All values of a session that are shown to a person."""
    cells = [
        (
            number, cell.spec, cell.status, cell.skipped_because, cell.stage, cell.environment, cell.num_params,
            cell.warmup_times_s, cell.step_times_s, cell.phase_times_s, cell.times.host_s, cell.times.warmup_phases_s,
            cell.times.host_phases_s,
            cell.steps_done, cell.output, [before.step_times_s for before in cell.earlier],
        )
        for number, cell in state.cells.items()
    ]  # fmt: skip
    surroundings = [each.surroundings for cell in state.cells.values() for each in (cell, *cell.earlier)]
    return [
        cells, surroundings, list(state.waiting), list(state.running), list(state.devices), state.notices,
        state.last_at, state.ddof,
    ]  # fmt: skip


def of_running_cells(events: list[ev.Event]) -> list[ev.Event]:
    """The events without steps of cells that do not run; no real run records such steps."""
    state, kept = SessionState(), []
    for event in events:
        if not isinstance(event, ev.StepsTimed) or event.cell in state.running:
            state.apply(event)
            kept.append(event)
    return kept


a_life = st.one_of(
    any_event,
    st.builds(ev.CellStarted, at=at, cell=cells),
    st.builds(ev.StageChanged, at=at, cell=cells, stage=st.sampled_from(["warm-up", "measuring", "finishing"])),
    st.builds(ev.CellFinished, at=at, cell=cells, status=st.just("ok")),
    timed_steps(),
    device_samples,
)
"""Events of cells that run, more often than the others."""


@settings(deadline=None, max_examples=60)
@given(events=st.lists(any_event, max_size=30) | st.lists(a_life, max_size=40).map(lambda life: [MACHINE, TWO, *life]))
def test_whatever_happened(events: list[ev.Event]) -> None:
    with TemporaryDirectory() as home:
        path = write_log(Path(home) / "s.jsonl", [HEADER, *of_running_cells(events)])
        assert seen(load(path)) == seen(fold(LogReader(path)))


def test_the_summary_of_a_finished_cell_is_known_before_its_steps_are_read(tmp_path: Path) -> None:
    events = [*session_start([a_spec()]), *cell_start(0), *steps(0, WARMUP_S, MEASURED_S)]
    end = cell_end(0, warmup_steps_done=len(WARMUP_S), summary=summary_of(MEASURED_S))
    path = write_log(tmp_path / "s.jsonl", [*events, end])
    cell = load(path).cells[0]
    path.write_bytes(b"")  # whatever is said now was not read from the steps
    for ddof in (0, 1):
        expected = fold([*events, end]).cells[0].summary(ddof)
        found = cell.summary(ddof)
        assert found.std_s == pytest.approx(expected.std_s)
        assert (found.n, found.mean_s, found.median_s, found.min_s, found.max_s) == (
            expected.n, expected.mean_s, expected.median_s, expected.min_s, expected.max_s,
        )  # fmt: skip
    assert cell.running.n == len(MEASURED_S)
    assert cell.steps_done == len(WARMUP_S) + len(MEASURED_S)


def test_a_torn_last_line_is_left_out_and_damage_is_named(tmp_path: Path) -> None:
    path = write_log(tmp_path / "s.jsonl", mixed_session())
    assert to_json(document_of(load(path))) == to_json(document_of(fold(mixed_session())))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"type":"StepsTimed","at":17')
    found = load(path)
    notice = found.notices.pop()
    assert notice.text == f"s.jsonl: {TORN}"
    assert seen(found) == seen(fold(mixed_session()))
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], b'{"type":"CellSt\n', *lines[4:]]))
    with pytest.raises(LogError, match="line 5: damaged"):
        load(path)
    with pytest.raises(LogError, match="No such file"):
        load(tmp_path / "none.jsonl")


def test_steps_are_kept_when_cells_are_added_or_skipped_while_one_runs(tmp_path: Path) -> None:
    timed = [*steps(0, WARMUP_S, MEASURED_S)]
    others = [
        ev.CellsQueued(at=timed[3].at, first=1, specs=(a_spec(batch_size=8), a_spec(batch_size=16))),
        ev.CellSkipped(at=timed[3].at, cell=1, reason="why not"),
        ev.CellRequeued(at=timed[3].at, cell=1),
    ]
    events = [*session_start([a_spec()]), *cell_start(0), *timed[:4], *others, *timed[4:], cell_end(0)]
    found = load(write_log(tmp_path / "s.jsonl", events))
    assert found.cells[0].warmup_times_s == list(WARMUP_S)
    assert found.cells[0].step_times_s == list(MEASURED_S)


def interleaved(*, ended: bool = True) -> list[ev.Event]:
    """Cells 0 and 1 take turns, sampled meanwhile and afterwards; once it gets too hot. Cell 0 is over last."""
    events = [*session_start([a_spec(measure_steps=40), a_spec(measure_steps=40, precision="tf32")])]
    events += [*cell_start(0), *cell_start(1)]
    for kind, stage, count in (("warm-up", "warm-up", 4), ("measured", "measuring", 40)):
        events += [ev.StageChanged(at=100.0, cell=cell, stage=stage) for cell in (0, 1)]
        for step in range(count):
            now = 100.0 + count + step
            for cell in (0, 1):
                times_s = (0.1 + 0.05 * cell + 0.001 * (step % 3),)
                events.append(ev.StepsTimed(at=now, cell=cell, kind=kind, first=step, times_s=times_s, host_s=(0.01,)))
            events.append(sampled(now, 10.0 * step, ("hardware thermal",) if step == 7 else ()))
    first, last = ((ev.StageChanged(at=200.0, cell=cell, stage="finishing"), cell_end(cell)) for cell in (1, 0))
    return [*events, *first, sampled(200.0, 600.0), *last, sampled(202.0, 6e6)] if ended else events


def sampled(when: float, energy_j: float, reasons: tuple[str, ...] = ()) -> ev.Event:
    host = HostSample(cpu=0.9, cpu_count=4, child_cores=2.0, steal=0.01, load_1m=3.0)
    gpu = GpuSample(sm_clock_mhz=1500, clock_reasons=reasons, energy_j=energy_j, other_processes=())
    return ev.DeviceSampled(at=when, host=host, gpu=gpu)


@pytest.mark.parametrize("ended", [True, False])
def test_cells_that_take_turns_each_have_their_steps_and_samples(tmp_path: Path, ended: bool) -> None:
    found = load(write_log(tmp_path / "s.jsonl", interleaved(ended=ended)))
    for cell, least_s in ((0, 0.1), (1, 0.15)):
        times_s = found.cells[cell].step_times_s
        assert len(times_s) == 40
        assert min(times_s) == pytest.approx(least_s)
    folded = fold(interleaved(ended=ended))
    assert seen(found) == seen(folded)
    assert to_json(document_of(found)) == to_json(document_of(folded)), "judged alike, too"


def test_steps_and_surroundings_can_be_read_when_the_log_is_gone_and_by_several_threads(tmp_path: Path) -> None:
    path = write_log(tmp_path / "s.jsonl", interleaved())
    state = load(path)
    path.unlink()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: state.cells[0].surroundings.samples, range(8)))
    assert found == [41] * 8
    assert len(state.cells[1].step_times_s) == 40


def test_a_replay_waits_as_long_as_passed_between_events(tmp_path: Path) -> None:
    class Recorded(Pace):
        def wait(self, log_s: float, stop: threading.Event) -> bool:
            waits.append(log_s)
            return stop.is_set()

    waits: list[float] = []
    shown: list[ev.Event] = []
    events = [HEADER, *(ev.Notice(at=HEADER.at + after_s, text="later") for after_s in (0.5, 0.5, 99.0))]
    replay(write_log(tmp_path / "s.jsonl", events), shown.extend, pace=Recorded())
    assert waits == [0.5, LONGEST_PAUSE_S]
    assert shown == events
