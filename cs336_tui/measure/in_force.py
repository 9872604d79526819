"""Reading back what is really in force once a cell is built."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from cs336_tui.events import InForce
from cs336_tui.measure.devices import device_label
from cs336_tui.workload.passes import Training
from cs336_tui.workload.precision import autocast_in_force, dtype_name, tf32_allowed
from cs336_tui.workload.transformer import Transformer


def read_in_force(
    model: Transformer, autocast: Callable[[], AbstractContextManager[object]], training: Training | None
) -> InForce:
    """What torch itself says now; the dtype of the logits is not known before the first step."""
    device = model.head.weight.device
    autocast_dtype = autocast_in_force(autocast, device.type)
    return InForce(
        matmul_precision=torch.get_float32_matmul_precision(),
        allow_tf32=tf32_allowed() if device.type == "cuda" else None,
        parameter_dtype="+".join(sorted({dtype_name(p.dtype) for p in model.parameters()})),
        autocast_dtype=autocast_dtype and dtype_name(autocast_dtype),
        grad_scaler=training.scales_gradients if training is not None else False,
        optimizer=training.name if training is not None else None,
        threads=torch.get_num_threads(),
        device_name=device_label(device),
    )
