"""Attention alone: queries, keys and values without a head dimension, (B, T, K) each, that want gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cs336_tui.spec import RunSpec
from cs336_tui.workload.batch import Batch


class AttentionOnly(nn.Module):
    """Holds q, k and v as its parameters; what it is given is ignored, what it returns is the output, (B, T, K)."""

    def __init__(self, spec: RunSpec, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        raise NotImplementedError(spec.title, device, dtype)

    def initialise(self, seed: int) -> None:
        """Draw q, k and v from a standard normal."""
        raise NotImplementedError

    def forward(self, _: Tensor) -> Tensor:
        raise NotImplementedError


def attention_batch(spec: RunSpec, device: torch.device) -> Batch:
    """No tokens; the targets are the gradient of the output, (B, T, K), so that the loss is their product's sum."""
    raise NotImplementedError(spec.title, device)


def attention_loss(output: Tensor, gradient: Tensor) -> Tensor:
    """The sum of the output times its gradient."""
    return (output * gradient).sum()
