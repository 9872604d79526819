"""Reads torch's versions, its devices and their precisions on this machine."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import psutil
import torch
from msgspec.structs import replace
from torch import distributed

from cs336_tui.config.processes import set_variables, slowing
from cs336_tui.config.spec import ModelDims, Precision
from cs336_tui.events.environment import DeviceInfo, TorchEnvironment
from cs336_tui.worker.workload.attention import attentions_on
from cs336_tui.worker.workload.building import make_optimizer
from cs336_tui.worker.workload.compile_and_capture import run_whole, why_cannot_compile
from cs336_tui.worker.workload.passes import Step, Training
from cs336_tui.worker.workload.precision import RECIPES, autocast_for, tf32_override, why_no_float8
from cs336_tui.worker.workload.transformer import Transformer, random_batch

CPU_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16-mixed", "fp16-mixed", "bf16")
_AMPERE = (8, 0)  # The first CUDA compute capability with TF32 and bf16 in hardware


def probe() -> TorchEnvironment:
    """Read torch's view of this machine. Initialises CUDA, so it belongs in a child process."""
    problems: list[str] = []
    label, memory = device_label(torch.device("cpu")), psutil.virtual_memory().total
    devices = [DeviceInfo(name="cpu", label=label, precisions=CPU_PRECISIONS, memory_bytes=memory)]
    if torch.backends.mps.is_available():
        # Metal's precisions depend on the chip, on macOS and on torch.
        precisions = tuple(p for p in RECIPES if works(p, "mps"))
        label, memory = device_label(torch.device("mps")), torch.mps.recommended_max_memory()
        devices.append(DeviceInfo(name="mps", label=label, precisions=precisions, memory_bytes=memory))
    try:
        if torch.version.cuda is not None or torch.version.hip is not None:
            torch.cuda.init()
            devices += [_cuda(index) for index in range(torch.cuda.device_count())]
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0].partition(". ")[0]
        problems.append(f"torch was built for CUDA {torch.version.cuda} but cannot use a GPU: {reason}")
    if (override := tf32_override()) is not None and any(device.name.startswith("cuda") for device in devices):
        lost = "tf32 cannot be had" if override == "0" else "fp32 would be TF32 in truth"
        problems.append(f"NVIDIA_TF32_OVERRIDE={override} is set: {lost}; unset it to choose")
    kinds = sorted({device.name.partition(":")[0] for device in devices})
    variables = dict.fromkeys(said for kind in kinds for said in set_variables(kind, os.environ))
    problems += (
        f"{name} is set: {how}, so that steps are slower; unset it" for name, how in slowing(variables).items()
    )
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    backends: tuple[str, ...] = ("none",)  # Those of communication that this torch was built with
    if distributed.is_available():
        backends = tuple(name for name in ("gloo", "nccl") if getattr(distributed, f"is_{name}_available")())
    return TorchEnvironment(
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        cudnn=cudnn_name(cudnn) if cudnn else None,
        threads=torch.get_num_threads(),
        devices=tuple(_completed(devices)),
        backends=backends,
        problems=tuple(problems),
    )


def try_device(device: str) -> None:
    """Multiply two small matrices there and wait for it. Raises torch's errors of a device that cannot be used."""
    ones = torch.ones(64, 64, device=device)
    if (found := float((ones @ ones).sum())) != 64.0**3:
        raise RuntimeError(f"{device} multiplies wrongly: {found:g} in place of {64**3}")


def works(precision: Precision, device_type: str) -> bool:
    """True if a train-step of the smallest model runs in this precision; tried here."""
    recipe = RECIPES[precision]
    if recipe.matmul != "highest" or recipe.float8:
        return False  # CUDA only: other devices ignore the matmul precision and have no float8
    dims = ModelDims(d_model=8, d_ff=8, num_layers=1, num_heads=1, vocab_size=8)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns if it leaves autocast off; the dtype shows it
            model = Transformer(dims, arch="swiglu-rope", context_length=4, device=device_type, dtype=recipe.parameters)
            model.initialise(0)
            batch = random_batch(1, 4, dims.vocab_size, device=device_type, seed=0)
            optimizer, name = make_optimizer("adamw", model, device_type)
            training = Training(optimizer, name, device_type, scale_gradients=recipe.scale_gradients)
            step = Step("train-step", model, batch, autocast_for(recipe, device_type), training)
            run_whole(step)
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return step.logits_dtype == (recipe.autocast or recipe.parameters)


def _completed(devices: Iterable[DeviceInfo]) -> Iterator[DeviceInfo]:
    """The devices with their kinds of attention, and the reason for which torch.compile cannot work on them."""
    known: dict[tuple[str, str | None], tuple[str, ...]] = {}  # Equal GPUs are asked once, as it takes a CUDA context
    for device in devices:
        kind, free = (device.label, device.capability), None
        if kind not in known:
            known[kind] = ()
            with suppress(RuntimeError):  # a GPU without free memory, say: the cell reports it
                known[kind] = attentions_on(torch.device(device.name))
                if device.name.startswith("cuda"):
                    torch.cuda.empty_cache()
                    free = int(torch.cuda.mem_get_info(torch.device(device.name))[0])
        why = why_cannot_compile(device.name.partition(":")[0])
        yield replace(device, attentions=known[kind], cannot_compile=why, free_bytes=free)


def _cuda(index: int) -> DeviceInfo:
    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    return DeviceInfo(
        name=f"cuda:{index}",
        label=properties.name,
        precisions=cuda_precisions(capability, properties.name),
        memory_bytes=properties.total_memory,
        uuid=nvml_uuid(index, properties),
        capability=f"{properties.major}.{properties.minor}",
    )


def cuda_precisions(capability: tuple[int, int], name: str) -> tuple[Precision, ...]:
    """Precisions of this compute capability, without those that torch lacks or the environment forbids."""
    offered: tuple[Precision, ...] = tuple(RECIPES) if capability >= _AMPERE else ("fp32", "fp16-mixed")
    forbidden = {"0": "tf32", "1": "fp32"}.get(tf32_override() or "")
    without = {forbidden, "fp8-mixed" if why_no_float8(capability, name) else None}
    return tuple(precision for precision in offered if precision not in without)


def device_label(device: torch.device) -> str:
    """The device's name; of a CPU the widest instructions that torch uses on it."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    if device.type == "mps":
        return "Apple GPU (Metal)"
    capability = torch.backends.cpu.get_cpu_capability()
    return "CPU" if capability == "DEFAULT" else f"CPU ({capability})"


def nvml_uuid(index: int, properties: Any) -> str | None:
    """The UUID of CUDA device `index` as NVML spells it: ``GPU-...``, or ``MIG-...`` for a slice of a GPU. torch gives
    the bare UUID, and of a slice the whole GPU's; the slice's own is in ``CUDA_VISIBLE_DEVICES``."""
    visible = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if index < len(visible) and visible[index].startswith("MIG-"):
        return visible[index]
    uuid = str(getattr(properties, "uuid", "") or "")
    if not uuid:
        return None
    return uuid if re.match("GPU-|MIG-", uuid) else f"{'MIG' if ' MIG ' in properties.name else 'GPU'}-{uuid}"


def cudnn_name(version: int) -> str:
    """``9.10.2`` for cuDNN's 91002, ``8.9.7`` for its 8907."""
    major = 10_000 if version >= 90_000 else 1_000
    return f"{version // major}.{version % major // 100}.{version % 100}"
