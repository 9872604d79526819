"""Reading the fields of one GPU, its loss and return, and the processes of others on it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cs336_tui.events.environment import GpuSample
from cs336_tui.events.gpus import ORDINARY_REASONS, clock_reasons
from cs336_tui.runner.device.gpu import PROCESSES_S, RETRY_S, SLOW_S, GpuMonitor, OtherProcesses
from tests.runner.device import fake_nvml as fake
from tests.runner.device.conftest import Install
from tests.runner.device.fake_nvml import GIB, FakeGpu, FakeNvmlLibrary


def following(uuid: str) -> GpuMonitor:
    monitor = GpuMonitor()
    monitor.follow(uuid)
    return monitor


def sample_of(library: FakeNvmlLibrary, uuid: str = "GPU-a") -> GpuSample:
    monitor = following(uuid)
    sample, why = monitor.sample(0.0)
    monitor.close()
    assert library.open == 0
    assert why is None
    assert sample is not None
    return sample


def test_every_field_in_its_unit(nvml_library: FakeNvmlLibrary) -> None:
    nvml_library.gpus[0].compute = [(os.getpid(), GIB)]
    sample = sample_of(nvml_library)
    assert sample == GpuSample(
        uuid="GPU-a",
        name="NVIDIA H100 80GB HBM3",
        memory_used_bytes=10 * GIB,
        memory_total_bytes=80 * GIB,
        utilisation=0.42,
        power_w=350.5,
        power_limit_w=700.0,
        temperature_c=61.0,
        sm_clock_mhz=1755,
        memory_clock_mhz=2619,
        clock_reasons=(),
        energy_j=5000.0,
        persistence_mode=True,
        other_processes=sample.other_processes,
        processes_age_s=sample.processes_age_s,
    )


UNSUPPORTED = {
    "nvmlDeviceGetUtilizationRates": {"utilisation"},
    "nvmlDeviceGetPowerUsage": {"power_w"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_w"},
    "nvmlDeviceGetClockInfo": {"sm_clock_mhz", "memory_clock_mhz"},
    "nvmlDeviceGetTotalEnergyConsumption": {"energy_j"},
    "nvmlDeviceGetPersistenceMode": {"persistence_mode"},
    "nvmlDeviceGetName": {"name"},
}


@pytest.mark.parametrize("code", [fake.NOT_SUPPORTED, fake.NO_PERMISSION, fake.UNKNOWN])
@pytest.mark.parametrize("symbol", UNSUPPORTED)
def test_a_field_that_fails_is_none_alone(nvml_library: FakeNvmlLibrary, symbol: str, code: int) -> None:
    whole = sample_of(nvml_library)
    nvml_library.gpus[0].errors[symbol] = code
    partial = sample_of(nvml_library)
    for name in GpuSample.__struct_fields__:
        expected = None if name in UNSUPPORTED[symbol] else getattr(whole, name)
        assert getattr(partial, name) == expected, name


def test_memory_falls_back_to_the_older_call_and_then_to_none(nvml_library: FakeNvmlLibrary) -> None:
    gpu = nvml_library.gpus[0]
    gpu.errors["nvmlDeviceGetMemoryInfo_v2"] = fake.NOT_SUPPORTED
    assert sample_of(nvml_library).memory_used_bytes == 11 * GIB  # the driver's reserve counts there
    gpu.errors["nvmlDeviceGetMemoryInfo"] = fake.NOT_SUPPORTED  # unified memory
    sample = sample_of(nvml_library)
    assert (sample.memory_used_bytes, sample.memory_total_bytes) == (None, None)
    assert sample.utilisation == 0.42


def test_an_old_driver_is_read_through_its_older_symbols(install_nvml: Install) -> None:
    gpu = FakeGpu("GPU-a", reasons=0x4, compute=[(1, 3 * GIB), (os.getpid(), GIB)], persistence=0)
    sample = sample_of(install_nvml(FakeNvmlLibrary(gpu, missing=fake.NEW_SYMBOLS)))
    assert sample.memory_used_bytes == 11 * GIB
    assert sample.clock_reasons == ("software power cap",)
    assert (sample.temperature_c, sample.persistence_mode) == (61.0, False)
    assert [process.pid for process in sample.other_processes or ()] == [1]


def test_a_driver_without_any_process_query_costs_that_field_only(install_nvml: Install) -> None:
    queries = {f"nvmlDeviceGet{kind}RunningProcesses_v{n}" for kind in ("Compute", "Graphics") for n in (2, 3)}
    gpu = FakeGpu("GPU-a", compute=[(1, GIB)])
    sample = sample_of(install_nvml(FakeNvmlLibrary(gpu, missing=frozenset(queries))))
    assert sample.other_processes is None
    assert sample.memory_used_bytes == 10 * GIB


def test_temperature_survives_the_removal_of_its_deprecated_call(install_nvml: Install) -> None:
    library = install_nvml(FakeNvmlLibrary(FakeGpu("GPU-a"), missing=frozenset({"nvmlDeviceGetTemperature"})))
    assert sample_of(library).temperature_c == 61.0


def test_what_a_gpu_cannot_answer_is_asked_once(nvml_library: FakeNvmlLibrary) -> None:
    nvml_library.gpus[0].errors["nvmlDeviceGetUtilizationRates"] = fake.NOT_SUPPORTED
    nvml_library.gpus[0].errors["nvmlDeviceGetPowerUsage"] = fake.NO_PERMISSION
    monitor = following("GPU-a")
    for now in range(3):
        monitor.sample(now)
    assert nvml_library.calls["nvmlDeviceGetUtilizationRates"] == 1
    assert nvml_library.calls["nvmlDeviceGetPowerUsage"] == 3


def test_a_mig_instance_has_memory_and_no_utilisation(nvml_library: FakeNvmlLibrary) -> None:
    nvml_library.gpus[0].mig = [fake.mig_instance("MIG-1")]
    sample = sample_of(nvml_library, "MIG-1")
    assert (sample.uuid, sample.memory_total_bytes, sample.memory_used_bytes) == ("MIG-1", 10 * GIB, GIB)
    assert sample.utilisation is sample.power_w is sample.temperature_c is sample.energy_j is None
    assert sample.clock_reasons is sample.sm_clock_mhz is sample.persistence_mode is None


def test_slow_fields_and_processes_are_read_at_their_own_pace(nvml_library: FakeNvmlLibrary) -> None:
    monitor = following("GPU-b")
    for tick in range(21):  # 10 s at two samples a second
        monitor.sample(tick / 2)
    assert nvml_library.calls["nvmlDeviceGetMemoryInfo_v2"] == 21
    assert nvml_library.calls["nvmlDeviceGetTemperature"] == 1 + 10 // SLOW_S
    assert nvml_library.calls["nvmlDeviceGetEnforcedPowerLimit"] == 1 + 10 // SLOW_S
    assert nvml_library.calls["nvmlDeviceGetPersistenceMode"] == 1 + 10 // SLOW_S
    # An empty list takes one call.
    assert nvml_library.calls["nvmlDeviceGetComputeRunningProcesses_v3"] == 1 + 10 // PROCESSES_S
    assert nvml_library.calls["nvmlInitWithFlags"] == 1


def test_a_list_of_processes_tells_its_age_and_can_be_had_fresh(nvml_library: FakeNvmlLibrary) -> None:
    gpu = nvml_library.gpus[0]
    gpu.compute = [(os.getpid(), GIB), (1, GIB)]
    monitor = following("GPU-a")

    def listed(now: float, *, fresh: bool = False) -> tuple[float | None, list[int]]:
        sample, _ = monitor.sample(now, fresh=fresh)
        assert sample is not None
        return sample.processes_age_s, [process.pid for process in sample.other_processes or ()]

    assert listed(0.0) == (0.0, [1])
    gpu.compute = [*gpu.compute, (2, GIB)]
    assert listed(0.5) == (0.5, [1])
    assert listed(1.0, fresh=True) == (0.0, [1, 2])
    assert listed(1.0 + PROCESSES_S - 0.5) == (PROCESSES_S - 0.5, [1, 2])
    assert listed(1.0 + PROCESSES_S) == (0.0, [1, 2])
    gpu.errors["nvmlDeviceGetComputeRunningProcesses_v3"] = fake.NO_PERMISSION
    assert listed(1.0 + 2 * PROCESSES_S) == (None, [])


@pytest.mark.parametrize("code", [fake.GPU_IS_LOST, fake.UNKNOWN, 16])
def test_a_lost_gpu_keeps_its_identity_and_no_value_and_comes_back(nvml_library: FakeNvmlLibrary, code: int) -> None:
    monitor = following("GPU-a")
    before, _ = monitor.sample(0.0)
    assert before is not None
    assert before.temperature_c == 61.0

    nvml_library.gpus[0].errors["*"] = code
    bare = GpuSample(uuid="GPU-a", name="NVIDIA H100 80GB HBM3")
    sample, why = monitor.sample(1.0)
    assert sample == bare
    assert why is not None
    assert f"NVML error {code}" in why
    assert nvml_library.open == 0

    opened = nvml_library.calls["nvmlInitWithFlags"]
    assert monitor.sample(1.0 + RETRY_S - 0.1) == (bare, why)
    assert nvml_library.calls["nvmlInitWithFlags"] == opened
    assert monitor.sample(1.0 + RETRY_S)[0] == bare
    assert nvml_library.calls["nvmlInitWithFlags"] == opened + 1

    nvml_library.gpus[0].errors.clear()
    again, why = monitor.sample(1.0 + 2 * RETRY_S)
    assert why is None
    assert again == before


def test_a_loss_found_by_a_slow_field_leaves_nothing_behind(nvml_library: FakeNvmlLibrary) -> None:
    monitor = following("GPU-a")
    monitor.sample(0.0)
    nvml_library.gpus[0].errors["nvmlDeviceGetEnforcedPowerLimit"] = fake.GPU_IS_LOST
    assert monitor.sample(0.5)[1] is None
    assert monitor.sample(SLOW_S)[0] == GpuSample(uuid="GPU-a", name="NVIDIA H100 80GB HBM3")


def test_a_gpu_whose_uuid_is_gone_after_the_loss_stays_lost(nvml_library: FakeNvmlLibrary) -> None:
    monitor = following("GPU-a")
    monitor.sample(0.0)
    nvml_library.gpus[0].errors["*"] = fake.GPU_IS_LOST
    monitor.sample(1.0)
    del nvml_library.gpus[0]
    sample, why = monitor.sample(1.0 + RETRY_S)
    assert sample == GpuSample(uuid="GPU-a", name="NVIDIA H100 80GB HBM3")
    assert why == "NVML knows no GPU GPU-a"


def test_following_another_gpu_forgets_the_lost_one(nvml_library: FakeNvmlLibrary) -> None:
    monitor = following("GPU-a")
    nvml_library.gpus[0].errors["*"] = fake.GPU_IS_LOST
    monitor.sample(0.0)
    monitor.follow("GPU-b")
    sample, why = monitor.sample(0.1)
    assert sample is not None
    assert (sample.uuid, sample.memory_used_bytes, why) == ("GPU-b", 2 * GIB, None)
    monitor.close()
    assert nvml_library.open == 0


def test_a_driver_loaded_later_is_found(install_nvml: Install) -> None:
    library = install_nvml(FakeNvmlLibrary(FakeGpu("GPU-a"), init_error=fake.DRIVER_NOT_LOADED))
    monitor = GpuMonitor()
    assert monitor.sample(0.0) == (None, "the NVIDIA driver is not loaded (NVML error 9)")
    library.init_error = fake.SUCCESS
    assert monitor.sample(1.0)[0] is None
    sample, _ = monitor.sample(RETRY_S)
    assert sample is not None
    assert sample.uuid == "GPU-a"


def test_own_child_is_no_stranger_on_the_gpu(nvml_library: FakeNvmlLibrary) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        nvml_library.gpus[0].compute = [(os.getpid(), GIB), (child.pid, GIB)]
        nvml_library.gpus[0].graphics = [(1, 5 * GIB)]
        others = sample_of(nvml_library).other_processes
    finally:
        child.communicate(b"\n")
    assert others is not None
    assert [(process.pid, process.memory_bytes) for process in others] == [(1, 5 * GIB)]


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (0, ()),
        (0x1, ("idle",)),
        (0x4, ("software power cap",)),
        (0x8 | 0x40, ("hardware slowdown", "hardware thermal")),
        (0x20 | 0x80, ("software thermal", "power brake")),
        (0x4 | 0x8000, ("software power cap", "reason 0x8000")),
    ],
)
def test_clock_reasons_have_names(mask: int, names: tuple[str, ...]) -> None:
    assert clock_reasons(mask) == names


def test_heat_and_power_faults_are_not_ordinary() -> None:
    assert set(clock_reasons(0xFFF)) - ORDINARY_REASONS >= set(clock_reasons(0x8 | 0x20 | 0x40 | 0x80))
    assert "software power cap" in ORDINARY_REASONS


def test_strangers_are_named_with_their_memory() -> None:
    others = OtherProcesses(namespaced=False).among({1: 7, os.getpid(): 5}, child=None)
    assert others is not None
    (stranger,) = others
    assert (stranger.pid, stranger.memory_bytes) == (1, 7)
    assert stranger.name


@pytest.mark.parametrize("unknown", [None, 0])
def test_memory_that_nvml_does_not_know_is_none(unknown: int | None) -> None:
    others = OtherProcesses(namespaced=False).among({1: unknown}, child=None)
    assert others is not None
    assert others[0].memory_bytes is None


def test_a_grandchild_is_own_even_after_its_parent_has_gone() -> None:
    waits = "import sys; sys.stdin.read()"
    starts_one = f"import subprocess; print(subprocess.Popen([sys.executable, '-c', {waits!r}]).pid, flush=True)"
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import sys; {starts_one}; {waits}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    grandchild = int(parent.stdout.readline())
    processes = OtherProcesses(namespaced=False)
    try:
        assert processes.among({grandchild: 1}, child=None) == ()
        parent.kill()
        parent.wait()
        assert processes.among({grandchild: 1}, child=None) == ()
    finally:
        parent.communicate()


def test_the_running_cell_is_own_whoever_its_parent() -> None:
    processes = OtherProcesses(namespaced=False)
    assert processes.among({1: 1}, child=1) == ()
    assert processes.among({1: 1}, child=None) == ()  # it may outlast its cell by a moment


def test_a_process_that_cannot_be_looked_up_is_a_stranger_without_a_name() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    others = OtherProcesses(namespaced=False).among({gone.pid: 3}, child=None)
    assert others is not None
    assert (others[0].pid, others[0].name) == (gone.pid, None)


def test_in_a_container_nobody_else_is_never_certain() -> None:
    processes = OtherProcesses(namespaced=True)
    assert processes.among({}, child=None) is None
    assert processes.among({1: 1}, child=None) is None  # may be our own child under the host's PID
    assert processes.among({os.getpid(): 1}, child=None) is None
    recognised = processes.among({os.getpid(): 1, 1: 2}, child=None)
    assert recognised is not None
    assert [p.pid for p in recognised] == [1]
