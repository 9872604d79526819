"""Predicted peak of memory against the measured one, over sizes, contexts, passes and precisions.

Measured is what the allocator counts: on CUDA ``max_memory_allocated`` of a cell run as any other, elsewhere torch's
profiler over the third step. Every cell runs in a process of its own. Exit code 1 when a ratio is off by more than 3 %.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, get_args

import click

from benchmarks.reporting import publish, table, verdict
from cs336_tui.config.spec import Arch, CellSpec, Pass, Precision
from cs336_tui.worker.worker_entry import PRELOAD
from tests.samples import sized

MARK = 0.03
MARK_S = 3.0
WARMUP_STEPS = 2


class Measured(NamedTuple):
    """Bytes, or the status of a cell that ended without them."""

    peak_bytes: int | None
    ended: str


def cpu_peak(spec: CellSpec) -> int:
    """Most bytes that the CPU's allocator had given out during a step after warm-up, by torch's profiler.

    All of it is profiled from before the model is built: what is given back is told from what was there before only
    when the profiler saw it given out.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    from cs336_tui.worker.workload.building import build, configure_torch
    from cs336_tui.worker.workload.passes import Step

    def run(step: Step) -> None:
        step.prepare()
        for phase in step.phases:
            step.run(phase)

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step = build(spec, configure_torch(spec)).step(spec)
        for _ in range(WARMUP_STEPS):
            run(step)
            step.clear()
        with record_function("the step"):
            run(step)
    assert profiler.profiler is not None
    nodes: list[Any] = list(profiler.profiler.kineto_results.experimental_event_tree())
    allocations: list[tuple[int, int, int]] = []
    begin = end = 0
    for node in nodes:  # grows on the way
        nodes += node.children
        if node.name == "the step":
            begin, end = node.start_time_ns, node.end_time_ns
        if hasattr(node.extra_fields, "alloc_size"):
            allocations.append((node.start_time_ns, node.extra_fields.ptr, node.extra_fields.alloc_size))
    live: dict[int, int] = {}
    total = peak = 0
    for at, address, size in sorted(allocations, key=lambda allocation: allocation[0]):
        if at > end:
            break
        if size > 0:
            live[address] = size
            total += size
        else:
            total -= live.pop(address, 0)
        peak = max(peak, total) if at >= begin else total
    return peak


def measure(spec: CellSpec) -> Measured:
    """Peak of a cell's steps after warm-up, in a separate process."""
    if not spec.device.startswith("cuda"):
        return Measured(cpu_peak(spec), "ok")
    from cs336_tui.events.events import CellFinished, Event
    from cs336_tui.worker.measure.cell import run_cell

    events: list[Event] = []
    run_cell(spec, 0, events.append, lambda: False)
    finished = events[-1]
    assert isinstance(finished, CellFinished)
    return Measured(finished.peak_allocated_bytes if finished.status == "ok" else None, finished.error or "")


def capability(device: str) -> tuple[int, int] | None:
    """Compute capability of the GPU, read in a separate process. None off CUDA."""
    import torch

    return torch.cuda.get_device_capability(device) if device.startswith("cuda") else None


def predict_timed(spec: CellSpec, capability: tuple[int, int] | None) -> tuple[int, float]:
    """Predicted peak and the seconds it took after all imports, in a separate process."""
    from cs336_tui.worker.estimate.predict import predict

    started = time.perf_counter()
    peak = predict(spec, capability=capability).peak_bytes
    return peak, time.perf_counter() - started


def in_child(function: Any, *args: Any) -> Any:
    """In a process that begins with what the tool's own begin with."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOAD])
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        return executor.submit(function, *args).result()


def specs(
    sizes: str, contexts: str, passes: str, precisions: str, arches: str, batch: int, device: str
) -> list[CellSpec]:
    def cell(size: str, context: str, pass_: str, precision: str, arch: str) -> CellSpec:
        return CellSpec(
            **sized(size),
            context_length=int(context),
            batch_size=batch,
            pass_=pass_,  # type: ignore[arg-type]  # checked by CellSpec
            precision=precision,  # type: ignore[arg-type]
            arch=arch,  # type: ignore[arg-type]
            device=device,
            warmup_steps=WARMUP_STEPS,
            measure_steps=2,
            threads=1 if device == "cpu" else None,  # on a busy machine two threads wait for one another
        )

    return [
        cell(*choice)
        for choice in product(*(names.split(",") for names in (sizes, contexts, passes, precisions, arches)))
    ]


@click.command()
@click.option("--device", default=None, help="cuda or cpu.  [default: cuda where there is one]")
@click.option("--sizes", default=None, help="[default: small,medium,large,xl on CUDA, tiny elsewhere]")
@click.option("--contexts", default=None, help="[default: 128,512,1024 on CUDA, 32,128 elsewhere]")
@click.option("--passes", default=",".join(get_args(Pass)), show_default=True)
@click.option("--precisions", default=None, help="[default: all that the device can]")
@click.option("--arches", default=",".join(get_args(Arch)), show_default=True)
@click.option("--batch", default=4, show_default=True)
@click.option("--quick", is_flag=True, help="Two sizes, one context, one arch.")
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(
    device: str | None,
    sizes: str | None,
    contexts: str | None,
    passes: str,
    precisions: str | None,
    arches: str,
    batch: int,
    quick: bool,
    output: Path | None,
) -> None:
    if device is None:
        device = "cuda" if in_child(has_cuda) else "cpu"
    cuda = device.startswith("cuda")
    if quick:
        sizes, arches = sizes or ("small,large" if cuda else "tiny"), "swiglu-rope"
        contexts = contexts or ("512" if cuda else "32")
    sizes = sizes or ("small,medium,large,xl" if cuda else "tiny")
    contexts = contexts or ("128,512,1024" if cuda else "32,128")
    precisions = precisions or ",".join(
        name for name in get_args(Precision) if cuda or name not in ("tf32", "fp8-mixed")
    )
    cells = specs(sizes, contexts, passes, precisions, arches, batch, "cuda:0" if device == "cuda" else device)
    gpu = in_child(capability, cells[0].device)
    rows, ratios, times = [], [], []
    for spec in cells:
        predicted, took_s = in_child(predict_timed, spec, gpu)
        measured = in_child(measure, spec)
        times.append(took_s)
        row = [spec.size, str(spec.context_length), spec.pass_, spec.precision, spec.arch, f"{predicted / 1e9:.4f}"]
        if measured.peak_bytes is None:
            row += [measured.ended.splitlines()[0][:60] if measured.ended else "failed", ""]
        else:
            ratios.append(predicted / measured.peak_bytes)
            row += [f"{measured.peak_bytes / 1e9:.4f}", f"{ratios[-1]:.4f}"]
        rows.append(row)
        click.echo(" ".join(row), err=True)
    body = table(["size", "context", "pass", "precision", "arch", "predicted GB", "measured GB", "ratio"], rows)
    worst = max(ratios, key=lambda ratio: abs(ratio - 1), default=float("nan"))
    met = verdict(worst, 1 - MARK, 1 + MARK)
    slowest = max(times)
    body += f"\n\nworst ratio of {len(ratios)}: {worst:.4f}; within {MARK:.0%}: {met}\n"
    body += f"longest prediction: {slowest:.2f} s, at most {MARK_S:.0f}: {verdict(slowest, 0, MARK_S)}"
    command = f"python -m benchmarks.predicted_peak --device {device}" + " --quick" * quick
    publish("Predicted peak of memory", command, body, output)
    sys.exit(met != "met")


def has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


if __name__ == "__main__":
    main()
