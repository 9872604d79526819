"""Peaks of resident memory on this machine."""

import sys

import pytest
import torch

from cs336_tui.measure.memory import PeakMeter

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
