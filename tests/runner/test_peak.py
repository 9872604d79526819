"""Peaks measured in real children."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cs336_tui.events.peaks import PeakError
from cs336_tui.runner.launcher import Launcher
from cs336_tui.runner.machine import measure_peak, with_others
from tests.made_peaks import made_peak
from tests.runner.device.conftest import install_nvml, nvml_library
from tests.runner.device.fake_nvml import FakeNvmlLibrary

__all__ = ["install_nvml", "nvml_library"]


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
    assert peak.disagreement is not None
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
