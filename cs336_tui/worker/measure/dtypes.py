"""The precision report: the accumulation experiment, the course's toy model, and the cell's own model by hooks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial, wraps
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import PHASES
from cs336_tui.config.variants import is_imported
from cs336_tui.events.reports import Accumulation, ModuleDtypes, PrecisionReport, ReportRequest, ToyDtypes
from cs336_tui.worker.estimate.meta_device import RULES, Autocast
from cs336_tui.worker.measure.failures import is_out_of_memory
from cs336_tui.worker.measure.reporter import Enter, header, joined, left_out
from cs336_tui.worker.workload.attention_only import AttentionOnly
from cs336_tui.worker.workload.building import build, collect_garbage, configure_torch
from cs336_tui.worker.workload.passes import logits_of
from cs336_tui.worker.workload.precision import Context, dtype_name, effective_autocast
from cs336_tui.worker.workload.transformer import Attention, Transformer

_FEW_LAYERS, _FEW_TOKENS = 2, 128  # The model that is read if the cell's does not fit: no dtype depends on its size


def read_dtypes(request: ReportRequest, enter: Enter) -> PrecisionReport:
    """Accumulate on the CPU, run the toy model under each autocast, and run the cell's model once on its device:
    forward and loss, and backward if its pass has one. If it does not fit, a model of two layers is read, and `note`
    says so. Raises ValueError for a precision that the device lacks."""
    spec = request.spec
    enter("accumulating")
    accumulation = accumulate()
    device = configure_torch(spec)
    enter("toy model")
    toy, missing = toy_dtypes(device)
    by_rules = toy_by_cuda_rules() if device.type != "cuda" else ()  # on one hooks see what torch does
    read, more = _read_what_fits(spec, device, enter)
    no_backward = (
        f"Pass {spec.pass_} has no backward, so there are no gradients; its loss was computed for this report."
    )
    notes = () if "backward" in PHASES[spec.pass_] else (no_backward,)
    return PrecisionReport(
        **header(spec, device),
        accumulation=accumulation,
        toy=toy,
        **read,
        note=joined(*notes, *left_out(spec), *more),
        toy_by_rules=by_rules,
        rules=RULES if by_rules else "",
        toy_note=joined(*missing),
    )


def _read_what_fits(spec: CellSpec, device: torch.device, enter: Enter) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The dtypes of the cell's model; if it does not fit, of a small one of its widths, with a note."""
    # Where a host's memory runs out, the system kills instead of raising.
    if spec.device != "cpu" or bytes_at_most(spec) <= psutil.virtual_memory().available:
        enter("reading the model")
        try:
            return _read(spec, device), ()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
    collect_garbage()  # the collector is off while reports are made
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
        f"length {few.context_length}, which changes no dtype. Counts are of these layers."
    )
    return _read(few, device), (note,)


def bytes_at_most(spec: CellSpec) -> int:
    """A rough upper estimate of the bytes that forward and backward hold: parameters and gradients in fp32 with a
    16-bit copy, and each layer's activations in fp32. A user's model is assumed to keep as much as the reference."""
    if spec.workload == "norm":
        return 40 * spec.tokens_per_step * spec.d_model
    if spec.workload == "attention":
        return 4 * spec.tokens_per_step * (6 * spec.num_heads * spec.context_length + 20 * spec.d_model)
    layers = 1 if spec.pass_ == "inference" else spec.num_layers
    elements = 12 * spec.d_model + 4 * spec.d_ff + 4 * spec.num_heads * spec.context_length  # a token and layer
    return 10 * _num_params(spec) + 4 * spec.tokens_per_step * (layers * elements + 4 * spec.vocab_size)


def _num_params(spec: CellSpec) -> int:
    if is_imported(spec.model):
        try:
            model = build(_without_optimizer(spec), torch.device("meta"), as_written=True).model
            return sum(parameter.numel() for parameter in model.parameters())
        except Exception:  # it cannot be built without data: assume the reference's size
            collect_garbage()
    return Transformer(spec.dims, arch=spec.arch, context_length=spec.context_length, device="meta").num_params


def _without_optimizer(spec: CellSpec) -> CellSpec:
    """The same cell without optimizer step and checkpointing, which show no further dtype."""
    once = msgspec.structs.replace(spec, checkpoint=0)
    return msgspec.structs.replace(once, pass_="forward+backward") if "backward" in PHASES[spec.pass_] else once


def _read(spec: CellSpec, device: torch.device) -> dict[str, Any]:
    """The fields of a report that tell of the model."""
    workload = build(_without_optimizer(spec), device, as_written=True)
    model, batch, autocast = workload.model, workload.batch, workload.autocast
    with DtypeWatch(model) as watch, torch.inference_mode(spec.pass_ == "inference"), autocast():
        logits = logits_of(model(batch.inputs))
        loss = workload.loss(logits, batch.targets)
    if "backward" in PHASES[spec.pass_]:
        loss.backward()
    return {"modules": collapsed(watch.rows()), "logits": dtypes_of([logits]), "loss": dtypes_of([loss])}


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
    sums = []
    for accumulator, dtype, converted in _VARIANTS:
        total = torch.zeros((), dtype=accumulator)
        for _ in range(ADDITIONS):
            addend = torch.tensor(ADDEND, dtype=dtype)
            total += addend.to(accumulator) if converted else addend
        sums.append(Accumulation(dtype_name(accumulator), dtype_name(dtype), converted, float(total)))
    return tuple(sums)


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
            autocast = partial(torch.autocast, device.type, dtype=dtype)
            if effective_autocast(autocast, device.type) is dtype:
                found.append(_under(dtype, autocast, device))
            else:
                missing.append(f"{dtype_name(dtype)} autocast: torch leaves it off on {device.type}.")
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            why = (str(error).splitlines() or [type(error).__name__])[0]
            missing.append(f"{dtype_name(dtype)} autocast: {device.type} cannot do it: {why}")
    return tuple(found), tuple(missing)


def toy_by_cuda_rules() -> tuple[ToyDtypes, ...]:
    """The toy model's dtypes on a CUDA GPU, which need not be here: each operation casts by `RULES`, on tensors without
    data."""
    return tuple(_under(dtype, partial(Autocast, "cuda", dtype), torch.device("meta")) for dtype in AUTOCASTS)


def _under(dtype: torch.dtype, autocast: Context, device: torch.device) -> ToyDtypes:
    """The dtypes of one forward and backward, read by hooks."""
    model = ToyModel(WIDTH_IN, WIDTH_OUT).to(device)
    x, targets = (torch.randn(BATCH, width, device=device) for width in (WIDTH_IN, WIDTH_OUT))
    with DtypeWatch(model) as watch, autocast():
        parameters = dtypes_of(model.parameters())
        logits = model(x)
        loss = F.mse_loss(logits, targets)
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
        loss_function="mean squared error",
        gradient_of={name: gradient_dtypes([parameter]) for name, parameter in model.named_parameters()},
    )


WHOLE_MODEL = "model"  # The path of the model itself, whose name is empty in torch
METHOD = "method"  # The class shown for a part that is a method of its module

_ATTENTION_METHODS = ("score", "weigh", "mix", "attend")
"""Parts of attention between its projections. They are no modules, so torch's hooks do not see them."""
_LAYER = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")  # An index in a module list; the first of a path is the layer

_Part = tuple[nn.Module, str]  # A module, or a method of it


class _Call(NamedTuple):
    parameters: str
    inputs: str
    output: str


class DtypeWatch:
    """Records the dtypes of all calls of modules and of attention's methods while it is entered."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._calls: dict[_Part, dict[_Call, None]] = {}  # Calls of each part, in the order of their begin
        self._undo = ExitStack()

    def __enter__(self) -> DtypeWatch:
        for module in self._model.modules():
            self._undo.callback(module.register_forward_pre_hook(lambda module, *_: self._came_to(module)).remove)
            self._undo.callback(module.register_forward_hook(self._saw, with_kwargs=True).remove)
            if isinstance(module, Attention | AttentionOnly):
                for method in _ATTENTION_METHODS:
                    self._wrap(module, method)
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def rows(self) -> tuple[ModuleDtypes, ...]:
        """A row for every called part and path of it, in the order of the calls. Parameters and gradients, read now,
        are a module's own. Several dtypes are joined in the order of the arguments: ``bfloat16+float32``."""
        paths: dict[nn.Module, list[str]] = {}
        for path, module in self._model.named_modules(remove_duplicate=False):
            paths.setdefault(module, []).append(path)
        return tuple(
            ModuleDtypes(
                path=".".join(filter(None, (path, method))) or WHOLE_MODEL,
                module=METHOD if method else type(module).__name__,
                count=1,
                parameters=_joined(call.parameters for call in calls),
                inputs=_joined(call.inputs for call in calls),
                output=_joined(call.output for call in calls),
                gradients="" if method else gradient_dtypes(module.parameters(recurse=False)),
            )
            for (module, method), calls in self._calls.items()
            for path in paths[module]
        )

    def _came_to(self, module: nn.Module, method: str = "") -> None:
        self._calls.setdefault((module, method), {})

    def _saw(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        parameters = dtypes_of(module.parameters(recurse=False))
        returned = output if isinstance(output, tuple | list) else [output]
        self._calls[module, ""][_Call(parameters, dtypes_of((*args, *kwargs.values())), dtypes_of(returned))] = None

    def _wrap(self, module: nn.Module, method: str) -> None:
        inner: Callable[..., Any] = getattr(module, method)

        @wraps(inner)
        def watched(*args: Any) -> Any:
            self._came_to(module, method)
            output = inner(*args)
            self._calls[module, method][_Call("", dtypes_of(args), dtypes_of([output]))] = None
            return output

        setattr(module, method, watched)
        self._undo.callback(lambda: delattr(module, method))


def dtypes_of(values: Iterable[object]) -> str:
    """The distinct dtypes of the tensors among these, as ``bfloat16+float32``; empty without a tensor."""
    return _joined(dtype_name(value.dtype) for value in values if isinstance(value, Tensor))


def gradient_dtypes(parameters: Iterable[nn.Parameter]) -> str:
    """The dtypes of these parameters' gradients; empty before backward."""
    return dtypes_of(parameter.grad for parameter in parameters)


def collapsed(rows: Iterable[ModuleDtypes]) -> tuple[ModuleDtypes, ...]:
    """Join equal rows of layers: ``layers.*.ffn`` if all are equal, else each run: ``layers.1-11.ffn``."""
    places: dict[str, list[ModuleDtypes]] = {}
    for row in rows:
        places.setdefault(_LAYER.sub("*", row.path, count=1), []).append(row)
    return tuple(joined for place, alike in places.items() for joined in _runs(place, alike))


def _runs(place: str, rows: list[ModuleDtypes]) -> Iterator[ModuleDtypes]:
    """The rows of one place in the layers, equal neighbours joined."""
    runs = [list(run) for _, run in groupby(rows, lambda row: msgspec.structs.replace(row, path=place))]
    for run in runs:
        first, last = (_LAYER.search(row.path) for row in (run[0], run[-1]))
        path = run[0].path
        if first and last and len(run) > 1:
            path = place if len(runs) == 1 else _LAYER.sub(f"{first[0]}-{last[0]}", path, count=1)
        yield msgspec.structs.replace(run[0], path=path, count=sum(row.count for row in run))


def _joined(names: Iterable[str]) -> str:
    return "+".join(dict.fromkeys(filter(None, names)))
