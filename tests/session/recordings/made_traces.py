"""Chrome traces made event by event, with times in microseconds."""

import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]
MAIN, AUTOGRAD = 10, 11


def span(cat: str, name: str, ts: Any, dur: Any, thread: int = MAIN, **args: Any) -> Event:
    """An operator, a range or a call of the host."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": ts, "dur": dur, "args": args}


def op(name: str, ts: Any, dur: Any, thread: int = MAIN, **args: Any) -> Event:
    return span("cpu_op", name, ts, dur, thread, **args)


def user(name: str, ts: Any, dur: Any, thread: int = MAIN) -> Event:
    return span("user_annotation", name, ts, dur, thread)


def node(name: str, ts: Any, dur: Any, sequence: int) -> list[Event]:
    """An autograd node on its own thread: the engine's call, and the operator that carries the sequence number."""
    engine = op(f"autograd::engine::evaluate_function: {name}", ts, dur, AUTOGRAD)
    linked = {"Sequence number": sequence, "Fwd thread id": 1}
    return [engine, op(name, ts + 0.5, dur - 1, AUTOGRAD, **linked)]


def launch(
    name: str,
    correlation: int,
    called: Any,
    begin: Any,
    dur: Any,
    thread: int = MAIN,
    device: int = 0,
    cat: str = "kernel",
) -> list[Event]:
    """A kernel and the call that launches it."""
    call = span("cuda_runtime", "cudaLaunchKernel", called, 1, thread, correlation=correlation)
    kernel = span(cat, name, begin, dur, 7, correlation=correlation, device=device, stream=7)
    return [call, kernel | {"pid": device}]


def trace_of(*events: Event | list[Event], **around: Any) -> dict[str, Any]:
    """A whole trace."""
    flat = [each for found in events for each in (found if isinstance(found, list) else [found])]
    return {"schemaVersion": 1, **around, "traceEvents": flat, "traceName": "made.json"}


def write(path: Path, trace: Any, **how: Any) -> Path:
    """Write a trace as JSON, gzipped if the name ends so."""
    data = json.dumps(trace, **how).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


TRAINING = trace_of(
    user("ProfilerStep#3", 0, 100),
    user("forward", 1, 30),
    user("block 0", 2, 20),
    op("aten::linear", 3, 10, **{"Sequence number": 5}),
    op("aten::addmm", 4, 8, **{"Sequence number": 5}),
    launch("gemm_forward", 1, 5, 20, 10),
    op("aten::add", 25, 4, **{"Sequence number": 6}),
    launch("add_forward", 2, 26, 30, 5),
    user("backward", 40, 30),
    node("AddBackward0", 42, 5, 6),
    launch("add_backward", 3, 43, 50, 2, AUTOGRAD),
    node("AddmmBackward0", 50, 10, 5),
    op("aten::mm", 52, 6, AUTOGRAD),
    launch("gemm_backward", 4, 53, 60, 20, AUTOGRAD),
    user("Optimizer.step#AdamW.step", 75, 20),
    op("aten::_fused_adamw_", 76, 10),
    launch("multi_tensor_apply_kernel<FusedAdamMathFunctor>", 5, 77, 90, 7.125),
    launch("Memcpy HtoD (Pageable -> Device)", 6, 97, 98, 1, cat="gpu_memcpy"),
)
"""A training step: a range in forward, a backward on autograd's thread, an optimizer without a range of the user's."""
