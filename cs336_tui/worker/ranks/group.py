"""The process group of a cell's ranks, joined through a file, over nodes through torch's TCP store; and the workload of
a collective in it: one operation of `torch.distributed` on a message, timed as a step of one phase."""

from __future__ import annotations

import faulthandler
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cs336_tui.config.processes import environment
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import BYTES_OF_ELEMENT
from cs336_tui.worker.ranks import STACK_SIGNAL, Place
from cs336_tui.worker.workload.building import ModelFacts, Workload
from cs336_tui.worker.workload.passes import Shared, Step, cross_entropy
from cs336_tui.worker.workload.precision import RECIPES, autocast_for
from cs336_tui.worker.workload.transformer import Batch

_Number = TypeVar("_Number", bool, int)
_PATIENCE = timedelta(days=1)
"""Time limit of an operation: torch names no rank that hangs, so the runner ends them before."""
_MEETING = timedelta(minutes=2)
"""Within which a rank has to reach the store."""
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_GLOO_THREAD = "pt_gloo_runloop"
_SETTLE_S, _SETTLE_LOOK_S = 1.0, 0.001


class Group:
    """The ranks of a cell, as one of them sees them; alone it does nothing."""

    def __init__(self, place: Place, device: torch.device) -> None:
        self.place, self._device = place, device
        self._store: dist.Store | None = None
        self._asked = 0
        self._barrier_devices: list[int] | None = None  # NCCL's barrier runs on a GPU, by itself on that of its number

    @contextmanager
    def joined(self, backend: str) -> Iterator[None]:
        """Join the process group; within are torchrun's variables. Raises torch's own errors."""
        if self.place.ranks == 1:
            yield
            return
        place = self.place
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        faulthandler.register(STACK_SIGNAL, Path(place.stacks).open("a"))  # noqa: SIM115
        with environment(_network(place)):
            if place.address:
                store = dist.TCPStore(place.address, place.port, place.ranks, timeout=_MEETING, wait_for_workers=False)
                store.set_timeout(_PATIENCE)
                self._store = store
            else:
                self._store = dist.FileStore(place.meeting, place.ranks)
            dist.init_process_group(
                backend, store=dist.PrefixStore("group", self._store), rank=place.rank, world_size=place.ranks,
                timeout=_PATIENCE,
            )  # fmt: skip
            self._barrier_devices = [torch.cuda.current_device()] if backend == "nccl" else None
            with environment(self._environment()):
                yield

    def leave(self) -> None:
        """Leave the process group, which may wait for the other ranks: only after all went well, and was told."""
        if self.place.ranks > 1:
            dist.destroy_process_group()

    def _environment(self) -> dict[str, str]:
        """The variables by which torchrun tells a process its rank; a local rank is the number of its GPU."""
        place, index = self.place, self._device.index
        found: dict[str, object] = {
            "RANK": place.rank, "LOCAL_RANK": place.local_rank if index is None else index,
            "WORLD_SIZE": place.ranks, "LOCAL_WORLD_SIZE": place.local_ranks,
        }  # fmt: skip
        if place.address:
            found |= {
                "NODE_RANK": place.node, "GROUP_RANK": place.node, "GROUP_WORLD_SIZE": place.nodes,
                "MASTER_ADDR": place.address, "MASTER_PORT": place.port,
                "TORCHELASTIC_USE_AGENT_STORE": True,  # no rank serves the store, as under torchrun
            }  # fmt: skip
        return {name: str(value) for name, value in found.items()}

    def barrier(self) -> None:
        """Wait for every rank."""
        if self.place.ranks > 1:
            dist.barrier(device_ids=self._barrier_devices)

    def agree(self, value: _Number) -> _Number:
        """The first rank's value, on each rank; asked by all in the same order, and never in a timed region."""
        return type(value)(int(self.told_by_rank_0(str(int(value)))))

    def told_by_rank_0(self, text: str) -> str:
        """The first rank's text, on each rank, as `agree`."""
        if self._store is None:
            return text
        self._asked += 1
        key = f"told-{self._asked}"
        if self.place.rank == 0:
            self._store.set(key, text)
        self._store.wait([key], _PATIENCE)
        return self._store.get(key).decode()

    def all(self, value: bool) -> bool:
        """True if it is so on each rank; asked by all, and never in a timed region."""
        if self.place.ranks == 1:
            return value
        found = torch.tensor(int(value), device=self._device)
        dist.all_reduce(found, op=dist.ReduceOp.MIN)
        return bool(found)


def _network(place: Place) -> dict[str, str]:
    """The variable that tells gloo the interface of ranks over nodes by which this machine reaches the store, unless
    the user has set it or it cannot be told: by itself gloo takes that of the machine's name, which often is the
    loopback."""
    if not place.address or _GLOO_INTERFACE in os.environ:
        return {}
    import psutil

    with suppress(OSError):
        family, kind, _, _, target = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:  # sends nothing
            probe.connect(target)
            own = probe.getsockname()[0]
        for name, addresses in psutil.net_if_addrs().items():
            if any(each.address.partition("%")[0] == own for each in addresses):
                return {_GLOO_INTERFACE: name}
    return {}


def served_store() -> dist.TCPStore:
    """A store that this process serves on a free port of all interfaces, for as long as it lives."""
    return dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


def let_gloo_settle() -> None:
    """Wait until gloo's threads sleep, at most a second: after an operation is done they still hold its tensors. Only
    Linux tells the state of a thread; elsewhere returns at once."""
    end_at, quiet = monotonic() + _SETTLE_S, 0
    while (quiet := quiet + 1 if _gloo_sleeps() else 0) < 2 and monotonic() < end_at:
        sleep(_SETTLE_LOOK_S)  # and lets go of Python's lock, which a thread needs to free a tensor


def _gloo_sleeps() -> bool:
    states = []
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):
                if (task / "comm").read_text().strip() == _GLOO_THREAD:
                    states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return set(states) <= {"S"}


_PERIOD = 11  # Of the numbers in a part of a message, which are less than this: sums over ranks stay exact
_AT_ONCE = 1 << 20  # Elements that are compared at once
_SCALED_AFTER = 16  # All-reduces in place after which their sums of sums are scaled back
_ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2e-2}  # Relative, of a sum over very many ranks


class WrongMessage(ValueError):
    """An operation brought other numbers than it must; says where and which."""


class _Operation(NamedTuple):
    """A collective. `call` takes what a rank receives and what it sends, each the whole array or its part of it. Part p
    of what rank k receives holds the numbers of `shift` (p, k), of the sum over ranks where it `sums`."""

    call: Callable[[Tensor, Tensor], object]
    shift: Callable[[int, int], int]
    sums: bool = False
    in_place: bool = False
    sends_whole: bool = True
    receives_whole: bool = True


# A torch without distributed has none of these functions.
OPERATIONS: Mapping[str, _Operation] = {
    "all-reduce": _Operation(lambda array, _: dist.all_reduce(array), lambda p, _: p, sums=True, in_place=True),
    "all-gather": _Operation(
        lambda received, sent: dist.all_gather_into_tensor(received, sent), lambda p, _: p + 3 * p, sends_whole=False
    ),
    "reduce-scatter": _Operation(
        lambda received, sent: dist.reduce_scatter_tensor(received, sent),
        lambda _, k: k,
        sums=True,
        receives_whole=False,
    ),
    "broadcast": _Operation(lambda array, _: dist.broadcast(array, src=0), lambda p, _: p, in_place=True),
    "all-to-all": _Operation(lambda received, sent: dist.all_to_all_single(received, sent), lambda p, k: k + 3 * p),
}
"""By the names of `config.values.Operation`. Rank r sends (i + p + 3 r) mod `_PERIOD` as element i of part p, so that
other ranks, parts and places have other numbers; of an all-gather its only part is r."""


class Message(nn.Module):
    """Holds what a rank sends and receives, as parameters without gradients; one where the operation is in place."""

    def __init__(self, spec: CellSpec, device: torch.device, rank: int) -> None:
        super().__init__()
        self._operation, self._name = OPERATIONS[spec.collective], spec.collective
        self._rank, self._ranks = rank, spec.ranks
        factory: dict[str, Any] = {"device": device, "dtype": RECIPES[spec.precision].parameters}
        whole = spec.message_bytes // BYTES_OF_ELEMENT[spec.precision]
        self._part = whole // spec.ranks

        def made(has_whole: bool) -> nn.Parameter:
            return nn.Parameter(torch.empty(whole if has_whole else self._part, **factory), requires_grad=False)

        self.sent = made(self._operation.sends_whole)
        self.received = self.sent if self._operation.in_place else made(self._operation.receives_whole)
        self._runs = 0

    def communicate(self) -> None:
        self._operation.call(self.received, self.sent)

    def settle(self) -> None:
        """Keep sums of sums from overflowing; after each run, outside of its time."""
        self._runs += 1
        if self._operation.sums and self._operation.in_place and self._runs % _SCALED_AFTER == 0:
            self.received.mul_(float(self._ranks) ** -_SCALED_AFTER)

    def check(self) -> None:
        """Run the operation once, on known numbers. Raises `WrongMessage` if others come out than must."""
        rank, count = self._rank, torch.arange(_PERIOD, device=self.sent.device)
        numbers = self._table(count)
        for p, chunk, first in self._chunks(self.sent):
            chunk.copy_(numbers[(first + p + 3 * rank) % _PERIOD :][: len(chunk)])
        if not self._operation.in_place:
            self.received.fill_(-1)
        self.communicate()
        if self._operation.sums:
            numbers = self._table(sum((count + 3 * r) % _PERIOD for r in range(self._ranks)))
        for p, chunk, first in self._chunks(self.received):
            expected = numbers[(first + self._operation.shift(p, rank)) % _PERIOD :][: len(chunk)]
            if not torch.equal(chunk, expected):
                self._compare(chunk, expected, p * self._part + first)

    def _table(self, period: Tensor) -> Tensor:
        return period.to(self.sent.dtype).repeat(_AT_ONCE // _PERIOD + 2)

    def _chunks(self, array: Tensor) -> Iterator[tuple[int, Tensor, int]]:
        """Pieces of an array: the part of each, the piece, and its first element's place in the part."""
        several = range(self._ranks) if len(array) > self._part else (self._rank,)
        for p, part in zip(several, array.split(self._part), strict=True):
            for number, chunk in enumerate(part.split(_AT_ONCE)):
                yield p, chunk, number * _AT_ONCE

    def _compare(self, found: Tensor, expected: Tensor, first: int) -> None:
        tolerance = _ROUNDING[found.dtype] if self._operation.sums else 0.0
        wrong = ~torch.isclose(found, expected, rtol=tolerance, atol=0.0)
        if wrong.any():
            place = int(wrong.nonzero()[0])
            raise WrongMessage(
                f"{self._name}: element {first + place} is {float(found[place]):g}, expected {float(expected[place]):g}"
            )


class CollectiveStep(Step):
    """A step whose one phase, of the operation's name, is the operation on a message."""

    def __init__(self, spec: CellSpec, workload: Workload, message: Message) -> None:
        super().__init__("forward", message, workload.batch, workload.autocast)
        self.phases = (spec.collective,)
        self.logits_dtype = RECIPES[spec.precision].parameters
        self._message = message

    def prepare(self) -> None:
        pass

    def clear(self) -> None:
        self._message.settle()

    _RUN: ClassVar[dict[str, Callable[[Any], None]]] = dict.fromkeys(
        OPERATIONS, lambda step: step._message.communicate()
    )


class CollectiveWorkload(Workload):
    """The message of a collective as a workload."""

    def step(self, spec: CellSpec) -> Step:
        assert isinstance(self.model, Message)
        return CollectiveStep(spec, self, self.model)


def collective_workload(spec: CellSpec, device: torch.device, rank: int) -> Workload:
    """The message, after one run of the operation that was checked. Each rank calls it, in the process group. Raises
    `WrongMessage`."""
    message = Message(spec, device, rank)
    message.check()
    nothing = torch.empty(0, device=device)
    return CollectiveWorkload(
        model=message,
        runs=message,
        batch=Batch(nothing, nothing),
        autocast=autocast_for(RECIPES[spec.precision], device.type),
        training=None,
        loss=cross_entropy,
        facts=ModelFacts(0, 0, None),
        shared=Shared(message),
    )
