"""Tensors that each Transformer block saves for backward, from autograd's hooks on saved tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cs336_tui.events.reports import NO_RANGE, SavedBlock, SavedTensor
from cs336_tui.worker.workload.building import Workload
from cs336_tui.worker.workload.model_parts import block_list
from cs336_tui.worker.workload.passes import logits_of
from cs336_tui.worker.workload.precision import dtype_name
from cs336_tui.worker.workload.ranges import Annotation, name_parts

WHOLE_MODEL = "model"  # The block's name if a model has no list of blocks
CHECKPOINT = "checkpoint"  # The node's name for inputs of blocks that are recomputed in backward


def saved_for_backward(
    workload: Workload, checkpoint: int = 0, annotations: Sequence[Annotation] = ()
) -> tuple[SavedBlock, ...]:
    """Run one more forward: the tensors that each block saves, each storage counted at its first save, in whole bytes.

    A model without a list of blocks counts as one; one that recomputes activations in groups of `checkpoint` blocks has
    a row for each group. Parameters and buffers are left out, autocast's copies of parameters are not. The model's
    parts stay named, so do not time it afterwards.
    """
    model = workload.model
    groups = list(_groups(model, checkpoint))
    watch = _Watch((*model.parameters(), *model.buffers(), *workload.batch), "" if groups else WHOLE_MODEL)
    name_parts(model, watch.range, annotations)
    hooks = [hook for name, layer in groups for hook in watch.enter_with(layer, name)]
    try:
        with torch.autograd.graph.saved_tensors_hooks(watch.pack, watch.unpack), workload.autocast():
            logits = logits_of(model(workload.batch.inputs))
        if not checkpoint:  # a node would recompute its saved tensors
            watch.name_nodes(logits)
    finally:
        for hook in hooks:
            hook.remove()
    return watch.blocks()


def _groups(model: nn.Module, checkpoint: int) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules of the blocks: ``layers.0``, or ``layers.0-3`` for the first of four blocks that are recomputed
    together, which runs them all."""
    blocks = list(block_list(model) or ())
    size = max(checkpoint, 1)
    for first in range(0, len(blocks), size):
        last = min(first + size, len(blocks)) - 1
        yield f"layers.{first}" if last == first else f"layers.{first}-{last}", blocks[first]


class _Saved(NamedTuple):
    """Autograd's handle on a saved tensor. Keeps it alive, so that no other gets its storage's address."""

    tensor: Tensor
    sequence: int  # Of the node that saved it
    module: str
    range: str
    counts: bool


class _Watch:
    def __init__(self, there_anyway: tuple[Tensor, ...], module: str) -> None:
        self._counted = {tensor.untyped_storage()._cdata for tensor in there_anyway}
        """Storages that are not counted, or not again."""
        self._saved: list[_Saved] = []
        self._nodes: dict[int, str] = {}  # Names by sequence number
        self._module = module
        self._ranges: list[str] = []

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        self._ranges.append(name)
        try:
            yield
        finally:
            self._ranges.pop()

    def enter_with(self, module: nn.Module, name: str) -> Iterator[Any]:
        """Count tensors that are saved while the module runs to `name`."""

        def enter(*_: object) -> None:
            self._module = name

        def leave(*_: object) -> None:
            self._module = ""

        yield module.register_forward_pre_hook(enter)
        yield module.register_forward_hook(leave)

    def pack(self, tensor: Tensor) -> _Saved:
        storage = tensor.untyped_storage()
        # Checkpointing saved an empty tensor up to torch 2.6.
        counts = bool(storage.nbytes()) and storage._cdata not in self._counted
        if counts:
            self._counted.add(storage._cdata)
        sequence = torch.autograd._get_sequence_nr() - 1  # a node takes its number before it saves
        saved = _Saved(tensor, sequence, self._module, self._ranges[-1] if self._ranges else NO_RANGE, counts)
        self._saved.append(saved)
        return saved

    def unpack(self, saved: _Saved) -> Tensor:
        return saved.tensor

    def name_nodes(self, output: Tensor) -> None:
        """Read the names of the nodes, without their saved tensors: reading those would recompute blocks."""
        waiting, seen = [output.grad_fn], {output.grad_fn}
        while waiting:
            node = waiting.pop()
            self._nodes[node._sequence_nr()] = node.name()
            following = [found for found, _ in node.next_functions if found is not None and found not in seen]
            seen.update(following)
            waiting += following

    def blocks(self) -> tuple[SavedBlock, ...]:
        kinds: dict[str, dict[tuple[str, str, str, tuple[int, ...]], list[int]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for saved in self._saved:
            if not saved.counts:
                continue
            # The input of a recomputed block is saved by no node that backward reaches.
            known = saved.sequence in self._nodes
            node, range_ = (self._nodes[saved.sequence], saved.range) if known else (CHECKPOINT, "residual")
            kind = node, range_, dtype_name(saved.tensor.dtype), tuple(saved.tensor.shape)
            kinds[saved.module][kind].append(saved.tensor.untyped_storage().nbytes())
        return tuple(
            SavedBlock(module, sum(map(sum, found.values())), _largest_first(found))
            for module, found in kinds.items()
            if module
        )


def _largest_first(kinds: dict[tuple[str, str, str, tuple[int, ...]], list[int]]) -> tuple[SavedTensor, ...]:
    tensors = [SavedTensor(*kind, count=len(sizes), bytes=sum(sizes)) for kind, sizes in kinds.items()]
    return tuple(sorted(tensors, key=lambda tensor: -tensor.bytes))
