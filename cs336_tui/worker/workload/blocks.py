"""Finding the blocks of a Transformer, the reference's or anybody's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from torch import nn

BlockList: TypeAlias = nn.ModuleList | nn.Sequential


class StandIn(nn.Module):
    """Takes a block's place in the model's list of them, and shows its attributes as its own."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "block":
                raise
            return getattr(self.block, name)


def blocks_of(model: nn.Module) -> tuple[nn.Module, ...]:
    """The blocks in the order in which they are listed, whatever stands in for them; none where no list is found."""
    found = block_list(model)
    return tuple(each.block if isinstance(each, StandIn) else each for each in found) if found is not None else ()


def block_list(model: nn.Module) -> BlockList | None:
    """The list in which the model has its blocks: the longest list of modules of one class that is in no other such
    list, one of modules with parts before one of single layers. None where there is none."""
    return max(_lists(model), key=lambda found: (any(found[0].children()), len(found)), default=None)


def _lists(module: nn.Module) -> Iterator[BlockList]:
    if isinstance(module, nn.ModuleList | nn.Sequential) and len({type(child) for child in module}) == 1:
        yield module
    else:
        for child in module.children():
            yield from _lists(child)
