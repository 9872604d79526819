"""Two cells in turns, run by a real bench in real children: the log, and rounds that are disturbed."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from cs336_tui.config.order import check_sides, rough_peak_bytes, rounds_of
from cs336_tui.config.spec import CellSpec, SpecError
from cs336_tui.events.environment import DeviceInfo
from cs336_tui.events.events import CellsQueued, CellStarted, DeviceSampled, StepsTimed
from cs336_tui.events.prediction import Prediction
from cs336_tui.runner.cells import BOTH_IN_MEMORY, CellRunner, in_turns_bytes, kept_bytes, run_rounds, why_not_tried
from cs336_tui.runner.child import InTurns
from cs336_tui.runner.device.sampler import DeviceSampler
from cs336_tui.runner.launcher import Launcher
from cs336_tui.runner.pipes import StopSignal, beside
from cs336_tui.runner.prediction_cache import PredictionCache
from cs336_tui.runner.predictor import Predictor, SessionPredictions
from cs336_tui.runner.queue import CellQueue
from cs336_tui.runner.trust import Trust
from cs336_tui.session.load import load
from cs336_tui.session.log import LogReader, SessionRecorder
from cs336_tui.session.state import SessionState, fold
from cs336_tui.worker.ranks import Place
from tests.made_predictions import MadePredictor, made_prediction
from tests.runner.running import Running, Start
from tests.samples import ENVIRONMENT
from tests.watching import PATIENCE_S, Watch, ample_timeout_s, endless_spec, is_gone, small_spec

WIDER = {"d_ff": 96}


@pytest.fixture
def begin(start: Start) -> Start:
    """Begins rounds on a bench of its own."""

    def made(a: CellSpec, b: CellSpec, *, rounds: int = 2) -> Running:
        running = start()
        running.on_a_thread(running.bench.run_ab, a, b, rounds, "ab command")
        return running

    return made


def statuses(state: SessionState) -> list[str]:
    return [cell.status for cell in state.cells.values()]


def test_rounds_are_ordinary_cells_of_the_session_and_replay(begin):
    a, b = small_spec(measure_steps=4), small_spec(measure_steps=4, **WIDER)
    running = begin(a, b)
    state = running.finish()
    assert statuses(state) == ["ok"] * 4
    events = list(LogReader(running.bench.log_path))
    (queued,) = [event for event in events if isinstance(event, CellsQueued)]
    assert (queued.specs, queued.repeats, queued.command) == ((a, b, a, b), (1, 1, 2, 2), "ab command")
    began = [event for event in events if isinstance(event, CellStarted)]
    assert [event.cell for event in began] == [0, 1, 2, 3]
    assert began[0].pid == began[1].pid != began[2].pid == began[3].pid
    order = [e.cell for e in events if isinstance(e, StepsTimed) and e.kind == "measured" for _ in e.times_s]
    assert order == [0, 1, 1, 0, 0, 1, 1, 0, 3, 2, 2, 3, 3, 2, 2, 3], "who begins a round alternates"
    again, loaded = fold(events), load(running.bench.log_path)
    for number, cell in state.cells.items():
        assert len(cell.step_times_s) == 4
        assert cell.num_params == again.cells[number].num_params
        for other in (again.cells[number], loaded.cells[number]):
            assert other.step_times_s == cell.step_times_s
            assert other.warmup_times_s == cell.warmup_times_s
            assert other.phase_times_s == cell.phase_times_s
            assert other.finished == cell.finished


def test_sides_with_a_process_each_are_rounds(start):
    running = start()
    left_s = iter([1e6, 1e6, 0.0])
    sides = small_spec(), small_spec(**WIDER)
    running.bench.run_apart(*sides, "gate command", lambda: next(left_s))
    state = running.watch.state
    assert statuses(state) == ["ok"] * 4
    assert len({cell.pid for cell in state.cells.values()}) == 4
    assert [(cell.repeat, cell.queued_in_turns) for cell in state.cells.values()] == [(1, True)] * 2 + [(2, True)] * 2
    assert state.commands == ["gate command"]


@pytest.mark.parametrize(("first", "order"), [(0, [0, 1, 0, 1, 0, 1, 1, 1]), (1, [1, 0, 1, 0, 1, 0, 1, 1])])
def test_steps_of_both_sides_alternate_until_one_is_over(monkeypatch, first, order):
    taken: list[int] = []

    def steps(number: int, cell: int, _emit: object, asked: Callable[[], bool]) -> None:
        for _ in range(number):
            assert not asked()
            taken.append(cell)

    monkeypatch.setattr("cs336_tui.worker.worker_entry.run_cell", steps)
    ends = Pipe()
    ends[1 - first].send_bytes(b".")
    copies = [tuple(Connection(os.dup(end.fileno())) for end in ends) for _ in ends]  # as processes have them
    for end in ends:
        end.close()

    def side(rank: int) -> None:
        InTurns((0, 1), (3, 5), copies[rank])(None, lambda: False, place=Place(rank=rank, ranks=2))
        copies[rank][rank].close()

    with beside("other", lambda _: side(1)):
        side(0)
    assert taken == order


def test_a_side_that_is_killed_leaves_the_other_one_to_itself(start):
    running = start()
    left_s = iter([1e6, 0.0])
    sides = small_spec(measure_steps=1000), small_spec(measure_steps=1000, **WIDER)
    running.on_a_thread(running.bench.run_apart, *sides, "gate command", lambda: next(left_s))
    running.watch.until(lambda state: len(state.cells) == 2 and all(c.step_times_s for c in state.cells.values()))
    os.kill(running.watch.state.cells[1].pid, signal.SIGKILL)
    assert statuses(running.finish()) == ["ok", "killed"]
    assert len(running.watch.state.cells[0].step_times_s) == 1000


def test_sides_with_a_process_each_are_stopped_together(start):
    running = start()
    endless = endless_spec(), endless_spec(**WIDER)
    running.on_a_thread(running.bench.run_apart, *endless, "gate command", lambda: 1e6)
    running.watch.until(lambda state: len(state.cells) == 2 and all(c.step_times_s for c in state.cells.values()))
    pids = [cell.pid for cell in running.watch.state.cells.values()]
    running.bench.cancel()
    assert statuses(running.finish()) == ["cancelled"] * 2
    assert all(map(is_gone, pids))


def test_a_and_b_may_be_the_same_and_a_round_shorter_than_the_sampling_interval_has_a_sample(start, monkeypatch):
    monkeypatch.setattr("cs336_tui.runner.device.sampler.SAMPLE_AFTER_S", PATIENCE_S)  # however busy this machine is
    running = start(device_interval_s=60)
    running.turns(small_spec(), small_spec(), 2)
    running.bench.close()
    assert statuses(running.watch.state) == ["ok"] * 4
    assert [cell.repeat for cell in running.cells] == [1, 2, 3, 4]
    log = LogReader(running.bench.log_path)
    kinds = [type(event).__name__ for event in log if isinstance(event, CellStarted | DeviceSampled)]
    after_first = kinds[2 : kinds.index("CellStarted", 2)]
    assert "DeviceSampled" in after_first
    assert kinds[-1] == "DeviceSampled"


@pytest.mark.parametrize(
    ("number", "status", "word"), [(signal.SIGKILL, "killed", "SIGKILL"), (signal.SIGSEGV, "failed", "SIGSEGV")]
)
def test_a_child_that_dies_ends_both_cells_and_the_next_round_runs(begin, number, status, word):
    running = begin(endless_spec(), endless_spec(**WIDER))
    first = running.once_measuring(0, 1)
    os.kill(first, number)
    running.watch.until(lambda state: len(state.cells[3].step_times_s) > 3)
    state = running.watch.state
    for cell in (state.cells[0], state.cells[1]):
        assert cell.status == status
        assert word in cell.finished.error
        assert cell.finished.stage == "measuring"
        assert cell.finished.step == len(cell.step_times_s) > 3
    running.bench.cancel()
    assert statuses(running.finish()) == [status, status, "cancelled", "cancelled"]


def test_a_hang_ends_at_the_timeout(begin):
    running = begin(small_spec(), small_spec(), rounds=1)
    timeout_s = running.bench.timeout_s = ample_timeout_s(running.finish().cells[0], at_least=3.0)
    running.on_a_thread(running.bench.run_ab, endless_spec(), endless_spec(), 1)
    os.kill(running.once_measuring(2, 3), signal.SIGSTOP)
    state = running.finish()
    assert statuses(state) == ["ok", "ok", "killed", "killed"]
    assert all(f"timeout of {timeout_s:g} s" in state.cells[cell].finished.error for cell in (2, 3))


def test_a_stop_ends_it_within_two_seconds_and_keeps_what_was_timed_of_both(begin):
    running = begin(endless_spec(), endless_spec())
    pid = running.once_measuring(0, 1)
    asked_at = time.monotonic()
    assert running.bench.cancel()
    state = running.finish()
    assert time.monotonic() - asked_at < 2.0
    assert statuses(state) == ["cancelled"] * 4
    assert is_gone(pid)
    a, b = (state.cells[cell].step_times_s for cell in (0, 1))
    assert abs(len(a) - len(b)) <= 1
    assert state.cells[2].finished.error == "not started: the run was stopped"


def test_a_side_without_memory_is_named_and_later_rounds_are_not_tried(begin):
    state = begin(small_spec(), small_spec(d_model=1024, vocab_size=2**30), rounds=3).finish()
    assert statuses(state) == ["failed", "oom", *["skipped"] * 4]
    assert BOTH_IN_MEMORY in state.cells[1].finished.error
    assert state.cells[0].finished.error.startswith("B ")
    assert state.cells[2].skipped_because == "B ran out of memory in round 1"
    assert not state.waiting


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"threads": 2}, ["threads 1 and 2", "A and B need the same"]),
        ({"threads": None}, ["threads 1 and torch's own"]),
        ({"measure_steps": 4}, ["measure steps 3 and 4", "pairs"]),
        ({"sync": "pipelined"}, ["sync pipelined of B", "each-step"]),
        ({"warmup_auto": True}, ["warmup steps auto of B", "fixed"]),
        ({"steps_auto": 0.01}, ["measure steps auto of B", "fixed"]),
        ({"steps_for": 1.0}, ["measure steps 3 and 1s:3", "pairs"]),
        ({"timer": "do_bench"}, ["timer do_bench of B", "timer step"]),
        ({"ranks": 2}, ["ranks 1 and 2", "A and B need the same"]),
    ],
)
def test_what_cannot_take_turns_is_refused_before_anything_runs(changes, says):
    with pytest.raises(SpecError) as refused:
        check_sides(small_spec(), small_spec(**changes))
    for part in says:
        assert part in str(refused.value)


def test_two_that_fit_alone_but_not_together_are_refused(launcher: Launcher, tmp_path: Path) -> None:
    predictor = Predictor(launcher, cache=PredictionCache(tmp_path / "predictions"))
    a = small_spec(pass_="train-step")
    b = small_spec(pass_="forward+backward", **WIDER)
    found: list[Prediction] = []
    with closing(predictor):
        trained, other = predictor.predict([a, b])
    assert kept_bytes(trained) >= 16 * trained.num_params, "parameters, gradients and two moments in fp32"
    assert 4 * other.num_params <= kept_bytes(other) < 8 * other.num_params, "its gradients go with the step"
    assert in_turns_bytes(trained, other) == in_turns_bytes(other, trained)
    assert in_turns_bytes(trained, other) == max(
        trained.peak_bytes + kept_bytes(other), other.peak_bytes + kept_bytes(trained)
    )
    tight, enough = (
        DeviceInfo(name="cpu", label="a CPU", precisions=("fp32",), memory_bytes=memory_bytes)
        for memory_bytes in (max(trained.peak_bytes, other.peak_bytes), in_turns_bytes(trained, other))
    )
    assert [why_not_tried([spec], tight, predictor, found.extend) for spec in (a, b)] == ["", ""]
    for first, second in ((a, b), (b, a)):
        why = why_not_tried([first, second], tight, predictor, found.extend)
        assert why.startswith("not tried: by prediction A and B together need ")
        assert " GB, and cpu has " in why
        assert why_not_tried([first, second], enough, predictor, found.extend) == ""
    assert {prediction.spec for prediction in found} == {a, b}


def test_ranks_on_a_cpu_have_its_memory_together() -> None:
    spec = small_spec(pass_="train-step", ranks=4, parallel="ddp")
    peak_bytes = rough_peak_bytes(spec)
    predictor: Any = MadePredictor(lambda asked: made_prediction(asked, peak_bytes=peak_bytes))
    tight, enough = (
        DeviceInfo(name="cpu", label="a CPU", precisions=("fp32",), memory_bytes=size)
        for size in (4 * peak_bytes - 1, 4 * peak_bytes)
    )
    assert why_not_tried([spec], tight, predictor, lambda _: None).startswith("not tried: by prediction its ranks need")
    assert why_not_tried([spec], enough, predictor, lambda _: None) == ""


def test_a_round_that_is_refused_is_said_of_both_and_starts_no_process(tmp_path: Path) -> None:
    class Refusing(CellRunner):
        def why_not(self, *specs: CellSpec) -> str:
            return f"no room for {specs[0].d_ff} and {specs[1].d_ff}" if len(specs) == 2 else ""

    watch, stop, launcher = Watch(), StopSignal(), Launcher(tmp_path)
    recorder, sampler = SessionRecorder(tmp_path, "s", watch), DeviceSampler(lambda _: None, interval_s=0)
    queue = CellQueue(recorder.record, stop)
    queue.add(rounds_of(small_spec(), small_spec(**WIDER), 3))
    predictions = SessionPredictions(launcher, recorder, lambda _: None)
    cells = Refusing(launcher, recorder, sampler, predictions, stop, Trust(), check_fit=True, nvtx=False)
    cells.environment = ENVIRONMENT
    run_rounds(queue, cells)
    stop.close()
    assert statuses(watch.state) == ["oom", "oom", *["skipped"] * 4]
    errors = {cell.finished.error for cell in watch.state.cells.values() if cell.finished}
    assert errors == {f"no room for 64 and 96 ({BOTH_IN_MEMORY})"}
    assert not watch.of(CellStarted)
