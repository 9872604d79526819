"""Reading back what is really in force once a cell is built."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import torch

from cs336_tui.config.timing_variables import set_variables
from cs336_tui.events.events import InForce
from cs336_tui.worker.measure.devices import device_label
from cs336_tui.worker.measure.malloc import malloc_in_force, settings_of
from cs336_tui.worker.workload.building import Workload
from cs336_tui.worker.workload.compiling import compiler_in_force
from cs336_tui.worker.workload.float8 import float8_in_words
from cs336_tui.worker.workload.precision import autocast_in_force, dtype_name, matmul_in_force, tf32_allowed

UNKNOWN = "unknown"
_Told = TypeVar("_Told")
_Other = TypeVar("_Other")

_CUDA_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")
_MPS_VARIABLES = ("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO")
"""Environment variables that set torch's allocators ("CUDA semantics" and "MPS Environment Variables" of its notes)."""


def read_in_force(workload: Workload) -> InForce:
    """What torch itself says now; the dtype of the logits is not known before the first step.

    Never raises: what cannot be told, as where a model mixed names of one setting or made warnings errors, is unknown.
    """
    model, training = workload.model, workload.training
    device = workload.batch.targets.device
    autocast_dtype = _told(lambda: autocast_in_force(workload.autocast, device.type), UNKNOWN)
    return InForce(
        matmul_precision=_told(lambda: matmul_in_force(device.type), UNKNOWN),
        allow_tf32=_told(tf32_allowed, None) if device.type == "cuda" else None,
        parameter_dtype=_told(lambda: "+".join(sorted({dtype_name(p.dtype) for p in model.parameters()})), UNKNOWN),
        autocast_dtype=dtype_name(autocast_dtype) if isinstance(autocast_dtype, torch.dtype) else autocast_dtype,
        float8=_told(lambda: float8_in_words(model), None),
        grad_scaler=training.scales_gradients if training is not None else False,
        optimizer=training.name if training is not None else None,
        threads=_told(torch.get_num_threads, None),
        interop_threads=_told(torch.get_num_interop_threads, None),
        attention=workload.facts.attention,
        compiler=_told(lambda: compiler_in_force(workload.runs), None),
        variables=set_variables(device.type, os.environ),
        allocator=_told(lambda: allocator_in_force(device), None),
        device_name=_told(lambda: device_label(device), None),
        model_revision=workload.facts.revision,
    )


def _told(question: Callable[[], _Told], otherwise: _Other) -> _Told | _Other:
    """The answer, or `otherwise` where asking raises: no cell may fail of a question."""
    try:
        return question()
    except Exception:
        return otherwise


def allocator_in_force(device: torch.device) -> str | None:
    """The allocator of the device's memory and how it is set, in words; None where that cannot be known."""
    match device.type:
        case "cuda":
            return ", ".join([torch.cuda.get_allocator_backend(), *settings_of(_CUDA_VARIABLES)])
        case "mps":
            return ", ".join(["torch's MPS allocator", *settings_of(_MPS_VARIABLES)])
        case "cpu":
            return malloc_in_force()
    return None
