"""`cs336-tui peak` as people and scripts call it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from cs336_tui.cli.machine import peak_command
from cs336_tui.config.spec import Precision, SpecError
from cs336_tui.events.peaks import DevicePeak, PeakCache, PeakError
from cs336_tui.export.writing.files import FORMATS, AlreadyThere
from cs336_tui.worker.measure.peak import measure_peak
from tests.made_peaks import made_peak
from tests.samples import ENVIRONMENT


class Measuring:
    """Returns made-up peaks, each better than the last, and keeps the requests."""

    def __init__(self, failing: tuple[str, ...] = ()) -> None:
        self.asked: list[tuple[str, str]] = []
        self._failing = failing

    def __call__(self, device: str, precision: Precision) -> DevicePeak:
        self.asked.append((device, precision))
        if precision in self._failing:
            raise PeakError(f"{precision} ran out of memory")
        return made_peak(50e12 + len(self.asked) * 1e12, precision=precision, device=device)


@pytest.fixture
def cache(tmp_path: Path) -> PeakCache:
    return PeakCache(tmp_path / "peaks")


def peak(measure: Any, cache: PeakCache, **more: Any) -> str:
    options: dict[str, Any] = {
        "devices": (), "precisions": ("fp32",), "format_": "json", "output": None, "force": False, "refresh": False,
        "read": lambda: ENVIRONMENT,
    }  # fmt: skip
    return peak_command(measure=measure, cache=cache, **(options | more))


def test_the_best_device_in_every_precision_it_has(cache: PeakCache) -> None:
    measuring = Measuring()
    found = json.loads(peak(measuring, cache, precisions=()))
    assert measuring.asked == [("cuda:0", precision) for precision in ENVIRONMENT.devices[1].precisions]
    assert [each["precision"] for each in found["rows"]] == list(ENVIRONMENT.devices[1].precisions)
    assert all(each["sheet_flops_per_s"] for each in found["rows"])


def test_what_was_measured_is_not_measured_again_unless_asked(cache: PeakCache) -> None:
    measuring = Measuring()
    first, second = peak(measuring, cache), peak(measuring, cache)
    assert first == second
    assert len(measuring.asked) == 1
    again = json.loads(peak(measuring, cache, refresh=True))
    assert len(measuring.asked) == 2
    assert again["rows"][0]["matmul_flops_per_s"] == pytest.approx(52e12)
    assert json.loads(peak(measuring, cache)) == again


def test_a_cpu_with_other_threads_is_measured_anew(cache: PeakCache) -> None:
    measuring = Measuring()
    for threads in (None, 32, 1):  # the made peaks say 32, which is torch's own choice here
        peak(measuring, cache, devices=("cpu",), threads=threads)
    assert len(measuring.asked) == 2


def test_the_table_for_people(cache: PeakCache) -> None:
    text = peak(Measuring(), cache, devices=("every",), format_="table")
    assert text.startswith("Peaks measured on the spot")
    assert "NVIDIA H100 80GB HBM3" in text
    assert "cpu: data sheet: unknown" in text


def test_one_that_fails_leaves_the_others(cache: PeakCache) -> None:
    measuring = Measuring(failing=("tf32",))
    good, bad = json.loads(peak(measuring, cache, precisions=("fp32", "tf32")))["rows"]
    assert good["matmul_flops_per_s"] == pytest.approx(51e12)
    assert (bad["matmul_flops_per_s"], bad["note"]) == (None, "tf32 ran out of memory")
    with pytest.raises(click.ClickException, match="tf32 ran out of memory"):
        peak(measuring, cache, precisions=("tf32",))


def test_what_is_not_here_is_refused_before_anything_is_measured(cache: PeakCache) -> None:
    measuring = Measuring()
    with pytest.raises(SpecError, match="this machine has cpu, cuda:0"):
        peak(measuring, cache, devices=("cuda:0", "cuda:3"))
    with pytest.raises(SpecError, match="can do fp32, bf16-mixed, bf16"):
        peak(measuring, cache, devices=("cpu",), precisions=("tf32",))
    assert measuring.asked == []


@pytest.mark.parametrize("format_", FORMATS)
def test_other_formats(cache: PeakCache, format_: str) -> None:
    assert "fp32" in peak(Measuring(), cache, format_=format_)


def test_it_goes_to_a_file_and_never_in_anothers_place(cache: PeakCache, tmp_path: Path) -> None:
    path = tmp_path / "peaks.json"
    assert peak(Measuring(), cache, output=path) == ""
    assert json.loads(path.read_text())["rows"]
    with pytest.raises(AlreadyThere, match="already exists"):
        peak(Measuring(), cache, output=path)


def test_a_real_cpu(cache: PeakCache) -> None:
    def measure(device: str, precision: Precision) -> DevicePeak:
        return measure_peak(device, precision, threads=1, budget_s=0.1, copy_bytes=2**24)

    (found,) = json.loads(peak(measure, cache, devices=("cpu",), threads=1))["rows"]
    assert found["matmul_flops_per_s"] > 1e8
    assert found["copy_bytes_per_s"] > 1e8
    assert found["sheet_flops_per_s"] is None
