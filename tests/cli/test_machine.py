"""`cs336-tui doctor` on the NVIDIA driver, with the real pynvml over a replaced library, and `peak`."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import click
import msgspec
import pytest

from cs336_tui.cli import machine
from cs336_tui.cli.machine import gpus_of, lanes_row, missing, ranks_row, sampled_gpus
from cs336_tui.config.spec import Precision, SpecError
from cs336_tui.events.environment import DeviceInfo, Environment
from cs336_tui.events.peaks import DevicePeak, PeakCache, PeakError
from cs336_tui.runner.device.nvml import NO_LIBRARY, nvml_report
from tests.cli import here
from tests.made_peaks import made_peak
from tests.runner.device import fake_nvml as fake
from tests.runner.device.conftest import Install, install_nvml, no_nvml
from tests.runner.device.fake_nvml import FakeGpu, FakeNvmlLibrary
from tests.samples import ENVIRONMENT

__all__ = ["install_nvml", "no_nvml"]

CPU = DeviceInfo(name="cpu", label="CPU", precisions=("fp32",))
CUDA = DeviceInfo(name="cuda:0", label="NVIDIA H100", precisions=("fp32",))


def environment(*devices: DeviceInfo, cuda: str | None = "12.8", problems: tuple[str, ...] = ()) -> Environment:
    return Environment(
        host="h", os="Linux", cpu="c", cpu_count=2, memory_bytes=1, python="3", app="0", torch="2.7", cuda=cuda,
        devices=devices, problems=problems,
    )  # fmt: skip


def said(env: Environment) -> str:
    return "\n".join(missing(env, nvml_report()))


def test_a_healthy_gpu_lacks_nothing_and_a_driver_without_one_or_without_cuda_does(install_nvml: Install) -> None:
    library = install_nvml(FakeNvmlLibrary(FakeGpu("GPU-a")))
    assert said(environment(CPU, CUDA)) == ""
    library.gpus.append(FakeGpu("GPU-b", errors={"*": fake.GPU_IS_LOST}))
    assert "GPU 1 does not answer: the GPU is lost: " in said(environment(CPU, CUDA))
    assert "install a CUDA build of torch" in said(environment(CPU, cuda=None))
    install_nvml(FakeNvmlLibrary())
    assert "no GPU on this machine" in said(environment(CPU))


@pytest.mark.usefixtures("no_nvml")
def test_no_library_is_told_unless_the_machine_has_another_gpu() -> None:
    assert NO_LIBRARY in said(environment(CPU, cuda=None))
    assert said(environment(CPU, DeviceInfo(name="mps", label="Apple", precisions=("fp32",)))) == ""


@pytest.mark.parametrize(
    ("problems", "end"), [((), "nothing is missing"), (("a", "b"), "missing or odd\n  - a\n  - b")]
)
def test_doctor_ends_with_what_is_missing(
    problems: tuple[str, ...], end: str, install_nvml: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_nvml(FakeNvmlLibrary(FakeGpu("GPU-a")))
    monkeypatch.setattr(machine, "read_environment", lambda: environment(CPU, CUDA, problems=problems))
    text = machine.doctor.callback(format_="table", code=(), folders=())
    assert text.endswith(f"\n\n{end}")
    data = json.loads(machine.doctor.callback(format_="json", code=(), folders=()))
    assert data["missing"] == list(problems)


def test_a_driver_that_does_not_open_is_told_once(install_nvml: Install) -> None:
    install_nvml(FakeNvmlLibrary(init_error=fake.VERSION_MISMATCH))
    why = nvml_report().why
    for problems in ((), (why,)):
        text = said(environment(CPU, problems=problems))
        assert text.count(why) == 1


def test_what_several_ranks_communicate_by_is_told():
    two = (CUDA, msgspec.structs.replace(CUDA, name="cuda:1"))
    here = msgspec.structs.replace(environment(*two), backends=("gloo", "nccl"))
    assert ranks_row(here) == "up to 2 on GPUs, with gloo and nccl"
    assert ranks_row(msgspec.structs.replace(environment(CPU), backends=("gloo",))) == "on the CPU only, with gloo"
    assert ranks_row(environment(CPU)) == "this torch has no backend for several"


def test_the_lanes_of_a_machine_are_told_with_their_cores() -> None:
    gpus = [msgspec.structs.replace(CUDA, name=f"cuda:{n}") for n in range(8)]
    two = ((0, 2), (1, 3))
    assert lanes_row(environment(CPU), two) == "2 on the CPU with --threads 1: cores 0,2 | 1,3"
    many = lanes_row(environment(CPU, *gpus), [(n,) for n in range(64)])
    assert many == ("8, one for each GPU; 64 on the CPU with --threads 1: cores 0 | 1 | 2 | 3 | 4 | 5 | 6 | ... | 63")
    assert lanes_row(environment(CPU, *gpus[:2]), ((0,),)) == "2, one for each GPU"
    assert lanes_row(environment(CPU, CUDA), ((0,),)) == "one: there is neither a second GPU nor a second core"


def test_each_gpu_is_told_with_the_words_of_the_device_pane(install_nvml: Install) -> None:
    whole = FakeGpu("GPU-b", mig=[fake.mig_instance("MIG-b0")])
    install_nvml(FakeNvmlLibrary(FakeGpu("GPU-a", reasons=4), whole, FakeGpu("GPU-c", name="NVIDIA GH200 480GB")))
    cuda = msgspec.structs.replace(CUDA, uuid="GPU-a")
    lines = gpus_of(environment(CPU, cuda), sampled_gpus())
    assert [line.strip() for line in lines if line.startswith("  GPU")] == [
        "GPU 0 of 3 · cuda:0 · NVIDIA H100 80GB HBM3",
        "GPU 1 of 3 · NVIDIA H100 80GB HBM3",
        "GPU 1 of 3, MIG 0 of 1 · NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "GPU 2 of 3 · NVIDIA GH200 480GB",
    ]
    told = [line.strip() for line in lines]
    assert told[2].startswith("memory 10.7/85.9 GB, util 42 %, power 350/700 W, temp 61 °C, clocks 1755/2619 MHz, ")
    assert "limited software power cap" in told[2]
    assert "MIG instance: NVML tells utilisation, power, temperature and clocks of the whole GPU only" in told
    assert any(line.startswith("coherent memory: the GPU reaches the host's memory") for line in told)
    assert gpus_of(environment(CPU), ()) == []


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
        "devices": (), "precisions": ("fp32",), "format_": "json", "output": None, "overwrite": True, "refresh": False,
    }  # fmt: skip
    made = {"read_machine": here, "child_processes": nullcontext, "PeakCache": lambda: cache}
    with mock.patch.multiple(machine, measure_peak=lambda _, *asked, **__: measure(*asked), **made):
        return machine.peak.callback(**(options | more))


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
