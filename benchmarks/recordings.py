"""Time and peak memory of opening a large recording: ``python -m benchmarks.recordings --events 10000000``, of a memory
snapshot or an nsys report with ``--kind snapshot`` or ``--kind nsys``.

Makes a trace as torch writes it: in each 12 events three nested operators, a launching call, a kernel, the two ends of
its arrow, and five frames of Python; steps, ranges and a backward thread as a training step has them. Of a snapshot an
event is an allocation or one of the two halves of a free, with 40 frames of 600 different stacks; of an nsys report a
row, half of them ranges of ``emit_nvtx``, a quarter kernels. Then opens it with the whole command in a process of its
own.
"""

from __future__ import annotations

import argparse
import gzip
import pickle
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

EVENTS_A_LAUNCH = 12
LAUNCHES_A_STEP = 500
KERNELS = tuple(
    f"void at::native::vectorized_elementwise_kernel<{width}, at::native::CUDAFunctor_add<{dtype}>, "
    f"std::array<char*, {width}ul> >(int, at::native::CUDAFunctor_add<{dtype}>, std::array<char*, {width}ul>)"
    for width in (2, 3, 4, 8)
    for dtype in ("float", "c10::BFloat16", "c10::Half")
)


def events(launches: int) -> Iterator[str]:
    """The events of so many launches, as text."""
    began_us = 1_419_247_332_972
    for launch in range(launches):
        us = began_us + launch * 20
        step, place = divmod(launch, LAUNCHES_A_STEP)
        if place == 0:
            name = f'"name": "ProfilerStep#{step}", "pid": 7, "tid": 7'
            yield _host("user_annotation", name, us, LAUNCHES_A_STEP * 20 - 1, f'"External id": {launch * 4}')
        backward = place >= LAUNCHES_A_STEP // 2
        if place in (0, LAUNCHES_A_STEP // 2):
            name = f'"name": "{"backward" if backward else "forward"}", "pid": 7, "tid": 7'
            yield _host("user_annotation", name, us, LAUNCHES_A_STEP * 10 - 1, f'"External id": {launch * 4 + 1}')
        where = f'"pid": 7, "tid": {8 if backward else 7}'
        for depth, op in enumerate(("aten::linear", "aten::addmm", "aten::add_")):
            if backward and depth == 0:
                op = "autograd::engine::evaluate_function: AddBackward0"
            args = f'"External id": {launch * 4 + depth}, "Sequence number": {launch}, "Fwd thread id": {int(backward)}'
            more = f', "Input Dims": [[4, 512, 768], [768, 768], []], "Ev Idx": {launch * 3 + depth}'
            yield _host("cpu_op", f'"name": "{op}", {where}', us + depth, 16 - 2 * depth, args + more)
        call = f'"External id": {launch * 4 + 2}, "cbid": 211, "correlation": {launch}'
        yield _host("cuda_runtime", f'"name": "cudaLaunchKernel", {where}', us + 4, 5, call)
        device = f'"device": 0, "context": 1, "stream": 7, "correlation": {launch}'
        shape = '"registers per thread": 32, "shared memory": 0, "grid": [1568, 1, 128], "block": [256, 1, 1]'
        name = f'"name": "{KERNELS[launch % len(KERNELS)]}", "pid": 0, "tid": 7'
        yield _host("kernel", name, us + 12, 11, f'"External id": {launch * 4 + 2}, "queued": 0, {device}, {shape}')
        arrow = f'"id": {launch}, "cat": "ac2g", "name": "ac2g"'
        yield f'{{"ph": "s", {arrow}, {where}, "ts": {us + 4}.125}}'
        yield f'{{"ph": "f", {arrow}, "pid": 0, "tid": 7, "ts": {us + 12}.125, "bp": "e"}}'
        for depth in range(EVENTS_A_LAUNCH - 7):
            name = f'"name": "torch/nn/modules/module.py(1784): _call_impl", {where}'
            yield _host("python_function", name, us, 19 - depth, f'"Python id": {launch * 5 + depth}')


def _host(cat: str, name: str, us: int, dur: int, args: str) -> str:
    return f'{{"ph": "X", "cat": "{cat}", {name}, "ts": {us}.125, "dur": {dur}.875, "args": {{{args}}}}}'


def write_trace(path: Path, count: int) -> int:
    """Write a trace of about `count` events; the number of its kernels."""
    launches = count // EVENTS_A_LAUNCH
    device = '[{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85018279936}]'
    with gzip.open(path, "wt", compresslevel=1) if path.suffix == ".gz" else path.open("w") as file:
        file.write(f'{{"schemaVersion": 1, "deviceProperties": {device}, "traceEvents": [\n')
        for number, event in enumerate(events(launches)):
            file.write(f",\n  {event}" if number else event)
        file.write('\n], "traceName": "made.json"}\n')
    return launches


def write_snapshot(path: Path, count: int) -> int:
    """Write a memory snapshot of about `count` events; the number of its allocations."""
    places = [(f"at::_ops::mul_{place}::call(at::Tensor const&)", "??") for place in range(600)]
    usual = [("_call_impl", "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py")] * 20
    usual += [(f"forward_{place}", "/home/me/model.py") for place in range(19)]
    known = [{"name": name, "filename": file, "line": 1} for name, file in usual]
    stacks = [[{"name": name, "filename": file, "line": 0}, *known] for name, file in places]
    live: list[tuple[int, int]] = []
    free = [2**45 + 2**24 * place for place in range(1000)]
    trace: list[dict[str, object]] = []

    def add(action: str, address: int, size: int, number: int) -> None:
        event = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 2**50 + len(trace)}
        trace.append(event | {"compile_context": "N/A", "user_metadata": "", "frames": [*stacks[number % 600]]})

    for number in range(count // 3):
        live.append((free.pop(), 512 * (1 + number % 30_000)))
        add("alloc", *live[-1], number)
        if len(live) > 500:
            address, size = live.pop(number * 7919 % len(live))
            add("free_requested", address, size, number)
            add("free_completed", address, size, number)
            free.append(address)
    segments = [
        {"device": 0, "address": address, "total_size": 2**24, "blocks": [{"size": size, "state": "active_allocated"}]}
        for address, size in live
    ]
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [trace], "allocator_settings": {}}))
    return count // 3


def write_nsys(path: Path, count: int) -> int:
    """Write an SQLite export of nsys of about `count` rows; the number of its kernels."""
    kernels = count // 4
    texts = ("gemm", "void gemm<float>(int)", "add", "void add<float>()", "cudaLaunchKernel_v7000")
    thread, process = (1 << 48) | (7 << 24) | 7, (1 << 48) | (7 << 24)
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        base.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, globalPid, "
            "demangledName, shortName)"
        )
        base.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId)")
        base.execute("CREATE TABLE NVTX_EVENTS (start, end, eventType, text, globalTid, domainId)")
        base.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(texts))
        rows = (
            (1000 * n + 500, 1000 * n + 1400, 0, 7, n + 1, process, n % 2 * 2 + 1, n % 2 * 2) for n in range(kernels)
        )
        base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        calls = ((1000 * n, 1000 * n + 5, thread, n + 1, 4) for n in range(kernels))
        base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)", calls)
        base.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, 0)", _ranges(kernels, thread))
    return kernels


def _ranges(kernels: int, thread: int) -> Iterator[tuple[int, int, str, int]]:
    for launch in range(kernels):
        ns, place = 1000 * launch, launch % LAUNCHES_A_STEP
        if place in (0, LAUNCHES_A_STEP // 2):
            yield ns - 20, ns + 500 * LAUNCHES_A_STEP - 30, "backward" if place else "forward", thread
        yield ns - 10, ns + 20, f"aten::linear, op_id = {launch * 2}, seq = {launch}", thread
        yield ns - 5, ns + 15, f"aten::addmm, op_id = {launch * 2 + 1}", thread


KINDS = {
    "trace": (write_trace, "made.json"),
    "snapshot": (write_snapshot, "made.pickle"),
    "nsys": (write_nsys, "made.sqlite"),
}


def main() -> None:
    """Make the recording, open it, print time and peak memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--kind", choices=KINDS, default="trace")
    parser.add_argument("--gz", action="store_true", help="Gzipped, as torch writes a name that ends so.")
    parser.add_argument("--folder", type=Path, help="For the recording; a temporary one, if not given.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        write, name = KINDS[given.kind]
        path = Path(folder, name + (".gz" if given.gz else ""))
        made = write(path, given.events)
        what = "allocations" if given.kind == "snapshot" else "kernels"
        print(f"{given.events:,} events, {made:,} {what}, {path.stat().st_size / 1e6:,.0f} MB")
        command = [sys.executable, "-m", "cs336_tui", "open", str(path), "--session-dir", folder]
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        took_s = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        print(f"opened in {took_s:.2f} s, peak resident memory {peak / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
