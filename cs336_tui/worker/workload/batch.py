"""The data of a step: random tokens, drawn on the device that will read them."""

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
