"""Predicts a cell of several ranks in one process: what each rank keeps, and what a step communicates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Self

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import prepared_phases, sharing_of
from cs336_tui.config.variants import is_imported
from cs336_tui.events.prediction import COMMUNICATION, OF_RANKS, Collective, PhaseMemory, Prediction
from cs336_tui.worker.estimate.meta_device import Autocast, MetaAttention, MetaDropout, modes_kept_for_recomputation
from cs336_tui.worker.estimate.scratch import cuda_scratch
from cs336_tui.worker.estimate.tracker import Args, Kwargs, Scratch, adds_gradients
from cs336_tui.worker.ranks.parallel import shard_fully
from cs336_tui.worker.workload.building import Workload, build
from cs336_tui.worker.workload.passes import Shared
from cs336_tui.worker.workload.precision import RECIPES
from cs336_tui.worker.workload.transformer import Batch

_FIRST_BUCKET: int = dist._DEFAULT_FIRST_BUCKET_BYTES
_BUCKET, _BROADCAST_BUCKET = 25 * 2**20, 250 * 2**20
"""DistributedDataParallel's: 1 MiB for the first bucket of gradients, 25 MiB for others, 250 MiB of buffers."""
_HOST = torch.device("cpu")
_OPERATIONS = {
    "_allgather_base_": "all-gather", "_reduce_scatter_base_": "reduce-scatter", "allreduce_": "all-reduce",
    "broadcast_": "broadcast",
}  # fmt: skip
_GLOO = "Gloo"
_CATEGORIES: dict[str, str] = {
    "Sharded Param": "parameters", "Unsharded Param": COMMUNICATION, "Buffer": "buffers", "Inputs": "buffers",
    "Sharded Grad": "gradients", "Unsharded Grad": COMMUNICATION, "Activation": "activations",
    "OptState": "optimizer_state", "All Gather": COMMUNICATION, "Reduce Scatter": COMMUNICATION, _GLOO: COMMUNICATION,
}  # fmt: skip
"""Categories by FSDPMemTracker's names; its others are temporary."""


class Sharers:
    """The part of DDP and ZeRO-1 in a shape-only step (meta tensors): the parameters of this rank's optimizer, and the
    order in which gradients come. The rank is the one whose optimizer has most."""

    def __init__(self, workload: Workload, spec: CellSpec) -> None:
        self._ready: list[Tensor] = []
        self._buffers = list(workload.model.buffers())
        self._trained = [each for each in workload.model.parameters() if each.requires_grad]
        for parameter in self._trained:
            parameter.register_post_accumulate_grad_hook(self._note)
        self.name, self._bucket_bytes = sharing_of(spec.parallel)
        if self.name == "zero1" and workload.training is not None:
            _step_of_shard(workload.training.optimizer, _largest_shard(self._trained, spec.ranks))

    def _note(self, parameter: Tensor) -> None:
        if not any(each is parameter for each in self._ready):
            self._ready.append(parameter)

    @property
    def bucket_bytes(self) -> int:
        """DDP's copy of all gradients, in buckets, which lives as long as the model."""
        return sum(each.nbytes for each in self._trained)

    def communication(self, *, steps_optimizer: bool) -> Iterator[Collective]:
        """A step's: buffers at the beginning of forward, buckets of gradients in backward, and under ZeRO-1 each
        parameter from the rank that stepped it. Buckets are those that DDP makes anew after its first step."""
        if broadcast := [each for each in self._buffers if each.numel()]:
            yield _collective("broadcast", _buckets(broadcast, [_BROADCAST_BUCKET]))
        if self._ready:
            asked = self._bucket_bytes
            yield _collective("all-reduce", _buckets(self._ready, [asked] if asked else [_FIRST_BUCKET, _BUCKET]))
        if self.name == "zero1" and steps_optimizer:
            yield _collective("broadcast", [[each] for each in self._trained])


def _collective(op: str, groups: Sequence[Sequence[Tensor]]) -> Collective:
    return Collective(op=op, calls=len(groups), bytes=sum(each.nbytes for group in groups for each in group))


def _buckets(tensors: Sequence[Tensor], limits: Sequence[int]) -> list[list[Tensor]]:
    """The tensors as torch puts them into buckets of at least so many bytes, the last limit for all further ones."""
    indices, _ = dist._compute_bucket_assignment_by_size(list(tensors), list(limits), [False] * len(tensors), [])
    return [[tensors[index] for index in bucket] for bucket in indices]


def _largest_shard(parameters: Iterable[Tensor], ranks: int) -> list[Tensor]:
    """The most that one rank gets of ZeroRedundancyOptimizer: the largest first, each to the rank with least."""
    shards: list[list[Tensor]] = [[] for _ in range(ranks)]
    sizes = [0] * ranks
    for parameter in sorted(parameters, key=lambda each: each.numel(), reverse=True):
        rank = sizes.index(min(sizes))
        shards[rank].append(parameter)
        sizes[rank] += parameter.numel()
    return shards[sizes.index(max(sizes))]


def _step_of_shard(optimizer: torch.optim.Optimizer, shard: Sequence[Tensor]) -> None:
    """Let the optimizer step these parameters alone: others show it no gradient."""
    kept = {id(each) for each in shard}
    hidden: list[tuple[Tensor, Tensor]] = []

    def hide(*_: object) -> None:
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            if id(parameter) not in kept and parameter.grad is not None:
                hidden.append((parameter, parameter.grad))
                parameter.grad = None

    def show(*_: object) -> None:
        for parameter, gradient in hidden:
            parameter.grad = gradient
        hidden.clear()

    optimizer.register_step_pre_hook(hide)
    optimizer.register_step_post_hook(show)


def of_several(found: Prediction, sharers: Sharers | None, capability: tuple[int, int]) -> Prediction:
    """The prediction of a rank that trains alone as that of one of several; `sharers` are those of its step."""
    spec = found.spec
    name = sharing_of(spec.parallel).name
    if name == "none" or is_imported(name):  # `prediction_note` says what is not known of the latter
        return found
    if name == "fsdp2":
        return _sharded(found, capability)
    assert sharers is not None
    used = _joined(sharers.communication(steps_optimizer=spec.pass_ == "train-step"))
    return msgspec.structs.replace(found.with_more(COMMUNICATION, sharers.bucket_bytes), communication=used)


def _joined(used: Iterable[Collective]) -> tuple[Collective, ...]:
    """One entry for each operation."""
    calls, sizes = Counter[str](), Counter[str]()
    for each in used:
        calls[each.op] += each.calls
        sizes[each.op] += each.bytes
    return tuple(Collective(op=op, calls=number, bytes=sizes[op]) for op, number in calls.items())


class CollectiveCounter(TorchDispatchMode):
    """Counts the collectives of a process group, and the bytes of their whole arrays: the larger of what goes in and
    what comes out."""

    def __init__(self, at: Callable[[Collective], object] = lambda _: None) -> None:
        """`at` is called with each, before it runs."""
        super().__init__()
        self._seen: list[Collective] = []
        self._at = at

    @property
    def used(self) -> tuple[Collective, ...]:
        return _joined(self._seen)

    def __torch_dispatch__(self, func: Any, types: object, args: Args = (), kwargs: Kwargs = None) -> Any:
        name = str(func.overloadpacket).rpartition(".")[2]
        if func.namespace == "c10d" and name in _OPERATIONS:
            sizes = [leaf.nbytes for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            op, size = _OPERATIONS[name], max(sizes)
            self._seen.append(Collective(op=op, calls=1, bytes=size))
            self._at(self._seen[-1])
        return func(*args, **(kwargs or {}))


class _NoOverflow(TorchDispatchMode):
    """Answers the one question of an optimizer about the value of a fake tensor: scaled gradients have not
    overflowed."""

    def __torch_dispatch__(self, func: Any, types: object, args: Args = (), kwargs: Kwargs = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            if func is not torch.ops.aten._local_scalar_dense.default:
                raise
            return 0.0


class ShardedStep(NamedTuple):
    """One step under fully_shard: the most bytes live in each phase and those at its end, with what they are for."""

    phases: dict[str, dict[str, int]]
    ends: dict[str, dict[str, int]]
    used: tuple[Collective, ...]


_TOTAL = "Total"


class _LocalTracker(FSDPMemTracker):
    """Counts tensors of this rank alone, not the whole ones on which DTensor works out shapes: none of those exist
    outside a fake mode. Counts what an operation has for itself while it runs (`scratch`), too."""

    _shapes_alone = False
    scratch: Scratch = staticmethod(lambda *_: ())

    def __enter__(self) -> Self:
        self._propagate = propagate = ShardingPropagator._propagate_tensor_meta_non_cached

        def uncounted(propagator: ShardingPropagator, schema: Any) -> Any:
            self._shapes_alone = True
            try:
                return propagate(propagator, schema)
            finally:
                self._shapes_alone = False

        ShardingPropagator._propagate_tensor_meta_non_cached = uncounted
        super().__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        ShardingPropagator._propagate_tensor_meta_non_cached = self._propagate

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._shapes_alone:
            return func(*args, **(kwargs or {}))
        if adds_gradients(func, args):
            func = torch.ops.aten.add_.Tensor
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func.namespace == "aten" and out is not NotImplemented:
            for together in self.scratch(func, args, out):
                _held = [self._make(size) for size in together if size]
        return out

    def _make(self, size: int) -> Any:
        make, options = torch.ops.aten.empty.memory_format, {"dtype": torch.uint8, "device": _HOST}
        return super().__torch_dispatch__(make, (), ([size],), options)


def follow(workload: Workload, spec: CellSpec, scratch: Scratch | None = None) -> ShardedStep:
    """Run two steps of a workload under fully_shard, and watch the second with FSDPMemTracker. On gloo each
    reduce-scatter works on a copy (``ProcessGroupGloo::reduce_scatter_tensor_coalesced``)."""
    optimizer = workload.training.optimizer if workload.training else None
    tracker = _LocalTracker(workload.runs, optimizer)
    if scratch:
        tracker.scratch = scratch
    tracker.track_inputs(tuple(workload.batch))
    peaks: list[dict[str, int]] = []
    held = 0  # Bytes of gloo's copy for the last reduce-scatter, which a thread of it keeps

    def end_stretch() -> None:
        found = _by_name(tracker.get_tracker_snapshot("peak"))
        peaks.append(found | {_GLOO: held, _TOTAL: found[_TOTAL] + held})
        _forget_peak(tracker)

    def copy(used: Collective) -> None:
        nonlocal held
        if used.op == "reduce-scatter" and spec.backend_in_use == "gloo":
            end_stretch()
            held = used.bytes

    if not hasattr(torch.cpu.Stream, "record_event"):  # before torch 2.7
        torch.cpu.Stream.record_event = lambda _stream: torch.cpu.Event()
        torch.cpu.Stream.wait_event = lambda _stream, _event: None
    step, counter = workload.step(spec), CollectiveCounter(copy)
    step.opening = tracker.reset_mod_stats  # It follows one forward and backward of each module
    phases: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}

    def run(phase: str) -> None:
        with _NoOverflow() if phase == "optimizer" else nullcontext():
            step.run(phase)

    with tracker:
        for phase in prepared_phases(spec.pass_, spec.accumulate):
            run(phase)
        step.clear()
        tracker.reset_mod_stats()
        with counter:
            for phase in prepared_phases(spec.pass_, spec.accumulate):
                _forget_peak(tracker)
                peaks.clear()
                held = 0
                run(phase)
                end_stretch()
                phases[phase] = max(peaks, key=lambda found: found[_TOTAL])
                ends[phase] = _by_name(tracker.get_tracker_snapshot())
    return ShardedStep(phases, ends, counter.used)


def _forget_peak(tracker: FSDPMemTracker) -> None:
    """Begin a new peak at what is live now, as entering the tracker does."""
    tracker._peak_mem_snap = tracker.get_tracker_snapshot()
    tracker._peak_mem = {device: found[_TOTAL] for device, found in tracker._peak_mem_snap.items()}


def _by_name(snapshot: Mapping[torch.device, Mapping[Any, int]]) -> dict[str, int]:
    found = snapshot[_HOST]
    return {getattr(kind, "value", kind): size for kind, size in found.items()}


@contextmanager
def fake_ranks(ranks: int) -> Iterator[DeviceMesh]:
    """A process group of so many ranks whose collectives do nothing; this process is the first."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield init_device_mesh("cpu", (ranks,))
    finally:
        dist.destroy_process_group()


def _on_host(model: nn.Module) -> nn.Module:
    """The model with empty tensors on the host. Parameters that modules share stay shared."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    model.to_empty(device=_HOST)
    for first, *others in names.values():
        for name in others:
            module, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(module), attribute, model.get_parameter(first))
    return model


def _sharded(found: Prediction, capability: tuple[int, int]) -> Prediction:
    """The prediction under fully_shard, by running it on the host's fake tensors among ranks that are not there."""
    spec = found.spec
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake_ranks(spec.ranks) as mesh:

        def share(model: nn.Module) -> Shared:
            with fake:
                return shard_fully(_on_host(model), mesh)

        device_type, dtype = spec.device.partition(":")[0], RECIPES[spec.precision].autocast
        autocast = nullcontext if dtype is None else partial(Autocast, device_type, dtype)
        workload = build(spec, torch.device("meta"), as_written=True, autocast=autocast, share=share)
        with fake:
            batch = Batch(*(torch.zeros(each.shape, dtype=each.dtype) for each in workload.batch))
            is_cuda = device_type == "cuda"
            dropout = MetaDropout() if is_cuda else nullcontext()
            with MetaAttention(device_type, capability), dropout, modes_kept_for_recomputation():
                step = follow(workload._replace(batch=batch), spec, cuda_scratch if is_cuda else None)
    workspaces = found.workspaces * found.workspace_bytes
    for snapshot in (*step.phases.values(), *step.ends.values()):
        snapshot["Workspaces"] = workspaces
        snapshot[_TOTAL] += workspaces
    phase = max(step.phases, key=lambda name: step.phases[name][_TOTAL])
    peak = step.phases[phase]
    return msgspec.structs.replace(
        found,
        communication=step.used,
        peak_bytes=peak[_TOTAL],
        peak_phase=phase,
        by_category=_in_categories(peak),
        forward_peak_bytes=step.phases["forward"][_TOTAL],
        forward_end_bytes=step.ends["forward"][_TOTAL],
        forward_end_by_category=_in_categories(step.ends["forward"]),
        largest=(),
        activation_peak_bytes=None,
        reserved_bytes=None,
        unfit=(),
        activation_peak_phase="",
        phases={
            name: PhaseMemory(by_category=_in_categories(step.ends[name]), peak_bytes=most[_TOTAL])
            for name, most in step.phases.items()
        },
    )


def _in_categories(snapshot: Mapping[str, int]) -> dict[str, int]:
    found = dict.fromkeys(OF_RANKS, 0)
    for name, size in snapshot.items():
        if name != _TOTAL:
            found[_CATEGORIES.get(name, "temporary")] += size
    return found
