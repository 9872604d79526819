"""Training by several ranks with torch's own classes: the model as it runs, and its optimizer's class."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from cs336_tui.config.spec import CellSpec
from cs336_tui.worker.workload.model_parts import blocks_of


def wrapped(model: nn.Module, spec: CellSpec, device: torch.device, offset: int = 0) -> nn.Module:
    """The model that keeps its ranks' gradients, or parameters, together; the process group is joined. With ``fsdp2``
    the model itself, whose parameters are then sharded, by block and the rest. `offset` is added to the weights before,
    so that ranks begin unequal."""
    if offset:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(offset)
    match spec.parallel:
        case "ddp" | "zero1":
            return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
        case "fsdp2":
            for block in blocks_of(model):
                fully_shard(block)
            fully_shard(model)
    return model


def optimizer_class(parallel: str) -> Callable[..., torch.optim.Optimizer]:
    """AdamW, or with ``zero1`` AdamW of which each rank keeps the state of its own share of the parameters."""
    if parallel != "zero1":
        return torch.optim.AdamW
    sharded: Any = partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.AdamW)
    return sharded  # type: ignore[no-any-return]
