"""Steps of two real ranks on gloo: the collectives that torch's profiler sees, and what malloc has handed out. A
program: its arguments are a folder and the ways to share a step; each rank writes what it saw there, as JSON."""

import ctypes
import gc
import json
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from cs336_tui.config.choices import sweep_from
from cs336_tui.config.spec import CellSpec
from cs336_tui.worker.ranks.parallel import share
from cs336_tui.worker.workload.building import build

RANKS = 2
STEPS = 5
CPU = torch.device("cpu")


def spec_of(way: str, pass_: str = "train-step") -> CellSpec:
    """A cell with this way to share a step, as ``fsdp2``, or ``fsdp2*2`` in two micro-batches."""
    parallel, _, accumulate = way.partition("*")
    dims = {"d_model": 256, "d_ff": 512, "num_layers": 2, "num_heads": 4, "vocab_size": 1000}
    chosen = {"contexts": (64,), "batches": (2,), "devices": ("cpu",), "passes": (pass_,)}
    shared = {"ranks": (RANKS,), "parallels": (parallel,), "accumulations": (int(accumulate or 1),)}
    return sweep_from(**dims, **chosen, **shared).cells()[0]


class _Heap(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_: ClassVar = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
    )]  # fmt: skip


_ask = ctypes.CDLL(None).mallinfo2
_ask.restype = _Heap


def in_use() -> int:
    """Bytes that malloc has handed out, to all threads."""
    found = _ask()
    return int(found.uordblks + found.hblkhd)


class HeapPeak(TorchDispatchMode):
    """The most bytes in use after any operation."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.most = max(self.most, in_use())
        return out


def keep_for_good() -> None:
    """Exempt what is there from garbage collections, each of which would look at all of torch."""
    gc.collect()
    gc.freeze()


def peaks(parallel: str, rank: int, steps: int = STEPS) -> tuple[list[int], Callable[[], None]]:
    """The peaks of steps, and what runs one more."""
    spec = spec_of(parallel)
    gc.collect()
    before = in_use()
    workload = build(spec, CPU, as_written=True, rank=rank, share=partial(share, spec=spec, device=CPU))
    step = workload.step(spec)

    def run() -> None:
        for phase in step.phases:
            step.run(phase)

    run()
    run()
    gc.collect()
    found = []
    for _ in range(steps):
        with HeapPeak() as heap:
            run()
        found.append(heap.most - before)
    return found, run


def seen(parallel: str, rank: int) -> dict[str, object]:
    """The peaks of steps, and of one more step calls and bytes of collectives: float32 arrays as gloo gets them."""
    of_steps, run = peaks(parallel, rank)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
    calls, sizes = Counter[str](), Counter[str]()
    for event in profiler.events():
        if event.name.startswith("gloo:"):
            calls[event.name] += 1
            sizes[event.name] += 4 * prod(event.input_shapes[0])
    return {"calls": calls, "bytes": sizes, "peaks": of_steps}


def work(rank: int, folder: str, parallels: list[str]) -> None:
    torch.set_num_threads(1)
    place = Path(folder)
    dist.init_process_group("gloo", init_method=f"file://{place / 'meeting'}", rank=rank, world_size=RANKS)
    keep_for_good()
    for parallel in parallels:
        peaks(parallel, rank, steps=1)  # what the first step of a kind keeps, modules among it, is no cell's
    keep_for_good()
    found = {parallel: seen(parallel, rank) for parallel in parallels}
    (place / f"rank-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(work, args=(sys.argv[1], sys.argv[2:]), nprocs=RANKS, start_method="fork")
