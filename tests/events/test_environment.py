"""Devices of a machine and the cells that it can run."""

from typing import Any

import msgspec
import pytest

from cs336_tui.config.presets import preset
from cs336_tui.config.spec import SpecError
from cs336_tui.config.sweep import Sweep
from cs336_tui.events.environment import DeviceInfo, Environment, without_impossible
from tests.samples import ENVIRONMENT, a_spec


def machine(*names: str) -> Environment:
    devices = tuple(DeviceInfo(name=name, label=name.upper(), precisions=("fp32", "bf16-mixed")) for name in names)
    return msgspec.structs.replace(ENVIRONMENT, devices=devices)


@pytest.mark.parametrize(
    ("names", "best"),
    [
        (("cpu",), "cpu"),
        (("cpu", "mps"), "mps"),
        (("cpu", "cuda:0", "cuda:1"), "cuda:0"),
        ((), "cpu"),
    ],
)
def test_auto_is_the_best_device(names: tuple[str, ...], best: str) -> None:
    assert machine(*names).resolve(("auto",)) == (best,)


def test_named_devices_stay_as_named_in_one_spelling() -> None:
    assert machine("cpu", "cuda:0").resolve(("cuda", "auto", "cpu")) == ("cuda:0", "cuda:0", "cpu")
    with pytest.raises(SpecError, match="device gpu"):
        machine("cpu").resolve(("gpu",))


def a_cpu(**facts: Any) -> Environment:
    device = DeviceInfo(name="cpu", label="A CPU", precisions=("fp32", "bf16"), **facts)
    return msgspec.structs.replace(ENVIRONMENT, devices=(device,))


AMPERE = DeviceInfo(name="cuda:0", label="NVIDIA A100", precisions=("fp32", "bf16"), capability="8.0")
WITH_AMPERE = msgspec.structs.replace(machine("cpu"), devices=(*machine("cpu").devices, AMPERE))
TWO_GPUS = machine("cpu", "cuda:0", "cuda:1")
OF_GLOO = msgspec.structs.replace(TWO_GPUS, backends=("gloo",))


@pytest.mark.parametrize(
    ("here", "device", "choices", "said"),
    [
        (machine("cpu", "cuda:0"), "cuda:1", {}, "device cuda:1: this machine has cpu, cuda:0"),
        (machine(), "cpu", {}, "device cpu: this machine has none that torch can use"),
        (machine("cpu"), "cpu", {"precision": "fp16-mixed"}, "precision fp16-mixed: CPU can do fp32, bf16-mixed"),
        (machine("cpu"), "cpu", {"precision": "bf16-mixed"}, ""),
        (
            WITH_AMPERE,
            "cuda:0",
            {"precision": "fp8-mixed"},
            "precision fp8-mixed: cuda:0 (NVIDIA A100) can do fp32, bf16; "
            "it needs an NVIDIA GPU of compute capability 8.9 or later, cuda:0 has 8.0",
        ),
        (
            WITH_AMPERE,
            "cpu",
            {"precision": "fp8-mixed"},
            "precision fp8-mixed: CPU can do fp32, bf16-mixed; "
            "it needs an NVIDIA GPU of compute capability 8.9 or later, cpu is none",
        ),
        (
            a_cpu(attentions=("naive", "sdpa")),
            "cpu",
            {"attention": "cudnn"},
            "attention cudnn: cpu (A CPU) can do naive, sdpa",
        ),
        (a_cpu(attentions=("naive",)), "cpu", {"attention": "mine:fn"}, ""),
        (a_cpu(cannot_compile="no C++ compiler"), "cpu", {"compile": "default"}, "compile default: no C++ compiler"),
        (a_cpu(), "cpu", {"cuda_graph": "step"}, "cuda graph step: cpu (A CPU) has none; only cuda has"),
        (a_cpu(), "cpu", {"attention": "flash", "compile": "default"}, ""),
        (
            OF_GLOO,
            "cuda:0",
            {"ranks": 3},
            "ranks 3: each has a GPU of its own, and there are 2 GPUs from cuda:0 on; or choose cpu",
        ),
        (
            OF_GLOO,
            "cuda:1",
            {"ranks": 2},
            "ranks 2: each has a GPU of its own, and there is 1 GPU from cuda:1 on; or choose cpu",
        ),
        (OF_GLOO, "cuda:0", {"ranks": 2}, "backend nccl: this torch was built without it; it has gloo"),
        (
            OF_GLOO,
            "cuda:0",
            {"ranks": 2, "backend": "nccl"},
            "backend nccl: this torch was built without it; it has gloo",
        ),
        (OF_GLOO, "cuda:0", {"ranks": 2, "backend": "gloo"}, ""),
        (OF_GLOO, "cpu", {"ranks": 64}, ""),
        (TWO_GPUS, "cuda:0", {"ranks": 2}, ""),
    ],
)
def test_a_machine_refuses_what_it_lacks_by_naming_what_it_has(
    here: Environment, device: str, choices: dict[str, Any], said: str
) -> None:
    assert str(here.refusal(a_spec(device=device, **choices)) or "") == said


def test_a_torch_for_cuda_without_a_driver_is_told_by_doctor_and_no_fault_of_a_run() -> None:
    usual = "torch was built for CUDA 13.0 but cannot use a GPU: Found no NVIDIA driver on your system"
    old = "torch was built for CUDA 13.0 but cannot use a GPU: The NVIDIA driver on your system is too old"
    found = msgspec.structs.replace(ENVIRONMENT, problems=(usual, old))
    assert found.faults == (old,)


def test_the_ranks_of_a_cell_are_on_the_gpus_that_follow_its_first() -> None:
    here = machine("cpu", "cuda:0", "cuda:1", "cuda:2")

    def others(device: str, ranks: int) -> list[str]:
        return [found.name for found in here.others_of(a_spec(device=device, ranks=ranks))]

    assert others("cuda:0", 3) == ["cuda:1", "cuda:2"]
    assert others("cuda:1", 2) == ["cuda:2"]
    assert others("cuda:0", 1) == others("cpu", 4) == []


def test_a_device_is_named_once() -> None:
    cpu = DeviceInfo(name="cpu", label="CPU (AVX512)", precisions=())
    gpu = DeviceInfo(name="cuda:0", label="NVIDIA H100", precisions=())
    assert (cpu.title, gpu.title) == ("CPU (AVX512)", "cuda:0 (NVIDIA H100)")


# Choices that a machine cannot run: left out of a preset, refused if asked for by name


def test_what_the_machine_lacks_is_left_out_and_named() -> None:
    here = a_cpu(cannot_compile="no C++ compiler was found")
    sweep = preset("2026/attention").sweep.with_devices(("cpu",))
    assert without_impossible(sweep, a_cpu()) == (sweep, ()), "all is there"
    found, said = without_impossible(sweep, here)
    assert (found.compiles, said) == (("off",), ("left out: compile default: no C++ compiler was found",))
    assert len(found) == len(sweep) / 2
    for cell in found.cells():
        here.check(cell)


def test_several_things_that_are_lacking_are_all_left_out() -> None:
    here = a_cpu(cannot_compile="no compiler", attentions=("naive", "sdpa"))
    sweep = Sweep(
        devices=("cpu",), precisions=("fp32", "tf32"), attentions=("flash", "sdpa"), compiles=("off", "default")
    )
    found, said = without_impossible(sweep, here)
    assert (found.precisions, found.attentions, found.compiles) == (("fp32",), ("sdpa",), ("off",))
    assert len(said) == 3


def test_what_one_of_the_devices_can_do_stays() -> None:
    other = DeviceInfo(name="mps", label="A GPU", precisions=("fp32", "fp16-mixed"))
    here = msgspec.structs.replace(a_cpu(), devices=(*a_cpu().devices, other))
    sweep = Sweep(devices=("cpu", "mps"), precisions=("fp32", "fp16-mixed"))
    found, said = without_impossible(sweep, here)
    assert (found, said) == (sweep, ())
    refused = next(cell for cell in found.cells() if (cell.device, cell.precision) == ("cpu", "fp16-mixed"))
    with pytest.raises(SpecError, match="precision fp16-mixed"):
        here.check(refused)


def test_what_was_asked_for_by_name_or_would_leave_nothing_stays() -> None:
    here = a_cpu(cannot_compile="no compiler")
    both = Sweep(devices=("cpu",), compiles=("off", "default"))
    assert without_impossible(both, here, ("precision",)) == (both, ())
    alone = Sweep(devices=("cpu",), compiles=("default",))
    assert without_impossible(alone, here) == (alone, ())
