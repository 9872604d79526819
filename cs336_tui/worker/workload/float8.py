"""Linear layers with float8 matrix products, with one scale per tensor that is computed at each use. Activations and
weights are E4M3, gradients E5M2 (Micikevicius et al. 2022, "FP8 formats for deep learning"), sums and results wider."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_tui.config.spec import FLOAT8_MULTIPLE
from cs336_tui.worker.workload.transformer import Linear, Transformer

FORMAT = torch.float8_e4m3fn  # Format of activations and weights
GRADIENT_FORMAT = torch.float8_e5m2
_LEAST_SCALE = 2.0**-100  # Scale of a tensor of zeros, against division by 0; exact in bfloat16
_RESULT = torch.bfloat16


def to_float8(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The tensor in this format, stored by rows, as CUDA's scaled products require, and its float32 scale. The largest
    magnitude becomes the largest number of the format."""
    low, high = x.aminmax()
    scale = (torch.maximum(-low, high) / torch.finfo(dtype).max).clamp_min(_LEAST_SCALE)
    return (x / scale).to(dtype, memory_format=torch.contiguous_format), scale.float()


def scaled_product(a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, out: torch.dtype, *, fast: bool) -> Tensor:
    """a b^T of two float8 matrices, (M, K) and (N, K) as they lie in memory, in `out`. `fast` sums less exactly."""
    return torch._scaled_mm(a, b.t(), scale_a=a_scale, scale_b=b_scale, out_dtype=out, use_fast_accum=fast)


class _Product(torch.autograd.Function):
    """x W^T: (M, in), (out, in) -> (M, out), all products in float8. Backward reads forward's float8 copies."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        small_x, x_scale = to_float8(x, FORMAT)
        small_weight, weight_scale = to_float8(weight, FORMAT)
        ctx.save_for_backward(small_x, x_scale, small_weight, weight_scale)
        ctx.weight_dtype = weight.dtype
        return scaled_product(small_x, x_scale, small_weight, weight_scale, x.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, x_scale, weight, weight_scale = ctx.saved_tensors
        gradient, scale = to_float8(gradients[0], GRADIENT_FORMAT)
        of_x = of_weight = None
        # The hardware multiplies rows by rows only, so columns are first copied to rows.
        if ctx.needs_input_grad[0]:
            columns = weight.t().contiguous()
            of_x = scaled_product(gradient, scale, columns, weight_scale, gradients[0].dtype, fast=False)
        if ctx.needs_input_grad[1]:
            rows, columns = gradient.t().contiguous(), x.t().contiguous()
            of_weight = scaled_product(rows, scale, columns, x_scale, ctx.weight_dtype, fast=False)
        return of_x, of_weight


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear` with float8 products and a bfloat16 result: (..., in) -> (..., out). Pads the rows
    with zeros to a multiple of 16, and drops them from the result."""
    rows = x.to(_RESULT).flatten(0, -2)
    count = len(rows)
    if count % FLOAT8_MULTIPLE:
        rows = F.pad(rows, (0, 0, 0, -count % FLOAT8_MULTIPLE))
    out: Tensor = _Product.apply(rows, weight)
    out = out[:count].unflatten(0, x.shape[:-1])
    return out if bias is None else out + bias.to(_RESULT)


class _Float8Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class _Float8ReferenceLinear(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight)


_IN_FLOAT8: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: _Float8Linear, Linear: _Float8ReferenceLinear}
"""Exactly these classes, not subclasses, which may compute something else."""


def use_float8(model: nn.Module, vocab_size: int) -> None:
    """Make the linear layers of a model multiply in float8, except the one that makes logits and those with a side that
    is no multiple of 16. Layers only change their class. Raises ValueError, in one line, if no layer is left."""
    found = [module for module in model.modules() if type(module) in _IN_FLOAT8]
    head = _head(model, found, vocab_size)
    wide = [layer for layer in found if layer is not head and not any(side % FLOAT8_MULTIPLE for side in _sides(layer))]
    if not wide:
        raise ValueError(f"precision fp8-mixed: {_why_none(model, found, head)}; choose bf16-mixed")
    for layer in wide:
        layer.__class__ = _IN_FLOAT8[type(layer)]


def float8_description(model: nn.Module) -> str | None:
    """The number of linear layers that multiply in float8, in words; None if none does."""
    small, all_of_them = 0, 0
    for module in model.modules():
        is_small = isinstance(module, _Float8Linear | _Float8ReferenceLinear)
        small += is_small
        all_of_them += is_small or isinstance(module, nn.Linear | Linear)
    if not small:
        return None
    formats = " and ".join(str(dtype).removeprefix("torch.") for dtype in (FORMAT, GRADIENT_FORMAT))
    return f"{formats} in {small} of {all_of_them} linear layers"


def _head(model: nn.Module, layers: list[nn.Module], vocab_size: int) -> nn.Module | None:
    if isinstance(model, Transformer):
        return model.head
    return next((layer for layer in reversed(layers) if _sides(layer)[0] == vocab_size), None)


def _sides(layer: nn.Module) -> torch.Size:
    """(out, in)."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight.shape


def _why_none(model: nn.Module, layers: list[nn.Module], head: nn.Module | None) -> str:
    name = "the reference model" if isinstance(model, Transformer) else type(model).__name__
    odd = next((layer for layer in layers if layer is not head), None)
    if odd is None:
        return f"{name} has no torch.nn.Linear to run in it"
    out, width = _sides(odd)
    return f"no linear layer of {name} has sides that are multiples of {FLOAT8_MULTIPLE} (one is {width} to {out})"
