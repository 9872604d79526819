"""SQLite exports of nsys as NVIDIA documents them (*SQLite Export Schema Reference*), made by hand."""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

PID = 4242
MAIN, AUTOGRAD = 1, 2
"""Threads."""


def global_tid(thread: int, pid: int = PID) -> int:
    """As nsys writes it: hardware and virtual machine, process, thread."""
    return (1 << 48) | (pid << 24) | thread


def global_pid(pid: int = PID) -> int:
    return (1 << 48) | (pid << 24)


_OPERATION = "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId, streamId, correlationId, globalPid"
NEW: Mapping[str, str] = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_OPERATION}, contextId, greenContextId, demangledName INTEGER NOT NULL, shortName "
    "INTEGER NOT NULL, mangledName INTEGER, gridX, graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_OPERATION}, bytes, copyKind",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_OPERATION}, value, bytes",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, eventClass, globalTid, correlationId, nameId, returnValue",
    "NVTX_EVENTS": "start, end, eventType, rangeId, text TEXT, globalTid, endGlobalTid, textId, domainId",
    "TARGET_INFO_GPU": "vmId, id INTEGER NOT NULL, name TEXT, totalMemory, computeMajor, computeMinor",
    "TARGET_INFO_CUDA_DEVICE": "gpuId, cudaId, pid, uuid TEXT",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start, end, deviceId, correlationId, globalPid, graphId",
}
OLD: Mapping[str, str] = NEW | {
    "CUPTI_ACTIVITY_KIND_KERNEL": "start, end, deviceId, streamId, correlationId, demangledName, shortName",
    "NVTX_EVENTS": "start, end, eventType, text TEXT, globalTid",
}
"""A version before processes, registered strings and domains."""

Rows = Mapping[str, Sequence[Mapping[str, Any]]]


def export(path: Path, rows: Rows, schema: Mapping[str, str] = NEW) -> Path:
    """A database with a table for each key of `rows`, as nsys makes only those."""
    with closing(sqlite3.connect(path)) as base, base:
        for table, found in rows.items():
            base.execute(f"CREATE TABLE {table} ({schema[table]})")
            for row in found:
                names = ", ".join(f'"{name}"' for name in row)
                base.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))
    return path


def strings(texts: Iterable[str]) -> list[dict[str, Any]]:
    return [{"id": place, "value": text} for place, text in enumerate(texts)]


CALLS = ("cudaLaunchKernel_v7000", "cudaMalloc_v3020")
TEXTS = ("gemm", "void gemm<float>(int)", "add", "void add<float>()", *CALLS, "warm")


def kernel(
    begin: int, end: int, correlation: int, name: str = "gemm", *, pid: int = PID, **more: Any
) -> dict[str, Any]:
    place = TEXTS.index(name)
    return {
        "start": begin, "end": end, "deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": correlation,
        "globalPid": global_pid(pid), "demangledName": place + 1, "shortName": place, "gridX": 1,
    } | more  # fmt: skip


def call(begin: int, correlation: int, name: str = "cudaLaunchKernel_v7000", *, tid: int = MAIN, pid: int = PID) -> Any:
    return {
        "start": begin, "end": begin + 5, "eventClass": 0, "globalTid": global_tid(tid, pid),
        "correlationId": correlation, "nameId": TEXTS.index(name), "returnValue": 0,
    }  # fmt: skip


def nvtx(begin: int, end: int | None, text: str | None, *, kind: int = 59, tid: int = MAIN, **more: Any) -> Any:
    found = {"start": begin, "end": end, "eventType": kind, "text": text, "globalTid": global_tid(tid)}
    return found | {"domainId": 0} | more


def without(rows: Iterable[Mapping[str, Any]], *columns: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in columns} for row in rows]


_OF_MEMORY = {"deviceId": 0, "streamId": 7, "globalPid": global_pid(), "bytes": 8}
A_STEP: Rows = {
    "StringIds": strings(TEXTS),
    "CUPTI_ACTIVITY_KIND_KERNEL": [
        kernel(1_000, 1_300, 1),
        kernel(1_300, 1_350, 2, "add"),
        kernel(2_000, 2_600, 3),
        kernel(3_000, 3_100, 4, "add"),
    ],
    "CUPTI_ACTIVITY_KIND_MEMCPY": [_OF_MEMORY | {"start": 500, "end": 600, "correlationId": 9, "copyKind": 1}],
    "CUPTI_ACTIVITY_KIND_MEMSET": [_OF_MEMORY | {"start": 700, "end": 710, "correlationId": 10, "value": 0}],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [
        call(100, 1),
        call(150, 2),
        call(160, 77, "cudaMalloc_v3020"),
        call(250, 3, tid=AUTOGRAD),
        call(350, 4),
    ],
    "NVTX_EVENTS": [
        nvtx(0, 0, "NCCL", kind=75, domainId=5),
        nvtx(0, 1_000, "step 3"),
        nvtx(90, 200, "forward"),
        nvtx(95, 130, "attention", kind=60),
        nvtx(145, 170, "ncclAllReduce", domainId=5),
        nvtx(98, 120, "aten::matmul, op_id = 4, seq = 12, sizes = [[2, 2]]"),
        nvtx(99, 110, "aten::mm, op_id = 5, seq = 12"),
        nvtx(140, 160, "aten::add, op_id = 6, seq = 13"),
        nvtx(210, 300, "backward"),
        nvtx(240, 290, "autograd::engine::evaluate_function: MmBackward0, op_id = 8, seq = 12", tid=AUTOGRAD),
        nvtx(242, 280, "MmBackward0, seq = 12, op_id = 9", tid=AUTOGRAD),
        nvtx(245, 270, "aten::mm, op_id = 10", tid=AUTOGRAD),
        nvtx(320, None, "optimizer"),
        nvtx(340, 400, None, textId=TEXTS.index("warm")),
    ],
    "TARGET_INFO_GPU": [
        {"id": 3, "name": "NVIDIA H100 80GB HBM3", "totalMemory": 85_000_000_000, "computeMajor": 9, "computeMinor": 0}
    ],
    "TARGET_INFO_CUDA_DEVICE": [{"gpuId": 3, "cudaId": 0, "pid": PID}],
}  # fmt: skip
"""Four kernels of a training step with torch's NVTX ranges; 300, 50, 600 and 100 ns."""
