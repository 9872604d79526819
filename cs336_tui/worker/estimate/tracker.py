"""Tracks memory and FLOPs of a step, operation by operation, on real or meta tensors. Sees the storages that operations
return, and of what a kernel takes while it runs that which it is told (`Scratch`)."""

from __future__ import annotations

import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from cs336_tui.events.prediction import NO_RANGE, Allocation, Category, Site, TensorForm, TrackedTimeline
from cs336_tui.worker.workload import attention_only, norms, passes, transformer
from cs336_tui.worker.workload.building import Workload
from cs336_tui.worker.workload.import_problems import is_users_file
from cs336_tui.worker.workload.precision import dtype_name

MODEL_FILES = frozenset(each.__file__ for each in (transformer, attention_only, norms, passes))
"""Files of frames, beside a user's own: the innermost frame in one of them is the site of an allocation."""
PHASE_RANGES = {"loss": "loss", "optimizer": "optimizer", "zero_grad": "zero_grad"}  # Ranges of these phases
_LEAVES_ACTIVATIONS = ("forward", "loss")

Args = tuple[Any, ...]
Kwargs = dict[str, Any] | None
Scratch = Callable[[Any, Args, Any], Iterable[Iterable[int]]]


class Failure(NamedTuple):
    """The operation that raised: `event` is the last one before it."""

    event: int
    site: Site


class MemoryTracker(TorchDispatchMode):
    """A dispatch mode that records every storage that an operation makes, with its site, and counts FLOPs.

    Usage: `claim` existing tensors, enter the mode, call `phase` before each phase, `claim` the gradients once they
    exist, leave the mode, read `timeline`. For ranges call ``name_parts(model, tracker.range)`` before.

    Backward operations get range and frame of the forward operation whose node runs, by autograd's sequence numbers. A
    dispatch mode stops the engine from accumulating gradients in place, so the tracker does it. Storages from forward
    or loss that are live at their end are activations; unclaimed others are temporary.
    """

    def __init__(self, *, device_type: str | None = None, scratch: Scratch = lambda *_: ()) -> None:
        """Records tensors of `device_type` only; None for all. `scratch` gives the bytes of the tensors
        that an operation has for itself while it runs, those together that live together, by the operation, its
        arguments and what it returned."""
        super().__init__()
        self._device_type = device_type
        self._scratch = scratch
        self._records: list[Allocation] = []
        self._live: dict[int, Allocation] = {}  # By the storage's identity, which is free again once that has gone
        self._ends: dict[int, weakref.ref[torch.UntypedStorage]] = {}  # Keep the call at each storage's end alive
        self.events = 1
        self._phases: list[tuple[str, int]] = []
        self._ranges: list[str] = []
        self.site = Site("")  # Of the last operation
        self._sequence = torch.autograd._get_sequence_nr()
        self._forward_sites: dict[int, tuple[str, str]] = {}  # Range and frame by the number of the operation's node
        self._backward_site = (NO_RANGE, "")
        _sole_reference()  # It is found outside the mode
        self.flops: dict[str, int] = defaultdict(int)  # FLOPs of matrix products, per phase
        self.flops_by_range: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))  # Forward and backward, by range
        self.recomputed_flops = 0  # FLOPs of matrix products that backward recomputes
        self.failure: Failure | None = None  # The first operation that raised; None when none has

    def phase(self, name: str) -> None:
        self._keep_activations()
        self._phases.append((name, self.events))

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Assign the operations inside to this range, unless to an inner one."""
        self._ranges.append(name)
        try:
            yield
        finally:
            self._ranges.pop()

    def claim(self, category: Category, tensors: Iterable[Tensor]) -> None:
        """Assign these tensors' storages to `category`, from their birth; unknown ones live from event 0. Other
        devices' are left out. Raises ValueError for an unknown one after the first phase has begun: it was made
        unseen."""
        for tensor in filter(self._is_tracked, tensors):
            record = self._live.get(_key(tensor))
            if record is None:
                if self._phases:
                    raise ValueError(f"{tuple(tensor.shape)}: allocated outside of the tracker")
                record = self._record(tensor, Site(""), born=0)
            record.category = category

    def claim_cell(self, workload: Workload) -> int:
        """Claim all tensors that live between two steps; returns the bytes of all that is live."""
        self.claim("parameters", workload.model.parameters())
        self.claim("buffers", (*workload.model.buffers(), *workload.batch))
        self.claim("optimizer_state", workload.optimizer_state())
        self.claim("gradients", workload.gradients())
        return sum(record.bytes for record in self._live.values())

    def timeline(self) -> TrackedTimeline:
        self._keep_activations()
        return TrackedTimeline(map(copy, self._records), self.events, self._phases)

    def __torch_dispatch__(self, func: Any, types: object, args: Args = (), kwargs: Kwargs = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace != "aten":  # ``prim.device``, which reads a tensor's device
            return func(*args, **kwargs)
        if torch.is_inference_mode_enabled():  # without autograd's layer, composite operations arrive whole
            with self:
                if (out := func.decompose(*args, **kwargs)) is not NotImplemented:
                    return out
        self.site = site = self._site(str(func.overloadpacket).removeprefix("aten."))
        try:
            out = args[0].add_(args[1]) if adds_gradients(func, args) else func(*args, **kwargs)
        except BaseException:
            self.failure = self.failure or Failure(self.events - 1, site)
            raise
        for tensor in _tensors(out) if site.op != "native_dropout" else reversed(out):  # its mask comes first
            if _key(tensor) in self._live or not self._is_tracked(tensor):
                continue
            if not (_may_alias(func) and any(_key(arg) == _key(tensor) for arg in _tensors(args))):
                self._record(tensor, site, born=self._next_event())
        for together in self._scratch(func, args, out):
            own = [Allocation(size, site, self._next_event()) for size in together if size]
            for each in own:
                each.died = self._next_event()
            self._records += own
        if count := flop_registry.get(func.overloadpacket):
            flops = count(*args, **kwargs, out_val=out)
            self.flops[site.phase] += flops
            there, back = self.flops_by_range[site.range]
            self.flops_by_range[site.range] = (there, back + flops) if site.backward else (there + flops, back)
            if site.backward and torch.is_grad_enabled():
                self.recomputed_flops += flops
            elif site.backward and "scaled_dot_product" in site.op:  # one in five products: the scores, again
                self.recomputed_flops += flops // 5
        return out

    def _site(self, op: str) -> Site:
        phase = self._phases[-1][0] if self._phases else ""
        node = torch._C._current_autograd_node()
        if node is not None and torch.is_grad_enabled():  # recomputed activations
            return Site(op, self._frame(), self._ranges[-1] if self._ranges else NO_RANGE, phase, backward=True)
        if node is not None:
            # A node without a forward operation, as one that stores a gradient, runs for the node before.
            self._backward_site = self._forward_sites.get(node._sequence_nr(), self._backward_site)
            range_, frame = self._backward_site
            return Site(op, frame, range_, phase, backward=True)
        range_ = self._ranges[-1] if self._ranges else PHASE_RANGES.get(phase, NO_RANGE)
        frame = self._frame()
        # An operation's node has its number before the operation runs.
        sequence = torch.autograd._get_sequence_nr()
        for number in range(self._sequence, sequence):
            self._forward_sites[number] = (range_, frame)
        self._sequence = sequence
        return Site(op, frame, range_, phase)

    def _frame(self) -> str:
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            code = frame.f_code
            if code.co_filename in MODEL_FILES or is_users_file(code.co_filename, named_only=True):
                return f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
            frame = frame.f_back
        return ""

    def _is_tracked(self, tensor: Tensor) -> bool:
        return self._device_type in (None, tensor.device.type)

    def _record(self, tensor: Tensor, site: Site, *, born: int) -> Allocation:
        storage, key = tensor.untyped_storage(), _key(tensor)
        form = TensorForm(tuple(tensor.shape), dtype_name(tensor.dtype))
        address = 0 if tensor.is_meta else storage.data_ptr()
        record = self._live[key] = Allocation(storage.nbytes(), site, born, form=form, address=address)
        self._ends[key] = weakref.ref(storage, lambda _: self._forget(key))
        self._records.append(record)
        return record

    def _forget(self, key: int) -> None:
        del self._ends[key]
        self._live.pop(key).died = self._next_event()

    def _next_event(self) -> int:
        self.events += 1
        return self.events - 1

    def _keep_activations(self) -> None:
        if self._phases and self._phases[-1][0] in _LEAVES_ACTIVATIONS:
            for record in self._live.values():
                if record.site.phase in _LEAVES_ACTIVATIONS and record.category == "temporary":
                    record.category = "activations"


def adds_gradients(func: Any, args: Args) -> bool:
    """True in a dispatch mode if the engine adds two gradients and holds the only reference to the first, which it
    would reuse without a mode."""
    if func is not torch.ops.aten.add.Tensor or torch._C._current_autograd_node() is None:
        return False
    if torch.is_grad_enabled():  # the model adds, in a recomputation
        return False
    held, other = args
    return (
        isinstance(held, Tensor)
        and isinstance(other, Tensor)
        and held.shape == other.shape
        and torch.ops.aten.is_non_overlapping_and_dense(held)
        and _references(held) == _sole_reference()
    )


def _key(tensor: Tensor) -> int:
    """The storage's identity while it lives."""
    return tensor.untyped_storage()._cdata


@cache
def _may_alias(func: Any) -> bool:
    return any(returned.alias_info is not None for returned in func._schema.returns)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _references(tensor: Tensor) -> tuple[int, int]:
    """Reference counts of the tensor and its storage, this call included."""
    return tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


@cache
def _sole_reference() -> tuple[int, int] | None:
    """The `_references` of a gradient that only the engine holds, inside a mode; None if torch cannot count them."""
    seen: list[tuple[int, int]] = []

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: object, args: Args = (), kwargs: Kwargs = None) -> Any:
            if func is torch.ops.aten.add.Tensor and torch._C._current_autograd_node() is not None:
                seen.append(_references(args[0]))
            return func(*args, **(kwargs or {}))

    if not hasattr(Tensor, "_use_count"):
        return None
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.ones(2, requires_grad=True)
        y = x.sin() + x.cos()  # two gradients of x, each made by a node of its own
        with Look():
            y.backward(torch.ones(2))
    return seen[0] if seen else None
