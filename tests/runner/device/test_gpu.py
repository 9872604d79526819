"""Reading the fields of one GPU, its loss and return, and the processes of others on it."""

import os
import subprocess
import sys
from collections.abc import Sequence, Set

import pytest

from cs336_tui.events.environment import GpuProcess, GpuSample
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


def pids(processes: Sequence[GpuProcess] | None) -> list[int] | None:
    return None if processes is None else [process.pid for process in processes]


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


QUERIES = {f"nvmlDeviceGet{kind}RunningProcesses_v{n}" for kind in ("Compute", "Graphics") for n in (2, 3)}


@pytest.mark.parametrize(
    ("missing", "used", "temperature_c", "others"),
    [
        ({"nvmlDeviceGetMemoryInfo_v2"}, 11 * GIB, 61.0, [1, 2]),  # the driver's reserve counts there
        ({"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"}, None, 61.0, [1, 2]),  # unified memory
        (fake.NEW_SYMBOLS, 11 * GIB, 61.0, [1, 2]),
        (QUERIES, 10 * GIB, 61.0, None),
        ({"nvmlDeviceGetTemperature"}, 10 * GIB, 61.0, [1, 2]),  # which is deprecated
        ({"nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"}, 10 * GIB, None, [1, 2]),
    ],
)
def test_a_driver_is_read_through_the_symbols_that_it_has(
    install_nvml: Install, missing: Set[str], used: int | None, temperature_c: float | None, others: list[int] | None
) -> None:
    own = (os.getpid(), GIB)
    gpu = FakeGpu("GPU-a", reasons=0x4, compute=[(1, 3 * GIB), own], graphics=[(2, GIB)], persistence=0)
    sample = sample_of(install_nvml(FakeNvmlLibrary(gpu, missing=frozenset(missing))))
    assert (sample.memory_used_bytes, sample.memory_total_bytes) == (used, used and 80 * GIB)
    assert (sample.clock_reasons, sample.persistence_mode) == (("software power cap",), False)
    assert (sample.temperature_c, pids(sample.other_processes)) == (temperature_c, others)


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

    def listed(now: float, *, fresh: bool = False) -> tuple[float | None, list[int] | None]:
        sample, _ = monitor.sample(now, fresh=fresh)
        return sample.processes_age_s, pids(sample.other_processes)

    assert listed(0.0) == (0.0, [1])
    gpu.compute = [*gpu.compute, (2, GIB)]
    assert listed(0.5) == (0.5, [1])
    assert listed(1.0, fresh=True) == (0.0, [1, 2])
    assert listed(1.0 + PROCESSES_S - 0.5) == (PROCESSES_S - 0.5, [1, 2])
    assert listed(1.0 + PROCESSES_S) == (0.0, [1, 2])
    gpu.errors["nvmlDeviceGetComputeRunningProcesses_v3"] = fake.NO_PERMISSION
    assert listed(1.0 + 2 * PROCESSES_S) == (None, None)


@pytest.mark.parametrize("code", [fake.GPU_IS_LOST, fake.UNKNOWN, 16])
def test_a_lost_gpu_keeps_its_identity_and_no_value_and_comes_back(nvml_library: FakeNvmlLibrary, code: int) -> None:
    monitor = following("GPU-a")
    before, _ = monitor.sample(0.0)
    assert before.temperature_c == 61.0

    nvml_library.gpus[0].errors["*"] = code
    bare = GpuSample(uuid="GPU-a", name="NVIDIA H100 80GB HBM3")
    sample, why = monitor.sample(1.0)
    assert sample == bare
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


def test_a_loss_found_by_a_slow_field_leaves_nothing_behind_also_if_the_uuid_is_gone_then(
    nvml_library: FakeNvmlLibrary,
) -> None:
    monitor = following("GPU-a")
    monitor.sample(0.0)
    nvml_library.gpus[0].errors["nvmlDeviceGetEnforcedPowerLimit"] = fake.GPU_IS_LOST
    assert monitor.sample(0.5)[1] is None
    bare = GpuSample(uuid="GPU-a", name="NVIDIA H100 80GB HBM3")
    assert monitor.sample(SLOW_S)[0] == bare
    del nvml_library.gpus[0]
    assert monitor.sample(SLOW_S + RETRY_S) == (bare, "NVML knows no GPU GPU-a")


def test_following_another_gpu_forgets_the_lost_one(nvml_library: FakeNvmlLibrary) -> None:
    monitor = following("GPU-a")
    nvml_library.gpus[0].errors["*"] = fake.GPU_IS_LOST
    monitor.sample(0.0)
    monitor.follow("GPU-b")
    sample, why = monitor.sample(0.1)
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
    assert sample.uuid == "GPU-a"


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


@pytest.mark.parametrize(("listed", "known"), [(7, 7), (None, None), (0, None)])
def test_strangers_are_named_with_their_memory_if_it_is_known(listed: int | None, known: int | None) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    one, other = OtherProcesses(namespaced=False).among({1: listed, os.getpid(): 5, gone.pid: 3}, child=None) or ()
    assert (one.pid, one.memory_bytes) == (1, known)
    assert one.name
    assert (other.pid, other.name) == (gone.pid, None)


def test_a_grandchild_is_own_even_after_its_parent_has_gone() -> None:
    waits = "import sys; sys.stdin.read()"
    starts_one = f"import subprocess; print(subprocess.Popen([sys.executable, '-c', {waits!r}]).pid, flush=True)"
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import sys; {starts_one}; {waits}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
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


def test_in_a_container_nobody_else_is_never_certain() -> None:
    processes = OtherProcesses(namespaced=True)
    assert processes.among({}, child=None) is None
    assert processes.among({1: 1}, child=None) is None  # may be our own child under the host's PID
    assert processes.among({os.getpid(): 1}, child=None) is None
    assert pids(processes.among({os.getpid(): 1, 1: 2}, child=None)) == [1]
