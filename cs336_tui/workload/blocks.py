"""Finding the blocks of a Transformer, the reference's or anybody's."""

from __future__ import annotations

from torch import nn


def blocks_of(model: nn.Module) -> nn.ModuleList | nn.Sequential | None:
    """The longest list of modules of one class in the model, the outermost of several; None where there is none."""
    found: nn.ModuleList | nn.Sequential | None = None
    for module in model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len({type(child) for child in module}) == 1:
            found = module if found is None or len(module) > len(found) else found
    return found
