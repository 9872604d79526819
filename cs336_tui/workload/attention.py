"""How attention is computed where its scores are not materialised: torch's fused kernels, or a user's own function."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from cs336_tui.spec import RunSpec


class AttentionCore(Protocol):
    """Queries, keys and values, (..., T, K) each, to an output of that shape."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...

    def in_words(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> str:
        """What it is, and which kernel it really runs for queries of this shape, such as ``sdpa: flash``."""
        ...


def core_of(spec: RunSpec, device: torch.device) -> AttentionCore | None:
    """The spec's attention; None for the naive one, which is written out where it is used.

    Raises ValueError, in one line, where the device does not have it.
    """
    if spec.attention == "naive":
        return None
    raise NotImplementedError(device)
