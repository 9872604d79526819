"""Peaks measured in real children, also among the cells of a queue."""

import os
import time
from collections.abc import Callable

import pytest

from cs336_tui.events.events import CellFinished, CellStarted, Event
from cs336_tui.events.peaks import DevicePeak, PeakError, WantedPeak
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.launcher import Launcher
from cs336_tui.runner.machine import measure_peak, with_others
from tests.made_peaks import made_peak
from tests.runner.device.conftest import install_nvml, nvml_library
from tests.runner.device.fake_nvml import FakeNvmlLibrary
from tests.runner.running import Running
from tests.watching import small_spec

__all__ = ["install_nvml", "nvml_library"]


def test_a_peak_comes_before_the_cells_that_wait_and_nothing_is_lost(running: Running) -> None:
    happened: list[str] = []
    found: list[DevicePeak | PeakError] = []

    def note(event: Event) -> None:
        if isinstance(event, CellStarted | CellFinished):
            happened.append(type(event).__name__)

    def tell(peak: DevicePeak | PeakError) -> None:
        happened.append("peak")
        found.append(peak)

    running.watch.on_event = note
    bench = running.bench
    bench.add([(small_spec(), repeat) for repeat in (1, 2)])
    bench.ask_peak(WantedPeak("cpu", "tf32", 1), tell)  # is refused at once, by a real child
    bench.work()
    bench.ask_peak(WantedPeak("cpu", "tf32", 1), tell)
    bench.work()
    assert happened == ["peak", *["CellStarted", "CellFinished"] * 2, "peak"]
    assert "tf32" in str(found[0])
    assert len(found) == 2


@pytest.mark.parametrize("end", [Bench.cancel, Bench.close])
def test_a_stop_ends_a_peak_that_is_being_measured_and_those_that_wait(
    running: Running, end: Callable[[Bench], object]
) -> None:
    found: list[DevicePeak | PeakError] = []
    bench = running.bench
    bench.probe()
    bench.ask_peak(WantedPeak("cpu", "fp32", 1), found.append)
    running.on_a_thread(bench.work)
    while not bench.queue.busy:
        time.sleep(0.01)
    bench.ask_peak(WantedPeak("cpu", "bf16", 1), found.append)
    end(bench)
    running.finish(30)
    assert [str(each) for each in found] == ["it was stopped"] * 2


def test_a_device_is_measured_in_a_child(launcher: Launcher) -> None:
    peak = measure_peak(launcher, "cpu", "fp32", 1)
    assert (peak.device, peak.precision, peak.threads) == ("cpu", "fp32", 1)
    assert max(trial.flops_per_s for trial in peak.matmul) > 1e8
    assert peak.copy.bytes_per_s > 1e8
    assert 0 <= peak.disagreement < 1


def test_what_a_device_cannot_do_is_one_line(launcher: Launcher) -> None:
    with pytest.raises(PeakError, match="tf32") as refused:
        measure_peak(launcher, "cpu", "tf32")
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(("uuid", "others"), [("GPU-a", 1), ("GPU-z", None), (None, None)])
def test_who_else_is_on_a_gpu_is_seen_when_it_has_measured(
    nvml_library: FakeNvmlLibrary, uuid: str | None, others: int | None
) -> None:
    nvml_library.gpus[0].compute = [(1, 1), (os.getpid(), 1)]
    assert with_others(made_peak(uuid=uuid), os.getpid()).others == others
    assert nvml_library.open == 0
