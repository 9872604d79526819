"""Attention without materialised scores: torch's fused kernels, or a user's own function."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from functools import partial
from time import perf_counter
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import ATTENTIONS
from cs336_tui.config.variants import is_imported
from cs336_tui.worker.workload.compile_and_capture import nothing_compiled
from cs336_tui.worker.workload.imported_components import ImportedAttention, imported_attention
from cs336_tui.worker.workload.precision import RECIPES, Context
from cs336_tui.worker.workload.transformer import AttentionCore

BACKENDS = {  # torch's kernels behind `torch.nn.functional.scaled_dot_product_attention`, by our names
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
_WORDS = {backend: name for name, backend in BACKENDS.items()} | {SDPBackend.MATH: "math (scores materialised)"}
_DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
_MIXED = {torch.float16: "fp16-mixed", torch.bfloat16: "bf16-mixed"}  # Precisions that compute attention in it


def core_of(spec: CellSpec, device: torch.device, autocast: Context = nullcontext) -> AttentionCore | None:
    """The spec's attention; None for the naive one, which the models implement. `autocast` makes the context in which a
    user's own is tried. Raises ValueError, in one line, if the device lacks it; on the meta device if no GPU has it."""
    name = spec.attention
    if name == "naive":
        return None
    form = _Form.of(spec)
    if is_imported(name):
        length = spec.context_length
        function = imported_attention(
            name, spec.model_path, causal=spec.causal, length=length, device=device, given=spec.attention_args
        )
        alone = spec.workload == "attention"
        if alone:  # its inputs are parameters, not results under autocast
            form = form._replace(dtype=RECIPES[spec.precision].parameters)
        with autocast(), nothing_compiled():
            began = perf_counter()
            dims = _dims_taken(name, function, form, device, has_heads=not alone or spec.num_heads > 1)
            tried_s = perf_counter() - began
        return AttentionCore(partial(_own, function, dims), name, function.mask, tried_s)
    backend = BACKENDS.get(name)
    run = partial(_fused, backend, spec.causal)
    if device.type == "meta":
        if spec.device.startswith("cuda") and form.dtype is torch.float32 and name in ("flash", "cudnn"):
            raise ValueError(_wrong_dtype(name, spec, (torch.float16, torch.bfloat16), ATTENTIONS))
        return AttentionCore(run, name)
    chosen = _chosen(form, backend, device)
    if chosen is None:
        raise ValueError(_refusal(name, spec, form, device))
    words = _WORDS.get(chosen, chosen.name.lower().replace("_", " "))
    return AttentionCore(run, words if backend else f"sdpa: {words}")


def attentions_on(device: torch.device) -> tuple[str, ...]:
    """Those of `ATTENTIONS` that the device has in fp32, fp16 or bf16; tried here."""
    forms = [_Form((1, 1, 64, 64), dtype, causal=True, trains=True) for dtype in _DTYPES]
    return tuple(
        name
        for name in ATTENTIONS
        if name not in BACKENDS or any(_chosen(form, BACKENDS[name], device) for form in forms)
    )


def _fused(backend: SDPBackend | None, causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's scaled_dot_product_attention by one backend, or by the one that torch chooses (None)."""
    if backend is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _own(function: ImportedAttention, dims: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A user's function of `dims` dimensions: (B, H, T, K), or (B, T, K), for which heads count as sequences."""
    if q.dim() == dims:
        return function(q, k, v)
    if dims == 3:
        return function(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)).unflatten(0, q.shape[:2])
    return function(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)).squeeze(1)


class _Form(NamedTuple):
    """Shape (B, H, T, K) and dtype of a cell's queries, keys and values."""

    shape: tuple[int, int, int, int]
    dtype: torch.dtype
    causal: bool
    trains: bool

    @classmethod
    def of(cls, spec: CellSpec) -> _Form:
        recipe = RECIPES[spec.precision]
        shape = (spec.batch_size, spec.num_heads, spec.context_length, spec.head_dim)
        return cls(shape, recipe.autocast or recipe.parameters, spec.causal, spec.pass_ != "inference")

    def queries(self, device: torch.device) -> Tensor:
        """One row for all: the allocator would cut the model's first weights from what a whole tensor leaves."""
        row = torch.empty(self.shape[-1:], dtype=self.dtype, device=device, requires_grad=self.trains)
        return row.expand(self.shape)


def _chosen(form: _Form, backend: SDPBackend | None, device: torch.device) -> SDPBackend | None:
    """The kernel that torch would run, restricted to `backend` if given; None if it has none then."""
    q = form.queries(device)
    with nullcontext() if backend is None else sdpa_kernel(backend), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = SDPBackend(torch._fused_sdp_choice(q, q, q, is_causal=form.causal))
        except NotImplementedError:  # a device without kernels of its own, such as MPS
            found = SDPBackend.MATH
        except RuntimeError:
            return None
    return found if backend in (None, found) else None


def _refusal(name: str, spec: CellSpec, form: _Form, device: torch.device) -> str:
    """The reason for which the device lacks this kernel for the cell, and its other kernels, in one line."""
    backend = BACKENDS[name]
    if name not in (there := attentions_on(device)):
        return f"attention {name}: {device.type} has none; it can do {', '.join(there)}"
    others = [kind for kind in there if kind not in BACKENDS or _chosen(form, BACKENDS[kind], device)]
    if dtypes := [dtype for dtype in _DTYPES if _chosen(form._replace(dtype=dtype), backend, device)]:
        return _wrong_dtype(name, spec, dtypes, others)
    q = form.queries(device)
    # Torch's reason is read while it chooses: `torch.backends.cuda.can_use_flash_attention` writes to standard error.
    with sdpa_kernel(backend), warnings.catch_warnings(record=True) as warned, suppress(RuntimeError):
        warnings.simplefilter("always")
        torch._fused_sdp_choice(q, q, q, is_causal=form.causal)
    reason = first_reason(name, (str(each.message) for each in warned)) or f"{device.type} cannot do it for this cell"
    return f"attention {name}: {reason}; choose one of {', '.join(others)}"


def _wrong_dtype(name: str, spec: CellSpec, dtypes: Iterable[torch.dtype], others: Iterable[str]) -> str:
    needed = " or ".join(_DTYPES[dtype] for dtype in dtypes)
    instead = [_MIXED.get(dtype, "fp32") for dtype in reversed(list(dtypes))][:1]
    instead += [kind for kind in others if kind not in ("naive", "sdpa", "math", "flash", "cudnn")]
    kernel = f"{spec.device.partition(':')[0]}'s {name} kernel"
    return f"attention {name} in {spec.precision}: {kernel} needs {needed}; choose {' or '.join(instead)}"


def first_reason(name: str, warned: Iterable[str]) -> str:
    """The first reason that torch's warnings give for this kernel, on one line without its place in torch. Format of
    the warnings: "Flash attention kernel not used because:", reasons, the next kernel."""
    about = ""
    for text in warned:
        reason = " ".join(text.partition("(Triggered internally")[0].split()).rstrip(".")
        if reason.endswith("because:"):
            about = reason.lower().replace(" ", "-")
        elif reason and about.startswith(name):
            return reason[0].lower() + reason[1:]
    return ""


def _dims_taken(name: str, function: ImportedAttention, form: _Form, device: torch.device, *, has_heads: bool) -> int:
    """The number of dimensions that a user's function takes, tried on one sequence: the model's first, then the other.
    Raises the function's first error if it takes neither, and ValueError for an output of another shape."""
    four = form._replace(shape=(1, 1, *form.shape[2:]), trains=False).queries(device).zero_()
    first, other = (four, four[0]) if has_heads else (four[0], four)
    with torch.no_grad():
        try:
            out = function(first, first, first)
        except Exception:
            with suppress(Exception):
                if function(other, other, other).shape == other.shape:
                    return other.dim()
            raise
    if out.shape != first.shape:
        was, given = tuple(out.shape), tuple(first.shape)
        raise ValueError(f"attention {name}: returned {was} for queries, keys and values of {given}; expected {given}")
    return first.dim()
