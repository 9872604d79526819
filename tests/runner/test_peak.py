"""Peaks come from real children."""

from __future__ import annotations

from pathlib import Path

import pytest

from cs336_tui.peaks import PeakError
from cs336_tui.runner.launcher import Launcher
from cs336_tui.runner.peak import measure_peak


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    found = Launcher(tmp_path)
    found.prepare()
    found.start()
    return found


def test_a_device_is_measured_in_a_child(launcher: Launcher) -> None:
    peak = measure_peak(launcher, "cpu", "fp32", 1)
    assert (peak.device, peak.precision, peak.threads) == ("cpu", "fp32", 1)
    assert max(trial.flops_per_s for trial in peak.matmul) > 1e8
    assert peak.copy.bytes_per_s > 1e8


def test_what_a_device_cannot_do_is_one_line(launcher: Launcher) -> None:
    with pytest.raises(PeakError, match="tf32") as refused:
        measure_peak(launcher, "cpu", "tf32")
    assert len(str(refused.value).splitlines()) == 1
