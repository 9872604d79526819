"""Precisions: the torch settings of each, reading back the effective ones, and linear layers in float8.

Float8 products have one scale per tensor that is computed at each use. Activations and weights are E4M3, gradients E5M2
(Micikevicius et al. 2022, "FP8 formats for deep learning"), sums and results wider.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_tui.config.rules import FLOAT8_MULTIPLE
from cs336_tui.config.spec import Precision
from cs336_tui.config.values import FLOAT8
from cs336_tui.worker.workload.transformer import Linear, Transformer

Context = Callable[[], AbstractContextManager[object]]  # Makes a context


class Recipe(NamedTuple):
    """The torch settings of a precision. `matmul` is that of float32 matrix products: ``highest`` is true fp32,
    ``high`` allows TF32 on CUDA."""

    matmul: str = "highest"
    parameters: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    scale_gradients: bool = False
    float8: bool = False


FIRST_LOSS_SCALE = 2.0**16
"""As `torch.amp.GradScaler` begins; halved until all gradients are finite."""
RECIPES: dict[Precision, Recipe] = {
    "fp32": Recipe(),
    "tf32": Recipe(matmul="high"),
    "bf16-mixed": Recipe(autocast=torch.bfloat16),
    "fp16-mixed": Recipe(autocast=torch.float16, scale_gradients=True),
    "bf16": Recipe(parameters=torch.bfloat16),
    # bf16-mixed with other linear layers (`use_float8`)
    "fp8-mixed": Recipe(autocast=torch.bfloat16, float8=True),
}


def check_precision(precision: Precision, device_type: str) -> None:
    """Raise ValueError, in one line, for TF32 and float8 off CUDA, whose hardware alone has them."""
    if precision in ("tf32", "fp8-mixed") and device_type != "cuda":
        raise ValueError(f"precision {precision}: {device_type} cannot do it, only cuda can")


def check_capability(precision: Precision, device: torch.device) -> None:
    """Raise ValueError, in one line, for float8 on a GPU that lacks it."""
    if precision != "fp8-mixed" or device.type != "cuda":
        return
    found = torch.cuda.get_device_properties(device)
    if why := why_no_float8((found.major, found.minor), found.name):
        raise ValueError(why)


def why_no_float8(capability: tuple[int, int], name: str) -> str | None:
    """The reason for which a GPU, or torch on it, has no float8 matrix products; None if it has."""
    if torch.version.hip is not None:
        return f"precision fp8-mixed: needs torch for NVIDIA's GPUs, this one is for ROCm {torch.version.hip}"
    if capability < FLOAT8:
        needed, has = (".".join(map(str, pair)) for pair in (FLOAT8, capability))
        return f"precision fp8-mixed: needs compute capability {needed} or later, {name} has {has}"
    if not (hasattr(torch, "_scaled_mm") and hasattr(torch, "float8_e4m3fn") and hasattr(torch, "float8_e5m2")):
        return f"precision fp8-mixed: torch {torch.__version__} has no scaled float8 products; install a later one"
    return None


def configure_device(device: torch.device, precision: Precision, threads: int | None) -> torch.device:
    """Set torch's device, threads and matmul precision. Raises ValueError for a precision that the device lacks."""
    check_precision(precision, device.type)
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.set_device(device)
    check_capability(precision, device)
    if threads is not None:
        torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(RECIPES[precision].matmul)
    return device


def tf32_override() -> str | None:
    """``NVIDIA_TF32_OVERRIDE``, which overrides torch: ``0`` never uses TF32, ``1`` always. None if neither."""
    value = os.environ.get("NVIDIA_TF32_OVERRIDE")
    return value if value in ("0", "1") else None


def tf32_allowed() -> bool:
    """True if cuBLAS may use TF32 for float32 matmuls, by the environment, else by torch's setting."""
    if (override := tf32_override()) is not None:
        return override == "1"
    newer = _fp32_precision("cuda")
    return bool(torch.backends.cuda.matmul.allow_tf32) if newer is None else newer == "tf32"


def effective_matmul(device_type: str) -> str:
    """torch's effective float32 matmul precision on this kind of device: ``highest``, ``high`` or ``medium``. From
    torch 2.9 on a backend's ``fp32_precision`` rules; if the older setting differs, reading that raises or is wrong.
    Raises torch's error without a newer one."""
    meant = _MEANT.get(_fp32_precision(device_type) or "")
    try:
        older = torch.get_float32_matmul_precision()
    except Exception:
        if meant is None:
            raise
        return meant[0]
    return older if meant is None or older in meant else meant[0]


_MEANT = {"none": ("highest",), "ieee": ("highest",), "tf32": ("high", "medium"), "bf16": ("medium",)}
"""A backend's newer setting in terms of the older one."""


def _fp32_precision(device_type: str) -> str | None:
    """torch's newer setting of matrix products on this kind of device; None if torch has none."""
    backend = {"cuda": torch.backends.cuda, "cpu": getattr(torch.backends, "mkldnn", None)}.get(device_type)
    return getattr(getattr(backend, "matmul", None), "fp32_precision", None)


def autocast_for(recipe: Recipe, device_type: str) -> Context:
    """The context of forward and loss."""
    if recipe.autocast is None:
        return nullcontext
    return partial(torch.autocast, device_type, dtype=recipe.autocast)


def effective_autocast(autocast: Context, device_type: str) -> torch.dtype | None:
    """The dtype of autocast inside the context; None if torch leaves autocast off."""
    with autocast():
        return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


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
        return linear(x, self.weight, self.bias)


_IN_FLOAT8: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: _Float8Linear, Linear: _Float8ReferenceLinear}
"""Exactly these classes, not subclasses, which may compute something else."""


def use_float8(model: nn.Module, vocab_size: int) -> None:
    """Make the linear layers of a model multiply in float8, except the one that makes logits and those with a side that
    is no multiple of 16. Layers only change their class. Raises ValueError, in one line, if no layer is left."""
    found = [module for module in model.modules() if type(module) in _IN_FLOAT8]
    head = _head(model, found, vocab_size)
    wide = [layer for layer in found if layer is not head and not any(side % FLOAT8_MULTIPLE for side in _sides(layer))]
    if not wide:
        name = "the reference model" if isinstance(model, Transformer) else type(model).__name__
        why = f"{name} has no torch.nn.Linear to run in it"
        if odd := next((layer for layer in found if layer is not head), None):
            out, width = _sides(odd)
            sides = f"sides that are multiples of {FLOAT8_MULTIPLE} (one is {width} to {out})"
            why = f"no linear layer of {name} has {sides}"
        raise ValueError(f"precision fp8-mixed: {why}; choose bf16-mixed")
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
