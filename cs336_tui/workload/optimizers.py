"""The optimizer of a training step: torch's AdamW in its three implementations, or one of the user's own."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from cs336_tui.variants import is_imported

IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "adamw-fused": {"fused": True},
    "adamw-foreach": {"foreach": True},
    "adamw-for-loop": {"foreach": False, "fused": False},
}


class NamedOptimizer(NamedTuple):
    """An optimizer, and in words what it is."""

    optimizer: torch.optim.Optimizer
    name: str


def make_optimizer(choice: str, model: nn.Module, device_type: str, *, capturable: bool = False) -> NamedOptimizer:
    """The optimizer of one of `cs336_tui.variants.OPTIMIZERS`, or the user's own, over the model's parameters.

    `device_type` is where the step is to run, which decides what ``adamw`` is; parameters may be of the meta device.
    `capturable` asks for a step that a CUDA graph can hold.
    """
    if is_imported(choice):
        raise NotImplementedError(choice)
    if choice == "adamw":
        choice = "adamw-foreach" if device_type == "cuda" else "adamw-for-loop"  # torch's own choice, said aloud
    options: dict[str, Any] = {**IMPLEMENTATIONS[choice], "capturable": capturable}
    return NamedOptimizer(torch.optim.AdamW(model.parameters(), **options), f"AdamW ({choice.removeprefix('adamw-')})")
