"""The memory round each Transformer block: live bytes when its forward and its backward begin and end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from cs336_tui.events.memory_report import BlockMemory
from cs336_tui.worker.estimate.tracker import TrackedTimeline
from cs336_tui.worker.workload.model_parts import BlockGroup, block_groups

What = Literal["forward begins", "forward ends", "backward begins", "backward ends"]


class BlockMoment(NamedTuple):
    """A moment of a block: the number of its mark, and the first event after it."""

    block: str
    what: What
    mark: int
    event: int


@contextmanager
def watched_blocks(model: nn.Module, at: Callable[[str, What], object]) -> Iterator[None]:
    """Call `at` with the block's name when its forward or backward begins or ends, recomputed forwards left out.

    The backward of a block begins when the gradient of its output is known and ends when that of its input is: then its
    parameters have their gradients and its saved tensors are free. Blocks that are recomputed together count as one.
    """
    hooks = [hook for group in block_groups(model) for hook in _hooks(group, at)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hooks(group: BlockGroup, at: Callable[[str, What], object]) -> Iterator[Any]:
    def enter(_module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch._C._current_autograd_node() is None:
            _once_known(group.name, "backward ends", (args, kwargs), at)
            at(group.name, "forward begins")

    def leave(_module: nn.Module, _args: Any, output: Any) -> None:
        if torch._C._current_autograd_node() is None:
            _once_known(group.name, "backward begins", output, at)
            at(group.name, "forward ends")

    yield group.entry.register_forward_pre_hook(enter, with_kwargs=True)
    yield group.entry.register_forward_hook(leave)


def _once_known(block: str, what: What, value: object, at: Callable[[str, What], object]) -> None:
    """Call `at` once the gradient of the value is known: of the first tensor that has one."""
    tensors = (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and leaf.requires_grad)
    if (tensor := next(tensors, None)) is not None:
        tensor.register_hook(lambda _: (at(block, what), None)[1])


def memory_of_blocks(
    model: nn.Module, moments: Iterable[BlockMoment], timeline: TrackedTimeline
) -> tuple[BlockMemory, ...]:
    """Live bytes at these moments, whose events are the timeline's. A block whose backward did not begin and end, as
    without a gradient of its input, is left out."""
    events = {(moment.block, moment.what): moment.event for moment in moments}

    def live(block: str, what: What) -> int:
        return timeline.totals[events[block, what] - 1]

    found = []
    for group in block_groups(model):
        name = group.name
        if {(name, "backward begins"), (name, "backward ends")} <= events.keys():
            first, end = events[name, "backward begins"], events[name, "backward ends"]
            trained = {each for block in group.blocks for each in block.parameters() if each.requires_grad}
            found.append(
                BlockMemory(
                    module=name,
                    forward_bytes=live(name, "forward ends") - live(name, "forward begins"),
                    before_bytes=live(name, "backward begins"),
                    after_bytes=live(name, "backward ends"),
                    peak_bytes=max(timeline.totals[first - 1 : end]),
                    gradient_bytes=sum(each.nbytes for each in trained),
                )
            )
    return tuple(found)
