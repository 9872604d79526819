"""Timer do_bench against an implementation of its own of what `triton.testing.do_bench` does, and counts by time."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from cs336_tui.config import processes
from cs336_tui.config.counts import steps_in
from cs336_tui.config.spec import PASSES, Pass
from cs336_tui.config.values import PHASES
from cs336_tui.events.events import Notice
from cs336_tui.worker.measure import timing
from cs336_tui.worker.measure.timing import StepEstimate, StepTimer, WindowTiming, estimate_step, time_window
from tests.worker.measure.cells import run, small_spec
from tests.worker.measure.test_cell import notices, run_scripted
from tests.worker.measure.test_timing import Device, Step, always


class Log(Device):
    """A device that notes what is queued on it, and counts an event as a moment in the queue."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []

    def work(self, milliseconds: float, name: str = "") -> None:
        super().work(milliseconds)
        self.done.append(name)

    def wait(self) -> None:
        super().wait()
        self.done.append("wait")

    def flush(self) -> None:
        self.work(0.25, "flush")


def reference(device: Log, fn: Callable[[], None], drop_gradients: Callable[[], None], warmup: float, rep: float):
    """Calls of do_bench, in milliseconds: one call, five to estimate, a warm-up, repetitions after a flush each."""
    fn()
    device.wait()
    begin = device.queued_ms
    for _ in range(5):
        device.flush()
        fn()
    device.wait()
    estimate = (device.queued_ms - begin) / 5
    warmups, repetitions = max(1, int(warmup / estimate)), max(1, int(rep / estimate))
    for _ in range(warmups):
        fn()
    spans = []
    for _ in range(repetitions):
        drop_gradients()
        device.flush()
        start = device.queued_ms
        fn()
        spans.append((start, device.queued_ms))
    device.wait()
    return [end - start for start, end in spans]


def costs() -> Iterator[float]:
    """A device whose calls grow quicker, as caches and clocks warm up."""
    cost = 5.0
    while True:
        yield cost
        cost = 2.0 + (cost - 2.0) * 0.9


class Falling(Step):
    """A step of two phases that together take what `costs` say."""

    def __init__(self, device: Log, **options: Any) -> None:
        super().__init__(device, {"forward": 0.0, "backward": 0.0}, **options)
        self._costs = costs()
        self._log = device
        self.clear = lambda: device.done.append("drop")

    def run(self, phase: str) -> None:
        if phase == "forward":
            self._cost = next(self._costs)
        self._log.work(self._cost / 2, phase)


@pytest.mark.parametrize(("warmup", "rep"), [(25.0, 100.0), (1.0, 3.0), (0.001, 0.001), (100.0, 25.0)])
@pytest.mark.parametrize("back_to_back", [False, True])
def test_steps_are_those_that_do_bench_times(warmup: float, rep: float, back_to_back: bool) -> None:
    other = Log()
    cost = costs()
    expected = reference(other, lambda: other.work(next(cost), "fn"), lambda: None, warmup, rep)
    device = Log()
    step, clock = Falling(device, back_to_back=back_to_back), device.clock()
    step_s = estimate_step(step, clock, device.flush).step_s
    warmups, repetitions = (steps_in(for_ms / 1e3, step_s, 10**5) for for_ms in (warmup, rep))
    time_window(step, clock, warmups, always, WindowTiming(whole=True))
    drops = [place for place, name in enumerate(device.done) if name == "drop"]
    del device.done[: drops[5 + warmups] + 1]
    times = time_window(step, clock, repetitions, always, WindowTiming(device.flush, whole=True))
    assert [time.total_s * 1e3 for time in times] == pytest.approx(expected)
    assert all(time.phases_s == (time.total_s,) for time in times)
    # One wait at the end, each repetition flushed after the gradients of the one before were dropped.
    queued = [name for name in device.done if name != ""]
    assert queued[-1 - 4 * repetitions :] == [*["flush", "forward", "backward", "drop"] * repetitions, "wait"]


def test_an_estimate_counts_the_flush_and_not_the_first_run() -> None:
    device = Device()
    runs: list[float] = []
    step = Step(device, {"forward": 3.0}, before_ms=7.0, afterwards_ms=1.0)
    run_phase = step.run

    def cold_first(phase: str) -> None:
        device.work(0.0 if runs else 50.0)
        runs.append(device.queued_ms)
        run_phase(phase)

    step.run = cold_first
    assert estimate_step(step, device.clock(), lambda: device.work(2.0)).step_s == pytest.approx(0.005)
    assert len(runs) == 6
    assert estimate_step(step, device.clock(), None).step_s == pytest.approx(0.003)


def test_a_flush_is_left_out_of_every_step_of_a_window_and_ends_before_a_synchronised_one_begins() -> None:
    """Of a train-step, too, whose steps would else touch."""
    device = Device()
    step = Step(device, {"zero_grad": 1.0, "forward": 30.0}, back_to_back=True)
    times = time_window(step, device.clock(), 4, always, WindowTiming(lambda: device.work(9.0)))
    assert [time.phases_s for time in times] == [pytest.approx((0.001, 0.03))] * 4
    assert device.waits == [0.0, 160.0]
    device = Device()
    timer = StepTimer(Step(device, {"forward": 30.0}), device.clock(), lambda: device.work(9.0))
    assert timer.time().phases_s == pytest.approx((0.03,))
    assert device.waits == [9.0, 39.0], "the flush has ended when the step begins"


def estimated(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "estimate_step", lambda _step, _clock, _flush: StepEstimate(seconds, 0.5))


@pytest.mark.parametrize("pass_", PASSES)
def test_a_cell_timed_as_do_bench(pass_: Pass, monkeypatch: pytest.MonkeyPatch) -> None:
    estimated(0.01, monkeypatch)
    spec = small_spec(pass_=pass_, timer="do_bench", warmup_for=0.025, steps_for=0.1, warmup_steps=99, measure_steps=99)
    report = run(spec)
    assert report.finished.status == "ok", report.finished.error
    before = ["building", "ModelBuilt", "warm-up", "Notice", "StepsTimed"]
    assert report.outline == [*before, "measuring", "StepsTimed", "finishing", "CellFinished"]
    assert (len(report.times_s("warm-up")), len(report.times_s())) == (2, 10)
    (measured,) = report.steps("measured")
    one_phase = len(PHASES[pass_]) == 1
    assert measured.phases_s == ({PHASES[pass_][0]: measured.times_s} if one_phase else {})
    assert notices(report) == [
        "cell 8: 6 steps ran ahead, untimed: the first took 0.5 s, a step takes about 10 ms, "
        "so 2 warm-up steps for 25ms and 10 measured steps for 100ms"
    ]
    assert report.built.in_force.flushed == "none: cpu reports no L2 size"
    assert report.finished.summary.p20_s == pytest.approx(torch.tensor(report.times_s()).quantile(0.2).item())


def test_fixed_numbers_of_steps_need_no_estimate_after_which_no_start_is_cold() -> None:
    report = run(small_spec(timer="do_bench", warmup_steps=0, measure_steps=4))
    assert report.outline == ["building", "ModelBuilt", "measuring", "StepsTimed", "finishing", "CellFinished"]
    assert len(report.times_s()) == 4
    report = run(small_spec(timer="do_bench", warmup_steps=0, steps_for=0.001, measure_steps=3))
    assert any("the first step is not cold: 6 steps ran to estimate its time" in text for text in notices(report))


def test_no_step_begins_with_gradients_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `grad_to_none` has it: dropped, not set to zero, before each repetition."""
    from cs336_tui.worker.workload.passes import Step as RealStep

    held: list[bool] = []
    real = RealStep.run

    def watched(self: RealStep, phase: str) -> None:
        if phase == "forward":
            held.append(any(parameter.grad is not None for parameter in self._model.parameters()))
        real(self, phase)

    monkeypatch.setattr(RealStep, "run", watched)
    run(small_spec(timer="do_bench", warmup_steps=2, measure_steps=5, pass_="forward+backward"))
    assert held == [False] * 7


BY_TIME = {"warmup_for": 0.35, "warmup_steps": 100, "steps_for": 1.0, "measure_steps": 100}


@pytest.mark.parametrize(
    ("counts", "script", "warmup", "measured"),
    [
        (BY_TIME, [0.25] + [0.125] * 50, 2, 8),
        (BY_TIME, [4.0] * 2, 1, 1),
        ({"warmup_steps": 0, "steps_for": 10.0, "measure_steps": 6}, [0.5] * 6, 0, 6),
    ],
    ids=["until they come to their time", "a longer one once", "the most"],
)
def test_steps_run_until_they_come_to_their_time(
    counts: dict[str, Any], script: list[float], warmup: int, measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run_scripted(small_spec(**counts), script, monkeypatch)
    assert report.times_s("warm-up") == script[:warmup]
    assert report.times_s() == script[warmup : warmup + measured]
    ended = "cell 8: 6 measured steps, the limit, took 3 s of 10s; raise the most with 10s:MAX"
    assert notices(report) == ([ended] if measured == 6 else [])


def test_a_run_that_is_to_end_in_time_tells_whose_caches_it_began_with() -> None:
    folders = [run(small_spec(within=within, measure_steps=1)).built.in_force.cache_folder for within in (60, None)]
    assert folders == [processes.USERS_CACHE_FOLDER, None]


def test_a_window_by_time_is_estimated_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    estimated(0.02, monkeypatch)
    report = run(small_spec(sync="pipelined", warmup_steps=1, steps_for=0.1, measure_steps=99))
    assert (len(report.times_s("warm-up")), len(report.times_s())) == (1, 5)
    (event,) = [event for event in report.events if isinstance(event, Notice)]
    assert event.text.endswith("a step takes about 20 ms, so 5 measured steps for 100ms")
