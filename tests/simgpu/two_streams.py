"""Attention that computes on two streams at once, for tests of times."""

from __future__ import annotations

import torch
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Two thirds of what this stream does run beside it, on another."""
    here = torch.cuda.current_stream()
    beside = _beside.setdefault(q.device, torch.cuda.Stream(q.device))
    beside.wait_stream(here)
    scores = q @ k.transpose(-2, -1)
    with torch.cuda.stream(beside):
        other = torch.tanh(q) @ k.transpose(-2, -1)
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1) if mask is not None else scores.softmax(-1)
    here.wait_stream(beside)
    return (weights + other) @ v


_beside: dict[torch.device, torch.cuda.Stream] = {}
