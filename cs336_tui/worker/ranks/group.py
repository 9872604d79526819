"""The process group of a cell's ranks: joined through a file, left at the end."""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from cs336_tui.config.environment_variables import environment
from cs336_tui.worker.place import STACK_SIGNAL, Place

_Number = TypeVar("_Number", bool, int)
_PATIENCE = timedelta(days=1)
"""Time limit of an operation: torch names no rank that hangs, so the runner ends them before."""
_GLOO_THREAD = "pt_gloo_runloop"
_SETTLE_S, _SETTLE_LOOK_S = 1.0, 0.001


class Group:
    """The ranks of a cell, as one of them sees them; alone it does nothing."""

    def __init__(self, place: Place, device: torch.device) -> None:
        self.place, self._device = place, device
        self._store: dist.Store | None = None
        self._asked = 0

    @contextmanager
    def joined(self, backend: str) -> Iterator[None]:
        """Join the process group, and leave it at the end. Raises torch's own errors."""
        if self.place.ranks == 1:
            yield
            return
        place = self.place
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        faulthandler.register(STACK_SIGNAL, Path(place.stacks).open("w"), all_threads=False)  # noqa: SIM115
        self._store = dist.FileStore(place.meeting, place.ranks)
        dist.init_process_group(
            backend, store=dist.PrefixStore("group", self._store), rank=place.rank, world_size=place.ranks,
            timeout=_PATIENCE,
        )  # fmt: skip
        try:
            with environment(self._environment()):
                yield
        finally:
            dist.destroy_process_group()

    def _environment(self) -> dict[str, str]:
        """The variables by which torchrun tells a process its rank; a local rank is the number of its GPU."""
        place, index = self.place, self._device.index
        return {
            "RANK": str(place.rank), "LOCAL_RANK": str(place.rank if index is None else index),
            "WORLD_SIZE": str(place.ranks), "LOCAL_WORLD_SIZE": str(place.ranks),
        }  # fmt: skip

    def barrier(self) -> None:
        """Wait for every rank."""
        if self.place.ranks > 1:
            dist.barrier()

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


def let_gloo_settle() -> None:
    """Wait until gloo's threads sleep, at most a second: after an operation is done they still hold its tensors. Only
    Linux tells the state of a thread; elsewhere returns at once."""
    end_at, quiet = time.monotonic() + _SETTLE_S, 0
    while (quiet := quiet + 1 if _gloo_sleeps() else 0) < 2 and time.monotonic() < end_at:
        time.sleep(_SETTLE_LOOK_S)  # and lets go of Python's lock, which a thread needs to free a tensor


def _gloo_sleeps() -> bool:
    states = []
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):
                if (task / "comm").read_text().strip() == _GLOO_THREAD:
                    states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return set(states) <= {"S"}
