"""torch.compile: which of its modes are possible here, and the compiled form of a model."""

from __future__ import annotations

import torch
from torch import nn

from cs336_tui.variants import Compile


def why_cannot_compile(device_type: str) -> str | None:
    """What torch.compile lacks for this kind of device, in one line; None where nothing is known to be missing."""
    raise NotImplementedError


def compiled(model: nn.Module, mode: Compile, device: torch.device) -> nn.Module:
    """The model, to be compiled when it is first called. Raises ValueError, in one line, where that cannot be."""
    raise NotImplementedError
