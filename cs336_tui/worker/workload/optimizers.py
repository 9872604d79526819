"""The optimizer of a training step: torch's AdamW in its three implementations, or one of the user's own."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "adamw-fused": {"fused": True},
    "adamw-foreach": {"foreach": True},
    "adamw-for-loop": {"foreach": False, "fused": False},
}
_FUSED_ON = ("cpu", "cuda", "mps")
"""Devices with a fused kernel, in torch 2.6 and later: ``_get_fused_kernels_supported_devices``."""


class NamedOptimizer(NamedTuple):
    """An optimizer, and in words what it is."""

    optimizer: torch.optim.Optimizer
    name: str


def make_optimizer(choice: str, model: nn.Module, device_type: str, *, capturable: bool = False) -> NamedOptimizer:
    """The optimizer of one of `config.variants.OPTIMIZERS` over the model's parameters, torch's defaults else.

    `device_type` is where the step is to run, which decides what ``adamw`` is; parameters may be of the meta device.
    `capturable` asks for a step that a CUDA graph can hold. Raises ValueError for an implementation that the device
    does not have.
    """
    if choice == "adamw":  # torch's own choice, said aloud: ``_default_to_fused_or_foreach`` in torch.optim.optimizer
        choice = "adamw-foreach" if device_type == "cuda" else "adamw-for-loop"
    name = f"AdamW ({choice.removeprefix('adamw-')})"
    parameters = list(model.parameters())
    options: dict[str, Any] = {**IMPLEMENTATIONS[choice]}
    if "fused" in choice:
        _check_fused(choice, parameters, device_type)
        if any(parameter.is_meta for parameter in parameters):
            return NamedOptimizer(_FusedOnMeta(parameters), name)
    if device_type == "cuda":
        options["capturable"] = capturable
    return NamedOptimizer(torch.optim.AdamW(parameters, **options), name)


def _check_fused(choice: str, parameters: list[nn.Parameter], device_type: str) -> None:
    if device_type not in _FUSED_ON:
        raise ValueError(f"optimizer {choice}: torch has no fused AdamW on {device_type}; use adamw-foreach")
    if other := next((each.dtype for each in parameters if not each.is_floating_point()), None):
        dtype = str(other).removeprefix("torch.")
        raise ValueError(f"optimizer {choice}: torch has no fused AdamW for {dtype} parameters; use adamw-foreach")


class _FusedOnMeta(torch.optim.Optimizer):
    """What fused AdamW is to memory, for a step without data: its state, with counts of steps on the device, and
    nothing else, as one kernel does all. torch's own refuses the meta device."""

    _step_supports_amp_scaling = True  # its kernel undoes the scaling of gradients

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        del closure
        for parameter in (each for group in self.param_groups for each in group["params"]):
            if parameter.grad is not None and not self.state[parameter]:
                self.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
