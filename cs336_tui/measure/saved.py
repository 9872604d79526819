"""What each Transformer block keeps for its backward, by the hooks that autograd calls for every tensor it saves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cs336_tui.reports import NO_RANGE, SavedBlock, SavedTensor
from cs336_tui.workload.blocks import blocks_of
from cs336_tui.workload.building import Workload
from cs336_tui.workload.precision import dtype_name
from cs336_tui.workload.ranges import name_parts

_SAVED = "_saved_"
"""What autograd's nodes call the attributes under which they show what they have saved."""


def saved_for_backward(workload: Workload) -> tuple[SavedBlock, ...]:
    """Run one more forward and say what each block saves, each storage counted where it is saved first.

    Parameters and buffers, which are there anyway, are left out; a copy of a parameter that autocast made is not.
    Bytes are those of whole storages. The model's parts are named for good, so that it is of no use for timing after.
    """
    model = workload.model
    watch = _Watch((*model.parameters(), *model.buffers(), *workload.batch))
    name_parts(model, watch.range)
    hooks = [
        hook
        for number, layer in enumerate(blocks_of(model) or ())
        for hook in watch.enter_with(layer, f"layers.{number}")
    ]
    try:
        with torch.autograd.graph.saved_tensors_hooks(watch.pack, watch.unpack), workload.autocast():
            logits = model(workload.batch.inputs)
        watch.name_nodes(logits)
    finally:
        for hook in hooks:
            hook.remove()
    return watch.blocks()


class _Saved(NamedTuple):
    """Autograd's handle on what it saved. It holds the tensor, so that no other gets its storage's address."""

    number: int
    tensor: Tensor


class _Place(NamedTuple):
    module: str
    range: str


class _Watch:
    def __init__(self, there_anyway: tuple[Tensor, ...]) -> None:
        self._counted = {tensor.untyped_storage()._cdata for tensor in there_anyway}
        """Storages that are not to be counted, or not again."""
        self._places: dict[int, _Place] = {}
        """Where each saved tensor that counts was saved, by its number."""
        self._saved: list[_Saved] = []
        self._nodes: dict[int, str] = {}
        self._module = ""
        self._ranges: list[str] = []
        self._unpacked: list[int] = []

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        self._ranges.append(name)
        try:
            yield
        finally:
            self._ranges.pop()

    def enter_with(self, module: nn.Module, name: str) -> Iterator[Any]:
        """Count what is saved while the module runs to it."""

        def enter(*_: object) -> None:
            self._module = name

        def leave(*_: object) -> None:
            self._module = ""

        yield module.register_forward_pre_hook(enter)
        yield module.register_forward_hook(leave)

    def pack(self, tensor: Tensor) -> _Saved:
        saved = _Saved(len(self._saved), tensor)
        self._saved.append(saved)
        storage = tensor.untyped_storage()._cdata
        if storage not in self._counted:
            self._counted.add(storage)
            self._places[saved.number] = _Place(self._module, self._ranges[-1] if self._ranges else NO_RANGE)
        return saved

    def unpack(self, saved: _Saved) -> Tensor:
        self._unpacked.append(saved.number)
        return saved.tensor

    def name_nodes(self, output: Tensor) -> None:
        """Find the node that saved each tensor: reading what a node shows of it unpacks the node's own handles."""
        waiting, seen = [output.grad_fn], {output.grad_fn}
        while waiting:
            node = waiting.pop()
            self._unpacked.clear()
            for name in dir(node):
                if name.startswith(_SAVED):
                    getattr(node, name)
            self._nodes |= dict.fromkeys(self._unpacked, node.name())
            following = [found for found, _ in node.next_functions if found is not None and found not in seen]
            seen.update(following)
            waiting += following

    def blocks(self) -> tuple[SavedBlock, ...]:
        kinds: dict[str, dict[tuple[str, str, str, tuple[int, ...]], list[int]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for number, place in self._places.items():
            tensor = self._saved[number].tensor
            kind = self._nodes[number], place.range, dtype_name(tensor.dtype), tuple(tensor.shape)
            kinds[place.module][kind].append(tensor.untyped_storage().nbytes())
        return tuple(
            SavedBlock(module, sum(map(sum, found.values())), _largest_first(found))
            for module, found in kinds.items()
            if module
        )


def _largest_first(kinds: dict[tuple[str, str, str, tuple[int, ...]], list[int]]) -> tuple[SavedTensor, ...]:
    tensors = [SavedTensor(*kind, count=len(sizes), bytes=sum(sizes)) for kind, sizes in kinds.items()]
    return tuple(sorted(tensors, key=lambda tensor: -tensor.bytes))
