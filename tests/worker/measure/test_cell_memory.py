"""Peaks of resident memory on this machine."""

import sys
from types import SimpleNamespace

import pytest
import torch

from cs336_tui.worker.measure import cell
from cs336_tui.worker.measure.cell_memory import PeakMeter, Peaks, spilled
from tests.worker.measure.cells import run, small_spec

MEGABYTE = 1024**2


def touch(megabytes: int) -> None:
    torch.ones(megabytes * MEGABYTE, dtype=torch.uint8)


def test_a_peak_is_seen_after_it_has_passed() -> None:
    meter = PeakMeter(torch.device("cpu"))
    before = meter.read().rss
    touch(300)
    assert meter.read().rss - before > 250 * MEGABYTE


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can reset the peak")
def test_a_reset_forgets_the_peak() -> None:
    meter = PeakMeter(torch.device("cpu"))
    touch(300)
    peak = meter.read().rss
    meter.reset()
    assert meter.read().rss < peak - 250 * MEGABYTE
    touch(100)
    assert meter.read().rss < peak - 150 * MEGABYTE


def test_a_cpu_has_no_allocator_peaks() -> None:
    peaks = PeakMeter(torch.device("cpu")).read()
    assert (peaks.allocated, peaks.reserved, peaks.num_alloc_retries) == (None, None, None)


def test_more_memory_than_the_device_has_is_remarked(monkeypatch: pytest.MonkeyPatch) -> None:
    """WSL2's driver lets torch take memory of the host."""
    cuda = torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(total_memory=24 * 10**9))
    assert spilled(Peaks(23 * 10**9, 24 * 10**9, 1, 0), cuda) is None
    text = spilled(Peaks(23 * 10**9, 26 * 10**9, 1, 0), cuda)
    assert text is not None
    assert text.startswith("torch took 26.0 GB of a device that has 24.0 GB: the driver moved the rest to the host's")
    assert spilled(PeakMeter(torch.device("cpu")).read(), torch.device("cpu")) is None


def test_a_cell_says_so_beside_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell, "spilled", lambda _peaks, device: f"too much of {device}")
    assert run(small_spec()).finished.remarks == ("too much of cpu",)


class OnCuda:
    """Counts as the allocator of a CUDA device does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.peak = 0
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _device: self.peak)
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _device: 2 * self.peak)
        monkeypatch.setattr(torch.cuda, "memory_stats", lambda _device: {})
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _device: vars(self).update(peak=0))

    def take(self, count: int) -> None:
        """Allocate so many bytes and give them back."""
        self.peak = max(self.peak, count)


def test_what_runs_aside_is_in_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the comparison of a compiled step, whose graphs took their memory before."""
    device = OnCuda(monkeypatch)
    meter = PeakMeter(torch.device("cuda:0"))
    device.take(100)
    with meter.aside():
        device.take(1000)
    meter.reset(allocated=False)
    device.take(10)
    assert meter.read()[:2] == (100, 200)
    device.take(300)
    assert meter.read()[:2] == (300, 600)
    meter.reset()
    assert meter.read()[:2] == (0, 0)
