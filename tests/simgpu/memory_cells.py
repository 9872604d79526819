"""Random cells for the simulated GPU, run in one process, and their peaks: predicted, and of torch's own allocator.

Usage: ``python -m tests.simgpu.memory_cells peaks|compiled|ranks|fit|ends|requests SEED COUNT``, in an environment with
the simulated libraries; prints JSON.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from time import monotonic, sleep
from typing import Any, NamedTuple

import msgspec
import torch

from cs336_tui.analysis.targets import search
from cs336_tui.config.processes import segments_expand
from cs336_tui.config.spec import ARCHES, PASSES, PRECISIONS, CellSpec
from cs336_tui.config.values import NORMS, OPTIMIZERS
from cs336_tui.events.events import CellFinished
from cs336_tui.worker.estimate.caching_allocator import CachingAllocator, ExpandableAllocator, NoRoom
from cs336_tui.worker.estimate.predict import predict
from tests.runner.running import Running
from tests.worker.measure.cells import run, small_spec

KNOBS = {
    "SIMGPU_KERNEL_US": "0.1", "SIMGPU_GEMM_US": "0.1", "SIMGPU_TFLOPS": "1e9", "SIMGPU_TFLOPS_FP32": "1e9",
    "SIMGPU_TFLOPS_TF32": "1e9", "SIMGPU_HBM_GBS": "1e9", "SIMGPU_COPY_MAX_MB": "0",
}  # fmt: skip
"""Kernels that take next to no time: memory alone is looked at."""
LEAST_BYTES = 200e6
"""Of a cell, so that the allocator's units do not decide."""
LEAST_BYTES_OF_RANK = 500e6
"""Of one of two ranks, whose wrappers and collectives have some 5 MB that are not predicted."""
PATIENCE_S = 10.0
MIB = 2**20
COMPILED = {
    "compile": "default", "num_layers": 2, "checkpoint": 0, "nesting": "off", "dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
"""Choices of the cells that torch.compile compiles."""


class Peaks(NamedTuple):
    """Bytes of a cell's peak; `why` it could not be measured, else empty."""

    cell: str
    predicted: int
    measured: int
    why: str = ""

    @property
    def deviation(self) -> float:
        """Of the prediction, as a share of what was measured."""
        return self.predicted / self.measured - 1

    def __str__(self) -> str:
        if self.why:
            return f"{self.cell}: {self.why}"
        more = (self.predicted - self.measured) / MIB
        return f"{self.deviation:+.2%} of {self.measured / MIB:.0f} MiB ({more:+.2f}): {self.cell}"


def random_cells(seed: int, **fixed: Any) -> Iterator[CellSpec]:
    """Cells of every kind, without end; some choices may be `fixed`."""
    random = Random(seed)
    while True:
        choices = _operation_alone(random) if random.random() < 0.08 else _of_model(random)
        yield small_spec(**({"device": "cuda:0", "threads": None, "warmup_steps": 1} | choices | fixed))


def _shape(random: Random) -> dict[str, Any]:
    heads = random.choice((2, 4, 6, 8))
    return {
        "d_model": heads * random.choice((32, 64, 64, 128)),
        "num_heads": heads,
        "context_length": random.choice((128, 256, 512, 1000, 1024)),
        "measure_steps": 1,
    }


def _operation_alone(random: Random) -> dict[str, Any]:
    shape = _shape(random) | {"batch_size": random.randint(8, 40), "precision": random.choice(("fp32", "bf16"))}
    shape["pass_"] = random.choice(("forward", "backward", "forward+backward"))
    if random.random() < 0.3:
        return shape | {"workload": "norm", "norm": random.choice(NORMS), "num_heads": 1, "batch_size": 100}
    return shape | {"workload": "attention", "attention": random.choice(("naive", "sdpa", "math"))}


def _of_model(random: Random) -> dict[str, Any]:
    layers, arch, precision = random.randint(1, 4), random.choice(ARCHES), random.choice(PRECISIONS)
    pass_ = random.choice((*PASSES, "train-step", "train-step", "train-step"))
    trains = pass_ == "train-step"
    accumulate = random.choice((1, 1, 1, 2, 4)) if trains else 1
    in_half = precision not in ("fp32", "tf32")
    attention = random.choice(("naive", "naive", "sdpa", "memory-efficient", "math", "flash" if in_half else "sdpa"))
    checkpoint = random.choice((0, 0, random.randint(1, layers)))
    return _shape(random) | {
        "arch": arch,
        "d_ff": 16 * random.randint(32, 160),
        "num_layers": layers,
        "vocab_size": random.choice((2_000, 10_000, 32_000, 50_257)),
        "batch_size": accumulate * random.randint(2, 14),
        "accumulate": accumulate,
        "pass_": pass_,
        "precision": precision,
        "attention": attention,
        "optimizer": random.choice(OPTIMIZERS) if trains else "adamw",
        "checkpoint": checkpoint,
        "nesting": random.choice(("off", "halves")) if checkpoint else "off",
        "norm": random.choice(("rmsnorm", *NORMS)),
        "dropout": random.choice((0.0, 0.0, 0.1)),
        "attention_dropout": random.choice((0.0, 0.1)) if attention == "naive" else 0.0,
        "bias": random.choice(("off", "off", "on")),
        "weight_tying": random.choice(("off", "off", "on")),
        "gelu": random.choice(("exact", "tanh")) if arch == "gelu-learned" else "exact",
    }


def peaks_of(spec: CellSpec) -> Peaks | None:
    """Run the cell here, as in a process of its own: without workspaces and cached memory of cells before. None if it
    is too small."""
    predicted = predict(spec, capability=_capability()).peak_bytes
    if predicted < LEAST_BYTES:
        return None
    _forget_earlier_cells()
    return _peaks(spec, predicted, run(spec).finished)


def _peaks(spec: CellSpec, predicted: int, finished: CellFinished) -> Peaks:
    why = "" if finished.status == "ok" else f"{finished.status}: {finished.error}"
    cell = f"{spec.title} · batch {spec.batch_size} · vocabulary {spec.vocab_size}"
    return Peaks(cell, predicted, finished.peak_allocated_bytes or 0, why)


def peaks_of_ranks(seed: int) -> Iterator[Peaks]:
    """Train-steps of two ranks of sufficient size, each rank in a process of its own."""
    random = Random(seed)
    runner = Running(Path(mkdtemp()))
    with closing(runner.bench):
        for spec in random_cells(seed):
            if spec.pass_ != "train-step":
                continue
            parallel, batch_size = random.choice(("ddp", "zero1", "fsdp2", "fsdp2")), 2 * spec.batch_size
            shared = msgspec.structs.replace(spec, ranks=2, parallel=parallel, batch_size=batch_size, accumulate=1)
            predicted = predict(shared, capability=_capability()).peak_bytes
            if predicted < LEAST_BYTES_OF_RANK:
                continue
            (cell,) = runner.run(shared)
            found = _peaks(shared, predicted, cell.finished)
            if "WrongRanks" not in found.why:  # ranks compare numbers, most of which are not carried out
                yield found


class Fitted(NamedTuple):
    """The largest batch that fits by prediction, and how it and the next larger one ended."""

    cell: str
    largest: int | None
    status: str
    next_status: str

    @property
    def is_exact(self) -> bool:
        return (self.status, self.next_status) == ("ok", "oom")


def fitted(spec: CellSpec) -> Fitted:
    """Search with all that is free, as a process finds it that has begun to use the device."""
    gc.collect()  # an earlier cell that ran out of memory may live in a cycle with its error
    _forget_earlier_cells()
    room = torch.cuda.mem_get_info()[0]
    found = search(spec, "batch", lambda each: predict(each, capability=_capability()), room)
    statuses = [_status(each) if each else "" for each in (found.spec, found.next_spec)]
    return Fitted(f"{spec.title} · vocabulary {spec.vocab_size} in {room / MIB:.0f} MiB", found.largest, *statuses)


def _status(spec: CellSpec) -> str:
    _forget_earlier_cells()
    return run(spec).finished.status


def _forget_earlier_cells() -> None:
    """Give back workspaces and cached memory, so that a cell finds what a process of its own does."""
    torch._C._cuda_clearCublasWorkspaces()
    give_up_at = monotonic() + PATIENCE_S
    while torch.cuda.memory_allocated() and monotonic() < give_up_at:
        sleep(0.001)  # a thread of autograd drops what a failed backward held a moment after its error
    torch.cuda.empty_cache()


def _capability() -> tuple[int, int]:
    return torch.cuda.get_device_capability()


class Requested(NamedTuple):
    """Bytes in blocks and in segments after a request: of torch's allocator, and of ours. -1: out of memory."""

    torch: tuple[int, int]
    ours: tuple[int, int]


_MOST_LIVE = 60


def requests(seed: int) -> Iterator[Requested]:
    """Allocate and free at random, in a device so small that the allocator gives back what it holds unused."""
    random, live, blocks = Random(seed), list[torch.Tensor](), list[Any]()
    ours = (ExpandableAllocator if segments_expand(os.environ) else CachingAllocator)(torch.cuda.mem_get_info()[0])
    out_of_memory = (-1, -1)
    while True:
        size = random.randint(1, random.choice((2**12, 2**20, 2**22, 2**25, 2**28)))
        told = predicted = out_of_memory
        with suppress(torch.cuda.OutOfMemoryError):
            live.append(torch.empty(size, dtype=torch.uint8, device="cuda:0"))
            told = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        with suppress(NoRoom):
            blocks.append(ours.allocate(size))
            predicted = sum(block.size for block in blocks), ours.reserved
        yield Requested(told, predicted)
        fewer = told == out_of_memory or len(live) > _MOST_LIVE
        while live and (fewer or random.random() < 0.45):
            number, fewer = random.randrange(len(live)), False
            live.pop(number)
            ours.free(blocks.pop(number))


class End(NamedTuple):
    """How a cell ended, and the one after it, which is small."""

    status: str
    stage: str | None
    phase: str | None
    error: str
    next_status: str


def ends() -> Iterator[End]:
    """Cells that run out of 1.5 GiB in each stage and phase."""
    sound = small_spec(device="cuda:0", threads=None, d_model=64, num_heads=2, measure_steps=1)
    wide = {"d_model": 4096, "d_ff": 4096, "num_heads": 8, "vocab_size": 1_000, "num_layers": 1}
    full: list[dict[str, Any]] = [
        {"vocab_size": 500_000, "d_model": 512},  # building
        {"context_length": 2048, "batch_size": 64, "vocab_size": 10_000},  # forward
        {"context_length": 1024, "batch_size": 8, "vocab_size": 30_000, "precision": "bf16-mixed"},  # loss
        {"context_length": 1024, "batch_size": 7, "vocab_size": 20_000},  # backward
        wide | {"pass_": "train-step", "context_length": 16, "batch_size": 1},  # optimizer
    ]
    for choices in full:
        for warmup in (1, 0):
            spec = msgspec.structs.replace(sound, **choices, warmup_steps=warmup)
            _forget_earlier_cells()
            end = run(spec).finished
            yield End(end.status, end.stage, end.phase, end.error or "", run(sound).finished.status)


def main(what: str, seed: str, count: str) -> None:
    torch.set_num_threads(1)
    torch.cuda.init()
    gc.freeze()
    gc.unfreeze = lambda: None  # as in tests/conftest.py: what is loaded makes each collection take 0.2 s
    wanted: Iterator[NamedTuple] = ends()
    if what == "peaks":
        wanted = filter(None, map(peaks_of, random_cells(int(seed))))
    elif what == "compiled":
        wanted = filter(
            None, map(peaks_of, (each for each in random_cells(int(seed), **COMPILED) if not each.is_alone))
        )
    elif what == "ranks":
        wanted = peaks_of_ranks(int(seed))
    elif what == "fit":
        shallow = {"num_layers": 1, "checkpoint": 0, "nesting": "off", "measure_steps": 2}
        wanted = map(fitted, random_cells(int(seed), **shallow))
    elif what == "requests":
        wanted = requests(int(seed))
    print(json.dumps(list(islice(wanted, int(count)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
