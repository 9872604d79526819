"""The process group of a cell's ranks: joined through a file, over nodes through torch's TCP store."""

from __future__ import annotations

import faulthandler
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import TypeVar

import torch
import torch.distributed as dist

from cs336_tui.config.processes import environment
from cs336_tui.worker.place import STACK_SIGNAL, Place

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
            self._store = _met(place)
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


def _met(place: Place) -> dist.Store:
    """The store in which the ranks meet. Raises torch's own errors."""
    if not place.address:
        return dist.FileStore(place.meeting, place.ranks)
    store = dist.TCPStore(place.address, place.port, place.ranks, timeout=_MEETING, wait_for_workers=False)
    store.set_timeout(_PATIENCE)
    return store


def _network(place: Place) -> dict[str, str]:
    """The variable that tells gloo the interface of ranks over nodes, unless the user has set it: by itself gloo takes
    that of the machine's name, which often is the loopback."""
    if not place.address or _GLOO_INTERFACE in os.environ:
        return {}
    interface = interface_towards(place.address, place.port)
    return {_GLOO_INTERFACE: interface} if interface else {}


def served_store() -> dist.TCPStore:
    """A store that this process serves on a free port of all interfaces, for as long as it lives."""
    return dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


def interface_towards(address: str, port: int) -> str | None:
    """The network interface by which this machine reaches the address; None if it cannot be told."""
    import psutil

    with suppress(OSError):
        family, kind, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:  # sends nothing
            probe.connect(target)
            own = probe.getsockname()[0]
        for name, addresses in psutil.net_if_addrs().items():
            if any(each.address.partition("%")[0] == own for each in addresses):
                return name
    return None


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
