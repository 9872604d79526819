"""The sampling thread: interval, end, and failures that it survives."""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from cs336_tui.events.environment import DeviceInfo, HostSample
from cs336_tui.events.events import DeviceSampled
from cs336_tui.runner.device import sampler as sampler_module
from cs336_tui.runner.device.nvml import NO_LIBRARY
from cs336_tui.runner.device.sampler import OPENING, DeviceSampler
from tests.loading import python
from tests.runner.device import fake_nvml as fake
from tests.runner.device.conftest import Install
from tests.runner.device.fake_nvml import FakeGpu, FakeNvmlLibrary

NEVER = 3600.0

Start = Callable[..., tuple[DeviceSampler, "queue.Queue[DeviceSampled]"]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a sampler that puts its events in a queue; afterwards none of its threads may be left."""
    started: list[DeviceSampler] = []

    def start(**options: object) -> tuple[DeviceSampler, queue.Queue[DeviceSampled]]:
        events: queue.Queue[DeviceSampled] = queue.Queue()
        sampler = DeviceSampler(events.put, **options)
        sampler.start()
        started.append(sampler)
        return sampler, events

    yield start
    for sampler in started:
        sampler.stop(timeout_s=10)
    assert "device-sampler" not in {thread.name for thread in threading.enumerate()}


def gpu(uuid: str) -> DeviceInfo:
    return DeviceInfo(name="cuda:0", label="", precisions=(), uuid=uuid)


QUIET = {"interval_s": NEVER, "idle_interval_s": NEVER}
"""Samples that are asked for, after the first ones, and no others."""


def take(events: queue.Queue[DeviceSampled], count: int = 1) -> DeviceSampled:
    """The last of the next `count` events."""
    for _ in range(count - 1):
        events.get(timeout=20)
    return events.get(timeout=20)


def until(events: queue.Queue[DeviceSampled], seen: Callable[[DeviceSampled], object]) -> DeviceSampled:
    """The first of the next events of which this is true."""
    return next(event for event in iter(lambda: events.get(timeout=20), None) if seen(event))


def test_first_the_host_alone_then_the_gpu(nvml_library: FakeNvmlLibrary, start: Start) -> None:
    sampler, events = start()
    first = take(events)
    assert (first.gpu, first.why) == (None, OPENING)
    assert first.host.memory_total_bytes
    second = take(events)
    assert (second.gpu.uuid, second.gpu.utilisation, second.why) == ("GPU-a", 0.42, None)
    assert second.at >= first.at
    sampler.stop()
    assert nvml_library.open == 0


@pytest.mark.usefixtures("no_nvml")
def test_a_machine_without_nvml_shows_its_host(start: Start) -> None:
    event = take(start()[1], 2)
    assert (event.gpu, event.why, bool(event.host.memory_used_bytes)) == (None, NO_LIBRARY, True)


@pytest.mark.usefixtures("nvml_library")
def test_a_change_of_interest_is_sampled_at_once(start: Start) -> None:
    sampler, events = start(**QUIET)
    assert take(events, 2).host.child_rss_bytes is None
    sampler.point(gpu("GPU-b"), os.getpid())
    event = take(events)
    assert event.gpu.uuid == "GPU-b"
    assert event.host.child_rss_bytes
    sampler.point(gpu("GPU-b"), None)
    assert take(events).host.child_rss_bytes is None
    sampler.point(gpu("GPU-b"), None)  # no news, no sample
    sampler.point(gpu("GPU-a"), None)
    assert take(events).gpu.uuid == "GPU-a"
    assert events.empty()


class SlowToOpen(FakeNvmlLibrary):
    """Opens once it may."""

    def __init__(self, *gpus: FakeGpu) -> None:
        super().__init__(*gpus)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def _nvmlInitWithFlags(self, _flags: int) -> int:
        self.begun.set()
        self.go_on.wait(20)
        return super()._nvmlInitWithFlags(_flags)


def test_a_sample_that_was_under_way_is_not_the_one_asked_for(install_nvml: Install, start: Start) -> None:
    library = install_nvml(SlowToOpen(FakeGpu("GPU-a")))
    sampler, events = start(**QUIET)
    assert library.begun.wait(20)
    handed_on = sampler.sample_soon()
    assert not handed_on.is_set()
    library.go_on.set()
    assert handed_on.wait(20)
    assert [events.get_nowait().gpu is not None for _ in range(events.qsize())] == [False, True, True]


def test_a_sample_that_is_asked_for_comes_at_once_with_a_fresh_list_of_processes_and_none_after_the_end(
    nvml_library: FakeNvmlLibrary, start: Start
) -> None:
    nvml_library.gpus[0].compute = [(os.getpid(), 1), (1, 1)]
    sampler, events = start(**QUIET)
    take(events, 2)
    nvml_library.gpus[0].compute = [(os.getpid(), 1), (1, 1), (2, 1)]
    assert sampler.sample_soon().wait(20)
    assert [process.pid for process in events.get_nowait().gpu.other_processes] == [1, 2]
    assert events.empty()
    sampler.stop(timeout_s=10)
    assert sampler.sample_soon().is_set(), "nobody waits for one that will not come"
    assert events.empty()


def test_a_list_that_a_slow_driver_gave_is_as_old_as_it_took(install_nvml: Install, start: Start) -> None:
    asked_at: list[float] = []

    class SlowLibrary(FakeNvmlLibrary):
        def _fill_nvmlDeviceGetMemoryInfo_v2(self, gpu: FakeGpu, memory: Any) -> int:
            asked_at.append(time.time())
            threading.Event().wait(0.3)
            return super()._fill_nvmlDeviceGetMemoryInfo_v2(gpu, memory)

    install_nvml(SlowLibrary(FakeGpu("GPU-a", compute=[(os.getpid(), 1), (1, 1)])))
    _, events = start(**QUIET)
    event = take(events, 2)
    assert event.gpu.processes_age_s >= 0.25
    assert event.at - event.gpu.processes_age_s < asked_at[0] + 0.05, "never said to be younger than it may be"


@pytest.mark.usefixtures("nvml_library")
def test_the_interval_is_short_only_while_a_cell_runs(start: Start) -> None:
    sampler, events = start(interval_s=0.01, idle_interval_s=NEVER)
    take(events, 2)
    with pytest.raises(queue.Empty):
        events.get(timeout=0.2)
    sampler.point(None, os.getpid())
    take(events, 5)
    sampler.point(None, None)
    until(events, lambda event: event.host.child_rss_bytes is None)
    with pytest.raises(queue.Empty):
        events.get(timeout=0.2)


def test_off_says_nothing_and_opens_nothing(nvml_library: FakeNvmlLibrary, start: Start) -> None:
    sampler, events = start(interval_s=0)
    assert "device-sampler" not in {thread.name for thread in threading.enumerate()}
    sampler.point(gpu("GPU-a"), os.getpid())
    assert sampler.sample_soon().is_set()
    with pytest.raises(queue.Empty):
        events.get(timeout=0.2)
    assert not nvml_library.calls


@pytest.mark.parametrize("interval_s", [-1.0, float("nan")])
def test_an_interval_must_not_be_negative(interval_s: float) -> None:
    with pytest.raises(ValueError, match=r"sampling interval .*: seconds, at least 0"):
        DeviceSampler(print, interval_s=interval_s)
    with pytest.raises(ValueError, match="sampling interval"):
        DeviceSampler(print, idle_interval_s=interval_s)


def test_a_slow_driver_holds_up_neither_start_nor_host_nor_stop(install_nvml: Install, start: Start) -> None:
    library = install_nvml(SlowToOpen(FakeGpu("GPU-a")))
    sampler, events = start()
    assert take(events).host.memory_total_bytes
    sampler.stop(timeout_s=0.01)
    library.go_on.set()
    sampler.stop(timeout_s=10)
    assert library.open == 0


def test_a_gpu_lost_during_a_run_is_not_frozen_on_screen(nvml_library: FakeNvmlLibrary, start: Start) -> None:
    sampler, events = start(interval_s=0.01)
    sampler.point(gpu("GPU-a"), os.getpid())
    until(events, lambda event: event.gpu and event.host.child_rss_bytes)
    nvml_library.gpus[0].errors["*"] = fake.GPU_IS_LOST
    event = until(events, lambda event: event.why)
    assert (event.gpu.uuid, event.gpu.memory_used_bytes, event.gpu.temperature_c) == ("GPU-a", None, None)
    assert event.why.startswith("the GPU is lost")
    assert event.host.memory_total_bytes


def test_an_error_that_nobody_expected_is_reported_and_outlived(
    nvml_library: FakeNvmlLibrary, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("surprise")

    sampler, events = start(interval_s=0.01)
    sampler.point(gpu("GPU-a"), os.getpid())
    until(events, lambda event: event.gpu)
    with monkeypatch.context() as patch:
        patch.setattr(nvml_library, "_fill_nvmlDeviceGetMemoryInfo_v2", breaks)
        patch.setattr("pynvml._nvmlGetFunctionPointer_cache", {})
        event = until(events, lambda event: event.why)
        assert (event.gpu, event.why) == (None, "the GPU cannot be sampled: RuntimeError: surprise")
        assert event.host.memory_total_bytes
    with monkeypatch.context() as patch:
        patch.setattr("pynvml._nvmlGetFunctionPointer_cache", {})
        patch.setattr(psutil, "virtual_memory", breaks)
        event = until(events, lambda event: event.host == HostSample())
        assert event.why == "the host cannot be sampled: RuntimeError: surprise"
        until(events, lambda event: event.gpu)
    assert until(events, lambda event: event.why is None).host.memory_total_bytes


@pytest.mark.usefixtures("nvml_library")
def test_a_consumer_that_raises_does_not_end_the_sampling_and_stopping_before_the_start_or_twice_is_harmless() -> None:
    events: queue.Queue[DeviceSampled] = queue.Queue()

    def emit(event: DeviceSampled) -> None:
        events.put(event)
        raise RuntimeError("the screen has closed")

    sampler = DeviceSampler(emit, interval_s=0.01, idle_interval_s=0.01)
    sampler.stop()
    sampler.start()
    sampler.stop()
    sampler = DeviceSampler(emit, interval_s=0.01, idle_interval_s=0.01)
    sampler.start()
    take(events, 4)
    sampler.stop()
    sampler.stop()
    assert "device-sampler" not in {thread.name for thread in threading.enumerate()}


def test_making_one_loads_nothing_heavy_and_a_program_ends_though_its_sampler_was_not_stopped() -> None:
    code = (
        "import sys; from cs336_tui.runner.device.sampler import DeviceSampler; "
        "made = DeviceSampler(lambda _: None, interval_s=60, idle_interval_s=60); "
        "print([name for name in ('pynvml', 'psutil', 'torch', 'textual') if name in sys.modules]); made.start()"
    )
    assert python(code).stdout.strip() == "[]"


@pytest.mark.usefixtures("nvml_library")
def test_the_process_and_the_gpu_of_every_rank_are_sampled_in_their_order(start: Start) -> None:
    sampler, events = start(**QUIET)
    event = take(events, 2)
    assert (event.host.ranks, event.other_gpus) == ((), ())
    first, second, gone = (gpu(f"GPU-{name}") for name in "abc")
    sampler.point(first, os.getpid(), os.getppid(), others=(gone, second))
    event = take(events)
    assert [rank.pid for rank in event.host.ranks] == [os.getpid(), os.getppid()]
    assert all(rank.rss_bytes for rank in event.host.ranks)
    assert (event.gpu.uuid, [other.uuid for other in event.other_gpus]) == ("GPU-a", ["GPU-c", "GPU-b"])
    assert [other.memory_used_bytes for other in event.other_gpus] == [None, 2 * 1024**3]
    sampler.point(None)
    assert take(events).other_gpus == ()


def test_cells_side_by_side_have_samples_of_their_own_and_each_gpu_is_asked_once(
    nvml_library: FakeNvmlLibrary, start: Start
) -> None:
    sampler, events = start(**QUIET)
    take(events, 2)
    a, b = (gpu(f"GPU-{name}") for name in "ab")
    sampler.point(a, os.getpid(), cell=3)
    first = take(events)
    sampler.point(b, os.getppid(), cell=5)
    second = take(events)
    assert [(each.cells, each.gpu and each.gpu.uuid) for each in (first, second)] == [((3,), "GPU-a"), ((5,), "GPU-b")]
    assert first.host.child_rss_bytes
    sampler.point(a, os.getpid(), os.getppid(), others=(b,), cell=7)
    third = take(events)
    assert (third.cells, [other.uuid for other in third.other_gpus]) == ((7,), ["GPU-b"])
    asked = nvml_library.calls["nvmlDeviceGetUtilizationRates"]
    sampler.sample_soon().wait(20)
    assert [events.get_nowait().cells for _ in range(3)] == [(3,), (5,), (7,)]
    assert nvml_library.calls["nvmlDeviceGetUtilizationRates"] == asked + 2
    assert sampler.sample_soon(5).wait(20)
    assert events.get_nowait().cells == (5,)
    sampler.leave(3)
    sampler.leave(5)
    sampler.leave(7)
    assert sampler.sample_soon().wait(20)
    assert (events.get_nowait().cells, events.empty()) == ((), True)


def test_all_gpus_of_the_machine_are_read_where_one_is_watched(
    install_nvml: Install, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 4
    monkeypatch.setattr(sampler_module, "MACHINE_S", 0.02)
    library = install_nvml(FakeNvmlLibrary(*(FakeGpu(f"GPU-{n}", temperature=40 + n) for n in range(count))))
    sampler, events = start(interval_s=0.02, idle_interval_s=0.02)
    sampler.point(gpu("GPU-1"), os.getpid())
    event = until(events, lambda event: event.machine_gpus)
    assert [gpu.uuid for gpu in event.machine_gpus] == [f"GPU-{n}" for n in range(count)]
    assert [gpu.temperature_c for gpu in event.machine_gpus] == [40.0 + n for n in range(count)]
    library.gpus[2].errors["*"] = fake.GPU_IS_LOST
    lost = until(events, lambda event: event.machine_gpus and event.machine_gpus[2].power_w is None)
    assert lost.machine_gpus[2].name
    assert lost.machine_gpus[3].power_w
    sampler.stop(timeout_s=10)
    assert library.open == 0


def test_mig_instances_follow_their_gpu(install_nvml: Install, start: Start) -> None:
    parts = [fake.mig_instance("MIG-0"), None, fake.mig_instance("MIG-1")]
    install_nvml(FakeNvmlLibrary(FakeGpu("GPU-a", mig=parts)))
    sampler, events = start(**QUIET)
    sampler.point(gpu("MIG-1"))
    event = until(events, lambda event: event.machine_gpus)
    assert [gpu.uuid for gpu in event.machine_gpus] == ["GPU-a", "MIG-0", "MIG-1"]
    assert event.machine_gpus[0].utilisation == 0.42
    assert event.machine_gpus[2].utilisation is None
    assert event.machine_gpus[2].memory_total_bytes


def test_the_only_gpu_is_not_read_twice(install_nvml: Install, start: Start) -> None:
    library = install_nvml(FakeNvmlLibrary(FakeGpu("GPU-a")))
    _, events = start(**QUIET)
    assert take(events, 2).machine_gpus == ()
    assert library.calls["nvmlDeviceGetUtilizationRates"] == 1
