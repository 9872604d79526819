"""NVML against a real GPU and torch's own view of it."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest
import torch

from cs336_tui.events.gpus import clock_reasons
from cs336_tui.runner.device.gpu import GpuReader
from cs336_tui.runner.device.nvml import Nvml, nvml_report
from cs336_tui.worker.measure.probe import nvml_uuid
from tests.gpu.cells import needs_nvml

pytestmark = needs_nvml


@pytest.fixture
def nvml() -> Iterator[Nvml]:
    nvml = Nvml()
    yield nvml
    nvml.close()


@pytest.fixture
def reader(nvml: Nvml) -> GpuReader:
    """The GPU that torch calls cuda:0, found by its UUID."""
    return GpuReader(nvml, nvml.find(uuid_of(0)))


def uuid_of(index: int) -> str:
    """UUID as NVML spells it; for a slice of a GPU the slice's."""
    uuid = nvml_uuid(index, torch.cuda.get_device_properties(index))
    return uuid or pytest.skip("this torch knows no UUIDs")


def work(seconds: float) -> None:
    """Keep cuda:0 busy."""
    a = torch.randn(4096, 4096, device="cuda:0")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        a = torch.tanh(a @ a)
        torch.cuda.synchronize()


def test_every_device_of_torch_is_found_by_its_uuid(nvml: Nvml) -> None:
    for index in range(torch.cuda.device_count()):
        identity = nvml.identify(nvml.find(uuid_of(index)))
        assert identity.uuid.partition("-")[2] == uuid_of(index).partition("-")[2]
        assert torch.cuda.get_device_properties(index).name in identity.name


def test_the_report_names_driver_and_gpus() -> None:
    report = nvml_report()
    assert report.why is None
    assert report.driver == nvml_report(gpus=False).driver
    assert report.driver.split(".")[0].isdecimal()
    assert {uuid_of(0).partition("-")[2]} <= {gpu.uuid.partition("-")[2] for gpu in report.gpus}


def test_the_first_visible_gpu_is_a_device_of_torch(nvml: Nvml) -> None:
    uuid = nvml.identify(nvml.find(None)).uuid.partition("-")[2]
    assert uuid in {uuid_of(index).partition("-")[2] for index in range(torch.cuda.device_count())}


def test_memory_is_torchs_memory(reader: GpuReader) -> None:
    held = torch.empty(512 * 1024**2, dtype=torch.uint8, device="cuda:0")
    sample = reader.sample(0.0)
    if sample.memory_total_bytes is None:
        pytest.skip("this GPU reports no memory (unified memory)")
    # What the driver keeps for itself is a GiB at most, which is more than a share of a laptop's 8 GB.
    total = torch.cuda.get_device_properties(0).total_memory
    assert sample.memory_total_bytes == pytest.approx(total, abs=max(0.05 * total, 2**30))
    assert held.nbytes <= sample.memory_used_bytes <= sample.memory_total_bytes


def test_work_shows_in_utilisation_power_clock_and_energy(reader: GpuReader) -> None:
    before = reader.sample(0.0)
    started = time.monotonic()
    work(2.0)
    after = reader.sample(10.0)
    seconds = time.monotonic() - started
    print(after)
    if after.utilisation is not None:
        assert 0.2 < after.utilisation <= 1
    if after.energy_j is not None and before.energy_j is not None:
        spent_w = (after.energy_j - before.energy_j) / seconds
        assert 0 < spent_w < 2000
    if after.power_w is not None and after.power_limit_w is not None:
        assert 0 < after.power_w < 1.5 * after.power_limit_w
    if after.temperature_c is not None:
        assert 0 < after.temperature_c < 120
    if after.sm_clock_mhz is not None:
        assert 100 < after.sm_clock_mhz < 5000


def test_clock_reasons_are_readable(reader: GpuReader) -> None:
    work(0.2)
    reasons = reader.sample(0.0).clock_reasons
    if reasons is None:
        pytest.skip("this GPU reports no clock-event reasons")
    assert set(reasons) <= set(clock_reasons(0x1FF))


def test_persistence_mode_is_nvidia_smis(reader: GpuReader) -> None:
    mode = reader.sample(0.0).persistence_mode
    if mode is None or shutil.which("nvidia-smi") is None:
        pytest.skip("this GPU reports no persistence mode, or there is no nvidia-smi to compare it with")
    query = ["nvidia-smi", "--query-gpu=persistence_mode", "--format=csv,noheader", f"--id={reader.identity.uuid}"]
    said = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    assert {True: "Enabled", False: "Disabled"}[mode] == said


def test_this_process_is_not_among_the_others(reader: GpuReader) -> None:
    work(0.1)
    others = reader.sample(0.0).other_processes
    if others is None:
        pytest.skip("PIDs cannot be told apart here (a container)")
    assert os.getpid() not in {process.pid for process in others}


def test_cost_of_a_sample(reader: GpuReader) -> None:
    """Prints the cost for the report. The loose bound only catches a sample that stalls the run."""
    reader.sample(0.0)
    fast, full = [], []
    for _ in range(50):
        started = time.perf_counter()
        reader.sample(0.0)
        fast.append(time.perf_counter() - started)
    for tick in range(1, 11):
        started = time.perf_counter()
        reader.sample(tick * 10.0)
        full.append(time.perf_counter() - started)
    fast.sort()
    full.sort()
    print(f"one NVML sample: {fast[25] * 1e3:.2f} ms; with slow fields and processes: {full[5] * 1e3:.2f} ms (medians)")
    assert fast[25] < 0.1
