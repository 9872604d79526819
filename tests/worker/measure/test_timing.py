"""Timing with a stand-in of an asynchronous device: synchronisation and reported times."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from cs336_tui.events import events as told_of
from cs336_tui.worker.measure import timing
from cs336_tui.worker.measure.reporter import CellReporter
from cs336_tui.worker.measure.timing import (
    Clock,
    EventStamp,
    HostStamp,
    MetalStamp,
    StepTimer,
    WindowBroken,
    time_window,
)
from cs336_tui.worker.workload.passes import Results


class Device:
    """Work is queued in milliseconds and done only when waited for; events note how far the queue had come."""

    def __init__(self) -> None:
        self.queued_ms = 0.0
        self.done_ms = 0.0
        self.waits: list[float] = []

    def work(self, milliseconds: float) -> None:
        self.queued_ms += milliseconds

    def wait(self) -> None:
        self.done_ms = self.queued_ms
        self.waits.append(self.done_ms)

    def event(self) -> Event:
        return Event(self)

    def clock(self, mark: type[EventStamp] = EventStamp) -> Clock:
        def new_mark() -> EventStamp:
            event = self.event()
            return mark(event, event.record)

        return Clock(new_mark, self.wait)


class Event:
    def __init__(self, device: Device) -> None:
        self._device = device
        self.at_ms: float | None = None
        self.asked = 0

    def record(self) -> None:
        self.at_ms = self._device.queued_ms
        self.asked = 0

    def elapsed_time(self, end_event: Event) -> float:
        assert self.at_ms is not None
        assert end_event.at_ms <= self._device.done_ms, "asked before the device got there"
        end_event.asked += 1
        assert end_event.asked == 1, "some releases of torch hang here"
        if end_event.at_ms < self.at_ms:
            raise RuntimeError("End event was not recorded after start event")
        return end_event.at_ms - self.at_ms


class Step:
    """Queues the given milliseconds for each phase, `before` in `prepare`, `afterwards` in `clear`."""

    prepares = False
    results = Results(None, None)

    def __init__(
        self,
        device: Device,
        phases_ms: dict[str, float],
        *,
        before_ms: float = 0.0,
        afterwards_ms: float = 0.0,
        back_to_back: bool = False,
    ) -> None:
        self.phases = tuple(phases_ms)
        self.back_to_back = back_to_back
        self.prepare: Callable[[], None] = partial(device.work, before_ms)
        self.clear: Callable[[], None] = partial(device.work, afterwards_ms)
        self._device = device
        self._phases_ms = phases_ms

    def run(self, phase: str) -> None:
        self._device.work(self._phases_ms[phase])


def always(_number: int) -> bool:
    return True


def test_phases_are_device_time_and_the_device_is_waited_for_only_around_the_step() -> None:
    device = Device()
    timed = StepTimer(Step(device, {"forward": 30.0, "loss": 0.0, "backward": 50.0}), device.clock()).time()
    assert timed.phases_s == pytest.approx((0.03, 0.0, 0.05))
    assert device.waits == [0.0, 80.0]
    assert 0 < timed.host_s <= timed.total_s < 0.03, "the host only queued the work"
    # On a CPU the host's clock serves for everything.
    timed = StepTimer(Step(device, {"forward": 1.0, "backward": 1.0}), Clock(HostStamp, device.wait)).time()
    assert sum(timed.phases_s) == pytest.approx(timed.host_s)
    assert timed.host_s <= timed.total_s


def test_the_first_time_stamp_is_taken_before_the_hosts_interval_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of whose time nothing but the stamps takes any, a second each."""
    host_s = 0.0

    class SlowToTake(HostStamp):
        def take(self) -> None:
            nonlocal host_s
            host_s += 1.0
            super().take()

    monkeypatch.setattr(timing, "perf_counter", lambda: host_s)
    device = Device()
    timed = StepTimer(Step(device, {"forward": 30.0, "backward": 50.0}), Clock(SlowToTake, device.wait)).time()
    assert (timed.total_s, timed.host_s) == (2.0, 2.0)


def test_what_is_prepared_has_been_waited_for_before_the_step_starts() -> None:
    device = Device()
    timer = StepTimer(Step(device, {"backward": 50.0}, before_ms=30.0, afterwards_ms=5.0), device.clock())
    for already in (0.0, 85.0):
        assert timer.time().phases_s == pytest.approx((0.05,))
        assert device.waits[-2:] == [already + 30.0, already + 80.0]


def test_a_window_is_waited_for_once_and_leaves_out_what_lies_between_steps_but_of_those_back_to_back() -> None:
    device = Device()
    times = time_window(Step(device, {"forward": 30.0, "backward": 50.0}), device.clock(), 4, always)
    assert device.waits == [0.0, 320.0]
    assert [time.total_s for time in times] == pytest.approx([0.08] * 4)
    assert [time.phases_s for time in times] == [pytest.approx((0.03, 0.05))] * 4
    assert all(0 < time.host_s < 0.03 for time in times)
    assert all(len(time.host_phases_s) == 2 and min(time.host_phases_s) > 0 for time in times)
    device = Device()
    step = Step(device, {"backward": 50.0}, before_ms=30.0, afterwards_ms=5.0)
    times = time_window(step, device.clock(), 3, always)
    assert [time.total_s for time in times] == pytest.approx([0.05] * 3)
    assert device.waits[-1] == 3 * 85.0
    device = Device()
    step = Step(device, {"zero_grad": 1.0, "forward": 30.0}, afterwards_ms=2.0, back_to_back=True)
    times = time_window(step, device.clock(), 5, always)
    # Whatever is queued after a step counts with the next one; only the last one's lies outside.
    assert sum(time.total_s for time in times) == pytest.approx(5 * 0.031 + 4 * 0.002)
    assert times[1].phases_s == pytest.approx((0.003, 0.03))


def test_the_hosts_time_in_each_phase_is_told_where_the_device_has_its_own_clock() -> None:
    def told(clock: Clock, phases: dict[str, float]) -> list[told_of.StepsTimed]:
        events: list[told_of.Event] = []
        step = SimpleNamespace(phases=tuple(phases), logits_dtype=torch.float32)
        timed = StepTimer(Step(Device(), phases), clock).time()
        CellReporter(0, events.append).steps_ended(step, "measured", 0, [timed])  # type: ignore[arg-type]
        return [event for event in events if isinstance(event, told_of.StepsTimed)]

    two, one = {"forward": 30.0, "backward": 50.0}, {"forward": 30.0}
    device = Device()
    (event,) = told(device.clock(), two)
    assert event.host_phases_s.keys() == two.keys()
    assert sum(times[0] for times in event.host_phases_s.values()) == pytest.approx(event.host_s[0])
    assert told(device.clock(), one)[0].host_phases_s == {}
    assert told(Clock(HostStamp, device.wait), two)[0].host_phases_s == {}


def test_a_window_that_is_stopped_tells_the_steps_so_far() -> None:
    device = Device()
    asked: list[int] = []

    def twice(number: int) -> bool:
        asked.append(number)
        return number < 2

    times = time_window(Step(device, {"forward": 30.0}), device.clock(), 5, twice)
    assert asked == [0, 1, 2]
    assert len(times) == 2
    assert device.waits == [0.0, 60.0]


def test_a_window_in_which_a_step_fails_tells_the_steps_before_it() -> None:
    device = Device()
    step = Step(device, {"forward": 30.0})
    run, calls = step.run, []

    def fail_at_the_third(phase: str) -> None:
        calls.append(phase)
        if len(calls) == 3:
            raise MemoryError("no room")
        run(phase)

    step.run = fail_at_the_third
    with pytest.raises(WindowBroken) as broken:
        time_window(step, device.clock(), 5, always)
    assert [time.total_s for time in broken.value.times] == pytest.approx([0.03] * 2)
    assert isinstance(broken.value.error, MemoryError)


def test_metals_misordered_moments_count_as_nothing() -> None:
    device = Device()
    clock = device.clock(MetalStamp)
    first, second = clock.mark(), clock.mark()
    device.work(2.0)
    first.take()
    device.queued_ms -= 1.0
    second.take()
    clock.synchronize()
    device.done_ms = 10.0
    assert first.until(second) == 0.0
    assert first.host_s < second.host_s
