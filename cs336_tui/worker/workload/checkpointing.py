"""Activation checkpointing: groups of blocks whose activations are recomputed in backward (Chen et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cs336_tui.worker.workload.model_parts import StandIn, block_list
from cs336_tui.worker.workload.transformer import Transformer


def checkpoint_blocks(model: nn.Module, every: int) -> None:
    """Make the model keep for backward only the input of each group of `every` blocks; the last may be smaller.

    The list of blocks keeps its length. Raises ValueError if no blocks are found; a model whose blocks cannot be
    grouped raises it at its first run.
    """
    blocks = block_list(model)
    if blocks is None:
        name = type(model).__name__
        raise ValueError(f"checkpoint {every}: {name} has no ModuleList or Sequential of blocks; use checkpoint 0")
    # The reference draws no random numbers; a user's model may, by F.dropout.
    draws = not isinstance(model, Transformer) and not any(parameter.is_meta for parameter in model.parameters())
    members = list(blocks)
    for first in range(0, len(members), every):
        segment = _Segment(members[first : first + every], every, draws)
        for place, block in enumerate(segment.blocks):
            blocks[first + place] = _Member(block, segment, place)


class _Ran(NamedTuple):
    """The expected inputs of a segment's blocks after its first."""

    output: Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Segment:
    """Consecutive blocks that are recomputed together. All run when the first is called; the others return their input,
    which must be the first one's output."""

    def __init__(self, blocks: Sequence[nn.Module], every: int, draws: bool) -> None:
        self.blocks = tuple(blocks)
        self._every = every
        self._draws = draws
        self._ran: _Ran | None = None

    def run(self, place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The output of the block at this place."""
        if not torch.is_grad_enabled():
            return self.blocks[place](*args, **kwargs)
        if len(self.blocks) == 1:
            return self._recomputed(self.blocks[0], args, kwargs)
        if place == 0:
            output = self._recomputed(self._chain, args, kwargs)
            self._ran = _Ran(output, args[1:], kwargs)
            return output
        ran = self._ran
        if place == len(self.blocks) - 1:
            self._ran = None  # else it outlives the step
        if ran is None or not args or args[0] is not ran.output or not _alike(args[1:], kwargs, ran):
            raise ValueError(
                f"checkpoint {self._every}: blocks of {self._kind} are not called one right after the other with the "
                "same arguments, so they cannot be grouped; use checkpoint 1"
            )
        return ran.output

    def _recomputed(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=self._draws, **kwargs)

    def _chain(self, x: Any, *args: Any, **kwargs: Any) -> Tensor:
        for block in self.blocks:
            x = block(x, *args, **kwargs)
            if not isinstance(x, Tensor):
                raise ValueError(
                    f"checkpoint {self._every}: blocks of {self._kind} return {type(x).__name__}, not one tensor, so "
                    "they cannot be grouped; use checkpoint 1"
                )
        return x

    @property
    def _kind(self) -> str:
        return type(self.blocks[0]).__name__


class _Member(StandIn):
    """A block of a segment."""

    def __init__(self, block: nn.Module, segment: _Segment, place: int) -> None:
        super().__init__(block)
        self._segment = segment
        self._place = place

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._segment.run(self._place, args, kwargs)


def _alike(args: tuple[Any, ...], kwargs: dict[str, Any], ran: _Ran) -> bool:
    if len(args) != len(ran.args) or kwargs.keys() != ran.kwargs.keys():
        return False
    pairs = (*zip(args, ran.args, strict=True), *((kwargs[name], ran.kwargs[name]) for name in kwargs))
    return all(one is other for one, other in pairs)
