"""Reading back what is really in force once a cell is built."""

from __future__ import annotations

import torch

from cs336_tui.events import InForce
from cs336_tui.measure.devices import device_label
from cs336_tui.measure.malloc import malloc_in_force, settings_of
from cs336_tui.workload.building import Workload
from cs336_tui.workload.compiling import compiler_in_force
from cs336_tui.workload.float8 import float8_in_words
from cs336_tui.workload.precision import autocast_in_force, dtype_name, tf32_allowed

_CUDA_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")
_MPS_VARIABLES = ("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO")
"""Environment variables that set torch's allocators ("CUDA semantics" and "MPS Environment Variables" of its notes)."""


def read_in_force(workload: Workload) -> InForce:
    """What torch itself says now; the dtype of the logits is not known before the first step."""
    model, training = workload.model, workload.training
    device = workload.batch.targets.device
    autocast_dtype = autocast_in_force(workload.autocast, device.type)
    return InForce(
        matmul_precision=torch.get_float32_matmul_precision(),
        allow_tf32=tf32_allowed() if device.type == "cuda" else None,
        parameter_dtype="+".join(sorted({dtype_name(p.dtype) for p in model.parameters()})),
        autocast_dtype=autocast_dtype and dtype_name(autocast_dtype),
        float8=float8_in_words(model),
        grad_scaler=training.scales_gradients if training is not None else False,
        optimizer=training.name if training is not None else None,
        threads=torch.get_num_threads(),
        interop_threads=torch.get_num_interop_threads(),
        attention=workload.facts.attention,
        compiler=compiler_in_force(workload.runs),
        allocator=allocator_in_force(device),
        device_name=device_label(device),
        model_revision=workload.facts.revision,
    )


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
