"""Makes one report in a child process: kernels, memory, precision, out of memory, or logits and gradients. The last is
made of sketches, for comparison with those of another cell: `events.agreement_report`."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from time import time
from typing import Any

import torch
from torch import Tensor, nn

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import prepared_phases
from cs336_tui.events.events import ReportFinished, ReportStage
from cs336_tui.events.reports import (
    AgreementReport,
    ParameterSketch,
    PositionsSketch,
    Report,
    ReportKind,
    ReportRequest,
    Sketch,
)
from cs336_tui.worker.measure.dtypes import read_dtypes
from cs336_tui.worker.measure.failures import Cancelled, IsCancelled, outcome_of
from cs336_tui.worker.measure.kernels import profile_kernels
from cs336_tui.worker.measure.memory_record import record_memory
from cs336_tui.worker.measure.oom import explain_oom
from cs336_tui.worker.measure.preparing import fresh_compiler
from cs336_tui.worker.measure.reporter import Emit, Enter, header
from cs336_tui.worker.measure.settings import generator_state, no_garbage_collection, restored_settings
from cs336_tui.worker.ranks import ALONE, Place
from cs336_tui.worker.ranks.group import Group
from cs336_tui.worker.workload.building import Workload, build, configure_torch
from cs336_tui.worker.workload.import_problems import raise_interrupt
from cs336_tui.worker.workload.model_parts import named_parameters
from cs336_tui.worker.workload.passes import logits_of
from cs336_tui.worker.workload.precision import FIRST_LOSS_SCALE, RECIPES, dtype_name

RANGES = 32
"""Ranges of token positions whose logits have a sketch each, at most."""
BUCKETS = 32
"""Of each sketch: as many as a hash has bits."""
_CHUNK, _CHUNK_OF_CPU = 2**20, 2**14
"""Elements that are sketched at once: on a CPU few enough for torch not to start its threads."""
_SAMPLE = 2**14
"""Elements of a parameter whose values are sketched: it begins with the same values or with quite others."""


def sketch_agreement(request: ReportRequest, enter: Enter) -> AgreementReport:
    """Run one forward, and one backward if the pass has it, as the cell does. Dropout is off: it falls differently in
    each implementation."""
    spec = request.spec
    enter("building")
    device = configure_torch(spec)
    with fresh_compiler(spec.compile):
        workload = build(spec, device)
        for module in workload.model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = 0.0
        parameters = tuple(named_parameters(workload.model))
        values = [sketch(tensor.detach().reshape(-1)[:_SAMPLE], name) for name, tensor in parameters]
        enter("running")
        scale = FIRST_LOSS_SCALE if RECIPES[spec.precision].scale_gradients else 1.0
        while True:
            ran = _run(workload, spec, scale)
            gradients = [
                None if tensor.grad is None else sketch(tensor.grad, name, scale) for name, tensor in parameters
            ]
            if scale <= 1 or not any(found and found.not_finite for found in gradients):
                break
            scale /= 2
    sketches = (
        ParameterSketch(
            name=name, shape=tuple(tensor.shape), dtype=dtype_name(tensor.dtype), value=value, gradient=gradient
        )
        for (name, tensor), value, gradient in zip(parameters, values, gradients, strict=True)
    )
    return AgreementReport(**header(spec, device), **ran, parameters=tuple(sketches), loss_scale=scale)


def _run(workload: Workload, spec: CellSpec, scale: float) -> dict[str, Any]:
    """Run the pass: the fields of an `AgreementReport` that a forward gives. Gradients, of `scale` times the loss, are
    left in the parameters."""
    phases = prepared_phases(spec.pass_)
    device = workload.batch.targets.device
    workload.model.zero_grad(set_to_none=True)
    torch.manual_seed(spec.seed)
    before = generator_state(device)
    with torch.inference_mode(spec.pass_ == "inference"), workload.autocast():
        logits = logits_of(workload.runs(workload.batch.inputs), workload.model)
        loss = workload.loss(logits, workload.batch.targets) if "loss" in phases else None
    draws = not torch.equal(before, generator_state(device))
    # Equal ranges of positions, the last dimension but one: (..., T, V).
    length = logits.shape[-2] if logits.dim() > 1 else 1
    size = -(-length // RANGES)
    positions = []
    for first in range(0, length, size):
        end = min(first + size, length)
        part = logits.narrow(-2, first, end - first) if logits.dim() > 1 else logits
        positions.append(PositionsSketch(first, end, sketch(part, f"logits {first}")))
    shape, dtype = tuple(logits.shape), dtype_name(logits.dtype)
    del logits, part
    if loss is not None and "backward" in phases:
        (loss * scale).backward()
    is_number = loss is not None and loss.numel() == 1 and bool(torch.isfinite(loss))
    number = loss.item() if loss is not None and is_number else None
    return {"shape": shape, "dtype": dtype, "logits": tuple(positions), "loss": number, "draws": draws}


@torch.no_grad()
def sketch(tensor: Tensor, name: str, scale: float = 1.0, *, chunk: int | None = None) -> Sketch:
    """The sketch of a tensor divided by `scale`, `chunk` elements at once. Elements lie in rows of `BUCKETS`; a hash of
    the row has the sign of each in its bits, another shifts them to their buckets: two elements share one by chance
    1 / `BUCKETS` at most. Sums are in float64. Signs and buckets are the same on every device."""
    flat = tensor.detach().reshape(-1)
    seed = zlib.crc32(f"{name} {flat.numel()}".encode())
    chunk = chunk or (_CHUNK if flat.device.type == "cuda" else _CHUNK_OF_CPU)
    total, squares = _sums(flat, seed, chunk)
    lost = 0
    if not math.isfinite(squares):
        lost = int((~flat.isfinite()).sum())
        total, squares = _sums(flat.nan_to_num(0.0, 0.0, 0.0), seed, chunk)
    packed = struct.pack(f"<{BUCKETS}f", *(total / scale).float().tolist())
    return Sketch(math.sqrt(squares) / scale, packed, lost)


def _sums(flat: Tensor, seed: int, chunk: int) -> tuple[Tensor, float]:
    """The buckets and the sum of the squares, which is not finite if an element is not."""
    device = torch.device("cpu") if flat.device.type == "mps" else flat.device  # which has no float64
    total = torch.zeros(BUCKETS, dtype=torch.float64, device=device)
    squares = torch.zeros((), dtype=torch.float64, device=device)
    columns = torch.arange(BUCKETS, device=device)
    step = max(chunk // BUCKETS, 1) * BUCKETS
    for first in range(0, flat.numel(), step):
        part = flat[first : first + step].to(device)
        part = part if part.dtype == torch.float64 else part.float()
        part = nn.functional.pad(part, (0, -len(part) % BUCKETS)).view(-1, BUCKETS)
        squares += torch.linalg.vector_norm(part, dtype=torch.float64).square()
        rows = torch.arange(len(part), device=device) + first // BUCKETS
        signed = part * (1 - 2 * ((hashed(rows, seed)[:, None] >> columns) & 1))
        shifts = hashed(rows, ~seed & 0xFFFFFFFF) % BUCKETS
        total += signed.gather(1, (columns - shifts[:, None]) % BUCKETS).sum(0, dtype=torch.float64)
    return total.cpu(), float(squares)


def hashed(numbers: Tensor, seed: int) -> Tensor:
    """A 32-bit hash of whole numbers, int64: two rounds of multiplication and shift with the constants of Wellons'
    hash-prospector, whose products stay within 63 bits."""
    x = (numbers ^ seed) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return x ^ (x >> 15)


def _rank_memory(request: ReportRequest, enter: Enter, place: Place = ALONE) -> Report:
    from cs336_tui.worker.measure.rank_memory import record_rank_memory  # it imports much

    return record_rank_memory(request, enter, place)


_MAKERS: Mapping[ReportKind, Callable[..., Report]] = {
    "kernels": profile_kernels,
    "memory": record_memory,
    "rank-memory": _rank_memory,
    "precision": read_dtypes,
    "oom": explain_oom,
    "agreement": sketch_agreement,
}


def make_report(
    request: ReportRequest, report: int, emit: Emit, cancelled: IsCancelled, *, place: Place = ALONE
) -> None:
    """Make one report here, or the part of one rank of several. Emits a `ReportStage` for each stage and always one
    `ReportFinished`. An error ends the report, not the caller: status ``oom`` or ``failed``, as for a cell."""

    def enter(stage: str) -> None:
        if cancelled():
            raise Cancelled
        emit(ReportStage(at=time(), report=report, stage=stage))

    group = Group(place, torch.device(place.device_of(request.spec)))
    with restored_settings(), no_garbage_collection():
        try:
            make = _MAKERS[request.kind]
            if place.ranks > 1:
                make = partial(make, place=place)
            with group.joined(request.spec.backend_in_use):
                content = make(request, enter)
            ended = ReportFinished(at=time(), report=report, status="ok", content=content)
        except Cancelled:
            ended = ReportFinished(at=time(), report=report, status="cancelled", error="stopped by the user")
        except BaseException as error:  # a user's model may call sys.exit
            raise_interrupt(error)
            status, text = outcome_of(error)
            ended = ReportFinished(at=time(), report=report, status=status, error=text)
    emit(ended)
    if ended.status == "ok":
        group.leave()
