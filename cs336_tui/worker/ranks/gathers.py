"""All-gathers of a step, and the module that uses what each gathers: those of torch's FSDP or of one's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from torch import Tensor, nn
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from cs336_tui.worker.workload.passes import Step
from cs336_tui.worker.workload.ranges import READY

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
