"""Steps that several ranks share, by torch's own classes or by a user's; their all-gathers, and the module that uses
what each gathers."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import sharing_of
from cs336_tui.config.variants import is_imported, short
from cs336_tui.worker.workload.import_problems import ImportProblem, explained, kind_of, message_of
from cs336_tui.worker.workload.imported_arguments import no_default, parameters_of, required
from cs336_tui.worker.workload.imported_modules import find, hint_of_import
from cs336_tui.worker.workload.model_parts import blocks_of
from cs336_tui.worker.workload.passes import Hook, Shared, Step
from cs336_tui.worker.workload.ranges import READY

_MEBIBYTE = 2**20
_FINISH = "finish_gradient_synchronization"
"""Method of the course's containers, called after backward where no function of the user's does."""
_GATHER = "fsdp_gather_full_params"
_SHARDS_NOTHING = (
    "{} sharded no parameter: containers that shard layers of one class alone need the model that has them, as "
    "--model cs336_basics.model:BasicsTransformerLM"
)
_COMPUTED_IN = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}
"""``compute_dtype`` of containers that cast their weights, by precision; None for the parameters' own."""


def share(model: nn.Module, *, spec: CellSpec, device: torch.device, offset: int = 0) -> Shared:
    """Share the model's step with the other ranks of the process group, which is joined. `offset` is added to the
    weights before, so that ranks begin unequal. Raises `ImportProblem` for a user's own that cannot be used."""
    if offset:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(offset)
    name, bucket_bytes = sharing_of(spec.parallel)
    if is_imported(name):
        return _own(name, model, spec, bucket_bytes)
    if name == "fsdp2":
        return shard_fully(model, mesh_on(device.type))
    if name == "none":
        return Shared(model)
    buckets = {} if bucket_bytes is None else {"bucket_cap_mb": bucket_bytes / _MEBIBYTE}  # torch counts in 2^20
    runs = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None, **buckets)
    if name == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer  # compiles scripts on import

        make = partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.AdamW)
        return Shared(runs, make, unsynced=runs.no_sync)
    return Shared(runs, unsynced=runs.no_sync)


@contextmanager
def _without_reducing(model: FSDPModule) -> Iterator[None]:
    """Leave the gradients of ``fully_shard`` unreduced inside."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def mesh_on(device_type: str) -> DeviceMesh:
    """All ranks of the process group, for FSDP: by itself it moves a model to the machine's GPUs, and torch 2.6 makes a
    group of NCCL beside one of gloo."""
    assert dist.group.WORLD is not None
    return DeviceMesh.from_group(dist.group.WORLD, device_type)


def shard_fully(model: nn.Module, mesh: DeviceMesh) -> Shared:
    """Shard each block, and the rest of the model, over the ranks of the mesh."""
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return Shared(model, unsynced=partial(_without_reducing, model))


def _own(name: str, model: nn.Module, spec: CellSpec, bucket_bytes: int | None) -> Shared:
    """A container made by the user's function, and what the functions beside it do in a step: of ``get_NAME`` those
    called ``NAME_on_train_batch_start`` and ``NAME_on_after_backward``."""
    make = find(name, spec.model_path)
    if not callable(make):
        raise ImportProblem(f"{name} is {kind_of(make)}, expected a function of a module that makes a container")
    shapes = _shapes(model)
    runs = _made(make, name, model, spec, bucket_bytes)
    module, called = name.partition(":")[0], short(name)
    stem = called.removeprefix("get_")

    def beside(called: str) -> Any:
        try:
            return find(f"{module}:{called}", spec.model_path)
        except ImportProblem:
            return None

    after, finish = _called(beside(f"{stem}_on_after_backward")), getattr(runs, _FINISH, None)
    if after is None and finish is not None:

        def after(*_: object) -> object:
            return finish()

    shards = _shapes(model) != shapes
    whole = None
    if shards:
        gather = beside(_GATHER)
        own = getattr(runs, _GATHER, None) or getattr(runs, "gather_full_params", None)
        whole = partial(gather, runs) if gather else own
    says_so = shards_by_name(name) and not shards and spec.ranks > 1
    return Shared(
        runs,
        before=_called(beside(f"{stem}_on_train_batch_start")),
        after=after,
        whole=whole,
        unsynced=getattr(runs, "no_sync", None),
        remarks=(_SHARDS_NOTHING.format(called),) if says_so else (),
    )


def _made(make: Any, name: str, model: nn.Module, spec: CellSpec, bucket_bytes: int | None) -> nn.Module:
    """The container. Besides the model it may take the size of its buckets, and by name what is known here."""
    takes = parameters_of(make) or {}
    arguments = [model] if bucket_bytes is None else [model, bucket_bytes / 1e6]  # ``bucket_size_mb``
    known = {
        "compute_dtype": _COMPUTED_IN.get(spec.precision),
        "rank": dist.get_rank(),
        "world_size": dist.get_world_size(),
    }
    by_name = {each: known[each] for each in list(takes)[len(arguments) :] if each in known}
    if missing := [each for each in required(takes)[len(arguments) :] if each not in by_name]:
        hint = f"; write {name}:25MB" if "bucket" in missing[0] else ""
        raise no_default(name, takes.values(), missing[0], hint)
    with explained(short(name), _hint):
        runs = make(*arguments, **by_name)
    if not isinstance(runs, nn.Module):
        raise ImportProblem(f"{short(name)} made {kind_of(runs)}, expected a torch.nn.Module")
    return runs


def _hint(error: BaseException) -> str:
    """The remedy for a container that joins a process group itself."""
    if "process group twice" in message_of(error):
        return "; the ranks have joined one: put `if not dist.is_initialized():` before it"
    return hint_of_import(error)


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def shards_by_name(choice: str) -> bool:
    """True for FSDP, torch's or a user's, which takes the weights of each rank as they are."""
    return "fsdp" in short(sharing_of(choice).name).lower()


def _called(function: Any) -> Hook | None:
    """The function as one of a container and an optimizer; some take the container alone."""
    if function is None:
        return None
    takes = parameters_of(function)
    count = 2 if takes is None else len(takes)
    return lambda *both: function(*both[:count])


def shards(model: nn.Module) -> Iterator[Tensor]:
    """This rank's parts of the parameters under ``fully_shard``; of other models none."""
    return (each.sharded_param for each in _sharded(model))


def gathered(model: nn.Module) -> Iterator[Tensor]:
    """The gathered weights of ``fully_shard``, whose storages are empty while they are not gathered."""
    return (tensor for each in _sharded(model) for tensor in each.all_gather_outputs)


def _sharded(model: nn.Module) -> Iterator[Any]:
    """torch's record of each sharded parameter."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]  # up to torch 2.10: one
            yield from (each for group in groups if group is not None for each in group.fsdp_params)


def bucket_bytes(runs: nn.Module) -> tuple[int, bool]:
    """Bytes of the buckets of gradients of torch's DistributedDataParallel, 0 of others; true if gradients are views of
    them."""
    if not isinstance(runs, DistributedDataParallel):
        return 0, False
    told = runs._get_ddp_logging_data()
    key = "rebuilt_bucket_sizes" if told.get("has_rebuilt_buckets") else "bucket_sizes"
    return sum(int(size) for size in str(told.get(key, "")).split(",") if size.strip()), runs.gradient_as_bucket_view


def held_by(*holders: object) -> Iterator[Tensor]:
    """Tensors in the attributes of objects, and in what is in these: lists, dicts, other objects with attributes; and
    the gradients of tensors."""
    seen: set[int] = set()
    waiting = list(holders)
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, type | ModuleType | str | bytes | int | float):
            continue
        seen.add(id(found))
        if isinstance(found, Tensor):
            yield found
            waiting.append(found.grad if found.is_leaf else None)
        elif isinstance(found, Mapping):
            waiting += found.values()
        elif isinstance(found, list | tuple | set | frozenset | deque):
            waiting += found
        else:
            waiting += vars(found).values() if hasattr(found, "__dict__") else ()


_COMMUNICATES = ("c10d", "_c10d_functional")  # namespaces of operations
_ALL_GATHER = re.compile("all_?gather")
_NAMED = 3  # modules of different parents that a name lists


@dataclass
class Gathered:
    """An all-gather, by its place among those of a step."""

    bytes: int
    """Of the whole array."""
    unit: str | None = None
    """The module at whose begin the gathered weights are there; None if no module uses them."""
    pass_: str = ""
    """``forward`` or ``backward``, of that begin."""
    users: list[str] = field(default_factory=list)
    """Modules that have a gathered weight of their own, in the order of that pass."""

    @property
    def module(self) -> str:
        """The module that holds all users, as ``layers.0``; without one, the first of them."""
        if len(self.users) < 2:
            return self.users[0] if self.users else self.unit or ""
        levels = zip(*(name.split(".") for name in self.users), strict=False)
        parent = ".".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))
        return parent or ", ".join([*self.users[:_NAMED], *(["..."] if len(self.users) > _NAMED else [])])


def follow_gathers(step: Step, model: nn.Module) -> tuple[Gathered, ...]:
    """Run one step, and find its all-gathers with the modules of the model that use them: whose weights are computed
    from what was gathered, when their pass begins."""
    follower = _Follower(model)
    try:
        step.prepare()
        for phase in step.phases:
            follower.pass_ = "backward" if phase == "backward" else "forward"
            with follower:
                step.run(phase)
    finally:
        follower.end()
        step.clear()
    return tuple(follower.found)


def mark_begins(model: nn.Module, found: tuple[Gathered, ...]) -> None:
    """Make each module that waits for an all-gather leave a mark in a profile, before it waits. Permanent."""
    units = {each.unit for each in found}

    def mark(name: str) -> None:
        with record_function(READY + name):
            pass

    for name, module in model.named_modules():
        if name in units:
            list(_at_begins(module, lambda name=name: mark(name), first=True))  # type: ignore[misc]


def _at_begins(module: nn.Module, call: Callable[[], None], *, first: bool) -> Iterator[RemovableHandle]:
    """Call at the begin of the module's forward and of its backward, before its other hooks or after them."""
    yield module.register_forward_pre_hook(lambda *_: call(), prepend=first)

    def after_forward(_module: nn.Module, _arguments: object, output: object) -> None:
        for each in tree_leaves(output):
            if isinstance(each, Tensor) and each.requires_grad:
                each.register_hook(lambda _: call())

    yield module.register_forward_hook(after_forward, prepend=first)


class _Follower(TorchDispatchMode):
    """Knows of each storage the all-gathers from whose results it was computed."""

    supports_higher_order_operators = True  # such as flex_attention, which have no schema

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.found: list[Gathered] = []
        self.pass_ = "forward"
        self._held: dict[int, frozenset[int]] = {}
        self._before: dict[str, set[int]] = {}
        self._hooks: list[RemovableHandle] = []
        for name, module in model.named_modules():
            self._hooks += _at_begins(module, lambda m=module, n=name: self._comes(n, m), first=True)  # type: ignore[misc]
            self._hooks += _at_begins(module, lambda m=module, n=name: self._begins(n, m), first=False)  # type: ignore[misc]

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _comes(self, name: str, module: nn.Module) -> None:
        self._before[name] = self._gathers_in(module.modules())

    def _begins(self, name: str, module: nn.Module) -> None:
        own = self._gathers_in([module])
        for number in own | (self._gathers_in(module.modules()) - self._before.get(name, set())):
            each = self.found[number]
            if each.unit is None:
                each.unit, each.pass_ = name, self.pass_
            if number in own and each.pass_ == self.pass_ and name not in each.users:
                each.users.append(name)

    def _gathers_in(self, modules: Iterable[nn.Module]) -> set[int]:
        """All-gathers that the weights of these modules come from."""
        found = (_storages([*vars(each).values(), *each._parameters.values()]) for each in modules)
        return {number for storages in found for each in storages for number in self._held.get(each, ())}

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        schema: Any = getattr(func, "_schema", None)
        if schema is not None and func.namespace in _COMMUNICATES:
            if _ALL_GATHER.search(schema.name):
                whole = args[0] if func.namespace == "c10d" else result
                self.found.append(Gathered(sum(each.nbytes for each in tree_leaves(whole) if isinstance(each, Tensor))))
                self._held.update(dict.fromkeys(_storages(whole), frozenset([len(self.found) - 1])))
            return result
        taken = _storages((args, kwargs))
        held = frozenset(number for each in taken for number in self._held.get(each, ()))
        self._held.update(dict.fromkeys(_storages(result) - taken, held))
        if held and schema is not None:
            for argument, value in zip(schema.arguments, args, strict=False):
                self._write(argument, value, held)
            for argument in schema.arguments:
                self._write(argument, (kwargs or {}).get(argument.name), held)
        return result

    def _write(self, argument: Any, value: object, held: frozenset[int]) -> None:
        if argument.alias_info is not None and argument.alias_info.is_write:
            self._held.update(dict.fromkeys(_storages(value), held))


def _storages(tree: object) -> set[int]:
    """The identities of the storages of all tensors in there."""
    found = set()
    for each in tree_leaves(tree):
        if isinstance(each, Tensor):
            with suppress(RuntimeError, NotImplementedError):  # not every tensor has one
                found.add(int(each.untyped_storage()._cdata))
    return found
