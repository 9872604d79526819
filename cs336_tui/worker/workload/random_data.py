"""Random numbers of a cell: tokens of its batch, values of its fresh parameters."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Token ids, (B, T) each; a target is the token that follows its input."""

    inputs: Tensor
    targets: Tensor


def random_batch(
    batch_size: int, context_length: int, vocab_size: int, *, device: torch.device | str, seed: int
) -> Batch:
    """Uniform tokens; the same seed gives the same batch on the same kind of device."""
    generator = torch.Generator(device).manual_seed(seed)
    tokens = torch.randint(vocab_size, (batch_size, context_length + 1), device=device, generator=generator)
    return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


_PART = 1 << 15
"""Elements drawn at a time on a CPU: few enough for its cache, and for torch not to start its threads, which may cost
many times the work on a busy machine."""


def truncated_normal_(tensor: Tensor, std: float, generator: torch.Generator, *, cut: float = 3.0) -> Tensor:
    """Fill a contiguous tensor from a normal of mean 0 and `std`, cut at ``cut * std`` on both sides. Redraws values
    outside: exact, and on a CPU many times faster than `torch.nn.init.trunc_normal_`."""
    flat = tensor.detach().view(-1)
    for part in flat.split(_PART) if flat.device.type == "cpu" else (flat,):
        part.normal_(0.0, std, generator=generator)
        outside = (part.abs() > cut * std).nonzero().squeeze(1)
        if outside.numel():
            part[outside] = truncated_normal_(part.new_empty(outside.numel()), std, generator, cut=cut)
    return tensor
