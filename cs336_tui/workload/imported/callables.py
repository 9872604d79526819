"""A user's own loss, optimizer and attention from their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]
"""Logits (B, T, V) and targets (B, T) to a number."""
AttentionFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys and values (..., T, K) to an output of that shape; causal or not as asked for when it was imported."""


def imported_loss(name: str, paths: tuple[str, ...]) -> Loss:
    """The named function; one that wants flat logits (B T, V) and targets (B T,) is given these."""
    raise NotImplementedError


def imported_optimizer(name: str, paths: tuple[str, ...], parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The named class over these parameters, all else as it is by default."""
    raise NotImplementedError


def imported_attention(name: str, paths: tuple[str, ...], *, causal: bool) -> AttentionFunction:
    """The named function, or the `apply` of a named `torch.autograd.Function`, told to be causal by whichever of its
    arguments says so."""
    raise NotImplementedError
