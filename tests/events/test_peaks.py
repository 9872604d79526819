"""Measured peaks: their rates, and the device and settings that they are kept for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cs336_tui.events.environment import DeviceInfo
from cs336_tui.events.peaks import PeakCache, peak_key
from tests.made_peaks import made_peak
from tests.samples import ENVIRONMENT

KEY = peak_key(ENVIRONMENT, "cuda:0", "fp32")


def test_the_peak_is_the_best_sizes_median_and_a_copy_counts_twice() -> None:
    peak = made_peak(50e12, 2.5e12)
    assert peak.best.size == 4096
    assert peak.best.flops_per_s == pytest.approx(50e12)
    assert peak.copy.bytes_per_s == pytest.approx(2 * peak.copy.bytes / peak.copy.median_s) == pytest.approx(2.5e12)


def test_what_was_put_is_found_again_by_another_process(tmp_path: Path) -> None:
    peak = made_peak(note="sizes from 8192 on were left out: too slow")
    assert PeakCache(tmp_path).get(KEY) is None
    PeakCache(tmp_path).put(KEY, peak)
    assert PeakCache(tmp_path).get(KEY) == peak


def test_a_later_peak_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    cache = PeakCache(tmp_path)
    cache.put(KEY, made_peak(50e12))
    cache.put(KEY, made_peak(60e12))
    for found in (cache.get(KEY), PeakCache(tmp_path).get(KEY)):
        assert found
        assert found.best.flops_per_s == pytest.approx(60e12)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_that_is_no_peak_counts_as_none(tmp_path: Path) -> None:
    PeakCache(tmp_path).put(KEY, made_peak())
    (file,) = tmp_path.iterdir()
    whole = file.read_text()
    for text in ('{"key": 1', whole.replace(KEY.hardware, "another that comes to the same name")):
        file.write_text(text)
        assert PeakCache(tmp_path).get(KEY) is None


def test_a_folder_that_cannot_be_written_loses_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = PeakCache(tmp_path / "file" / "peaks")
    cache.put(KEY, made_peak())
    assert cache.get(KEY) == made_peak()
    assert PeakCache(tmp_path / "file" / "peaks").get(KEY) is None


def test_a_gpu_is_known_by_its_uuid_wherever_it_sits() -> None:
    (gpu,) = (device for device in ENVIRONMENT.devices if device.uuid)
    moved = msgspec.structs.replace(
        ENVIRONMENT, host="other", threads=4, devices=(msgspec.structs.replace(gpu, name="cuda:1"),)
    )
    assert peak_key(moved, "cuda:1", "fp32") == KEY
    twin = msgspec.structs.replace(ENVIRONMENT, devices=(msgspec.structs.replace(gpu, uuid="GPU-1"),))
    assert peak_key(twin, "cuda:0", "fp32") != KEY


def test_a_cpu_is_known_by_its_host_processor_and_threads() -> None:
    key = peak_key(ENVIRONMENT, "cpu", "fp32")
    assert key == peak_key(ENVIRONMENT, "cpu", "fp32", ENVIRONMENT.threads)
    others = [
        peak_key(ENVIRONMENT, "cpu", "fp32", 1),
        peak_key(ENVIRONMENT, "cpu", "bf16"),
        *(
            peak_key(msgspec.structs.replace(ENVIRONMENT, **change), "cpu", "fp32")
            for change in ({"host": "other"}, {"cpu": "Other CPU"}, {"cpu_count": 2}, {"torch": "2.14.0"})
        ),
    ]
    assert len({key, *others}) == 7


def test_a_device_without_an_identity_is_told_by_its_place() -> None:
    twins = tuple(DeviceInfo(name=f"cuda:{index}", label="Some GPU", precisions=("fp32",)) for index in range(2))
    machine = msgspec.structs.replace(ENVIRONMENT, devices=twins)
    assert peak_key(machine, "cuda:0", "fp32") != peak_key(machine, "cuda:1", "fp32")
