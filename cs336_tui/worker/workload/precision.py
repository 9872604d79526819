"""Precisions: the torch settings of each, and reading back the effective ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple

import torch

from cs336_tui.config.axes import FLOAT8
from cs336_tui.config.spec import Precision

Context = Callable[[], AbstractContextManager[object]]  # Makes a context


class Recipe(NamedTuple):
    """The torch settings of a precision. `matmul` is that of float32 matrix products: ``highest`` is true fp32,
    ``high`` allows TF32 on CUDA."""

    matmul: str = "highest"
    parameters: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    scale_gradients: bool = False
    float8: bool = False


RECIPES: dict[Precision, Recipe] = {
    "fp32": Recipe(),
    "tf32": Recipe(matmul="high"),
    "bf16-mixed": Recipe(autocast=torch.bfloat16),
    "fp16-mixed": Recipe(autocast=torch.float16, scale_gradients=True),
    "bf16": Recipe(parameters=torch.bfloat16),
    # bf16-mixed with other linear layers (`float8.use_float8`)
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
