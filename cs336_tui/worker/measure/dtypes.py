"""The precision report: the accumulation experiment, the course's toy model, and the cell's own model by hooks."""

from __future__ import annotations

import gc
from functools import partial
from typing import NamedTuple

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import is_imported
from cs336_tui.events.reports import Accumulation, ModuleDtypes, PrecisionReport, ReportRequest, ToyDtypes
from cs336_tui.worker.measure.failures import is_out_of_memory
from cs336_tui.worker.measure.module_dtypes import DtypeWatch, collapsed, dtypes_of, gradient_dtypes
from cs336_tui.worker.measure.report_parts import Enter, header, joined, left_out
from cs336_tui.worker.workload.building import build, configure_torch
from cs336_tui.worker.workload.passes import PHASES, logits_of
from cs336_tui.worker.workload.precision import dtype_name, effective_autocast
from cs336_tui.worker.workload.transformer import Transformer

_FEW_LAYERS, _FEW_TOKENS = 2, 128
"""Size of the model that is read if the cell's own does not fit: no dtype depends on depth or length."""


class _Read(NamedTuple):
    modules: tuple[ModuleDtypes, ...]
    logits: str
    loss: str


def read_dtypes(request: ReportRequest, enter: Enter) -> PrecisionReport:
    """Accumulate on the CPU, run the toy model under each autocast, and run the cell's model once on its device.

    The model runs forward and loss, and backward if the cell's pass has one, in the cell's precision. If it does not
    fit, a model of two layers is read, and `note` says so. Raises ValueError for a precision that the device lacks.
    """
    spec = request.spec
    enter("accumulating")
    accumulation = accumulate()
    device = configure_torch(spec)
    enter("toy model")
    toy, notes = toy_dtypes(device)
    read, more = _read_what_fits(spec, device, enter)
    return PrecisionReport(
        **header(spec, device),
        accumulation=accumulation,
        toy=toy,
        modules=read.modules,
        logits=read.logits,
        loss=read.loss,
        note=joined(*notes, *_pass_notes(spec), *left_out(spec), *more),
    )


def _pass_notes(spec: CellSpec) -> tuple[str, ...]:
    if "backward" in PHASES[spec.pass_]:
        return ()
    return (f"Pass {spec.pass_} has no backward, so there are no gradients; its loss was computed for this report.",)


def _read_what_fits(spec: CellSpec, device: torch.device, enter: Enter) -> tuple[_Read, tuple[str, ...]]:
    """The dtypes of the cell's model; if it does not fit, of a small one of its widths, with a note."""
    if not _too_large_for_host(spec):
        enter("reading the model")
        try:
            return _read(spec, device), ()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
    gc.collect()  # the collector is off while reports are made
    if device.type == "cuda":
        torch.cuda.empty_cache()
    few = msgspec.structs.replace(
        spec,
        checkpoint=0,
        num_layers=min(spec.num_layers, _FEW_LAYERS),
        context_length=min(spec.context_length, _FEW_TOKENS),
        batch_size=1,
    )
    enter("reading a smaller model")
    note = (
        f"The whole model may not fit; read from {few.num_layers} of its {spec.num_layers} layers, batch 1, context "
        f"length {few.context_length}, on which no dtype depends. Counts are of these layers."
    )
    return _read(few, device), (note,)


def _too_large_for_host(spec: CellSpec) -> bool:
    """True if a cell on the CPU may need more memory than is free: the system then kills instead of raising."""
    if spec.device != "cpu":
        return False
    import psutil

    return bytes_at_most(spec) > int(psutil.virtual_memory().available)


def bytes_at_most(spec: CellSpec) -> int:
    """A rough upper estimate of the bytes that forward and backward hold: parameters and gradients in fp32 with a
    16-bit copy, and each layer's activations in fp32. A user's model is assumed to keep as much as the reference."""
    if spec.workload == "attention":
        return 4 * spec.tokens_per_step * (6 * spec.context_length + 20 * spec.d_model)
    layers = 1 if spec.pass_ == "inference" else spec.num_layers
    elements = 12 * spec.d_model + 4 * spec.d_ff + 4 * spec.num_heads * spec.context_length  # a token and layer
    return 10 * _num_params(spec) + 4 * spec.tokens_per_step * (layers * elements + 4 * spec.vocab_size)


def _num_params(spec: CellSpec) -> int:
    if is_imported(spec.model):
        try:
            model = build(_without_optimizer(spec), torch.device("meta"), as_written=True).model
            return sum(parameter.numel() for parameter in model.parameters())
        except Exception:  # it cannot be built without data: assume the reference's size
            gc.collect()
    return Transformer(spec.dims, arch=spec.arch, context_length=spec.context_length, device="meta").num_params


def _without_optimizer(spec: CellSpec) -> CellSpec:
    """The same cell without optimizer step and checkpointing, which show no further dtype."""
    once = msgspec.structs.replace(spec, checkpoint=0)
    return msgspec.structs.replace(once, pass_="forward+backward") if "backward" in PHASES[spec.pass_] else once


def _read(spec: CellSpec, device: torch.device) -> _Read:
    workload = build(_without_optimizer(spec), device, as_written=True)
    model, batch, autocast = workload.model, workload.batch, workload.autocast
    with DtypeWatch(model) as watch, torch.inference_mode(spec.pass_ == "inference"), autocast():
        logits = logits_of(model(batch.inputs))
        loss = workload.loss(logits, batch.targets)
    if "backward" in PHASES[spec.pass_]:
        loss.backward()
    return _Read(collapsed(watch.rows()), dtypes_of([logits]), dtypes_of([loss]))


ADDEND = 0.01
ADDITIONS = 1000


_VARIANTS = (  # Dtypes of accumulator and addend; True if each addend is converted first
    (torch.float32, torch.float32, False),
    (torch.float16, torch.float16, False),
    (torch.float32, torch.float16, False),
    (torch.float32, torch.float16, True),
)


def accumulate() -> tuple[Accumulation, ...]:
    """Add 0.01 a thousand times on the CPU, in the four variants of the assignment."""
    return tuple(
        Accumulation(dtype_name(accumulator), dtype_name(addend), converted, _sum(accumulator, addend, converted))
        for accumulator, addend, converted in _VARIANTS
    )


def _sum(accumulator: torch.dtype, dtype: torch.dtype, converted: bool) -> float:
    total = torch.zeros((), dtype=accumulator)
    for _ in range(ADDITIONS):
        addend = torch.tensor(ADDEND, dtype=dtype)
        total += addend.to(accumulator) if converted else addend
    return float(total)


AUTOCASTS = (torch.float16, torch.bfloat16)
WIDTH_IN, HIDDEN, WIDTH_OUT, BATCH = 16, 10, 5, 4


class ToyModel(nn.Module):
    """Linear, ReLU, layer norm, linear: (B, `width_in`) -> logits (B, `width_out`). No linear layer has a bias."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width_in, HIDDEN, bias=False)
        self.relu = nn.ReLU()
        self.ln = nn.LayerNorm(HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, width_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc2(self.ln(self.relu(self.fc1(x))))
        return logits


def toy_dtypes(device: torch.device) -> tuple[tuple[ToyDtypes, ...], tuple[str, ...]]:
    """The toy model's dtypes under each autocast that the device supports, and notes on the others."""
    found: list[ToyDtypes] = []
    missing: list[str] = []
    for dtype in AUTOCASTS:
        try:
            if (reached := _under(dtype, device)) is not None:
                found.append(reached)
            else:
                missing.append(f"{dtype_name(dtype)} autocast: torch leaves it off on {device.type}.")
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            why = (str(error).splitlines() or [type(error).__name__])[0]
            missing.append(f"{dtype_name(dtype)} autocast: {device.type} cannot do it: {why}")
    return tuple(found), tuple(missing)


def _under(dtype: torch.dtype, device: torch.device) -> ToyDtypes | None:
    """The dtypes of one forward and backward, read by hooks; None if torch leaves autocast off."""
    autocast = partial(torch.autocast, device.type, dtype=dtype)
    if effective_autocast(autocast, device.type) is not dtype:
        return None
    model = ToyModel(WIDTH_IN, WIDTH_OUT).to(device)
    x = torch.randn(BATCH, WIDTH_IN, device=device)
    targets = torch.arange(BATCH, device=device) % WIDTH_OUT
    with DtypeWatch(model) as watch, autocast():
        parameters = dtypes_of(model.parameters())
        logits = model(x)
        loss = F.cross_entropy(logits, targets)
    loss.backward()
    outputs = {row.path: row.output for row in watch.rows()}
    return ToyDtypes(
        autocast=dtype_name(dtype),
        parameters=parameters,
        first_layer_output=outputs["fc1"],
        layer_norm_output=outputs["ln"],
        logits=dtypes_of([logits]),
        loss=dtypes_of([loss]),
        gradients=gradient_dtypes(model.parameters()),
    )
