"""A cell shorter than the sampling interval is sampled after its end: real benches on the CPU, with a stand-in GPU."""

import threading
from typing import Any

import pytest

from cs336_tui.events.events import CellFinished, CellStarted, DeviceSampled, Event, StageChanged
from cs336_tui.runner.device import sampler
from cs336_tui.runner.device.sampler import DeviceSampler
from cs336_tui.session.log import LogReader
from cs336_tui.session.state import fold
from tests.runner.device.conftest import Install
from tests.runner.device.fake_nvml import FakeGpu, FakeNvmlLibrary
from tests.runner.running import Start
from tests.watching import endless_spec, small_spec

NEVER = 3600.0


@pytest.mark.parametrize("in_process", [False, True])
def test_a_cell_shorter_than_the_interval_is_sampled_after_it(
    start: Start, install_nvml: Install, monkeypatch: pytest.MonkeyPatch, *, in_process: bool
) -> None:
    """The sample comes even if the driver answers only after the cell's end."""
    monkeypatch.setattr(sampler, "SAMPLE_AFTER_S", 30.0)
    measured, over = threading.Event(), threading.Event()

    class SlowLibrary(FakeNvmlLibrary):
        def _fill_nvmlDeviceGetMemoryInfo_v2(self, gpu: FakeGpu, memory: Any) -> int:
            if measured.is_set():
                over.wait(20)
            return super()._fill_nvmlDeviceGetMemoryInfo_v2(gpu, memory)

    def follow(event: Event) -> None:
        if isinstance(event, CellStarted):
            measured.clear()
            over.clear()
        elif isinstance(event, StageChanged) and event.stage == "finishing":
            measured.set()
        elif isinstance(event, CellFinished):
            over.set()

    install_nvml(SlowLibrary(FakeGpu("GPU-a")))
    running = start(device_interval_s=NEVER, in_process=in_process)
    running.watch.on_event = follow
    try:
        running.run(small_spec(), small_spec(seed=1))
    finally:
        over.set()
    log = list(LogReader(running.bench.log_path))
    kinds = [type(event) for event in log if isinstance(event, CellStarted | CellFinished | DeviceSampled)]
    ends = [place for place, kind in enumerate(kinds) if kind is CellFinished]
    assert len(ends) == 2
    assert all(kinds[end + 1] is DeviceSampled for end in ends), "in the log before the next cell is begun"
    after = [log[place + 1] for place, event in enumerate(log) if isinstance(event, CellFinished)]
    assert [event.gpu.sm_clock_mhz for event in after] == [1755, 1755]
    for cell in fold(log).cells.values():
        assert cell.status == "ok"
        assert cell.surroundings.clock_after_mhz is None, "a cell on the CPU has no GPU"


def test_a_sample_is_asked_for_when_measuring_ends_and_never_when_it_begins(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(device_interval_s=NEVER, in_process=True)
    asked_at: list[str | None] = []
    sample_soon = DeviceSampler.sample_soon

    def spy(sampler: DeviceSampler) -> threading.Event:
        asked_at.append(running.cells[0].stage)
        return sample_soon(sampler)

    monkeypatch.setattr(DeviceSampler, "sample_soon", spy)
    running.run(small_spec())
    assert asked_at == ["finishing"]


def test_a_cell_that_is_stopped_waits_for_no_sample(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "SAMPLE_AFTER_S", NEVER)
    monkeypatch.setattr(DeviceSampler, "sample_soon", lambda _: threading.Event())  # as of a driver that hangs
    running = start(device_interval_s=NEVER)

    def cancel_once_measuring(event: Event) -> None:
        if isinstance(event, StageChanged) and event.stage == "measuring":
            running.bench.cancel()

    running.watch.on_event = cancel_once_measuring
    running.run(endless_spec())
    assert running.statuses == ["cancelled"]
