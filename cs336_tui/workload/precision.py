"""Precisions: what each asks of torch, and reading back what is really in force."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple

import torch

from cs336_tui.spec import Precision


class Recipe(NamedTuple):
    """What a precision asks of torch. `matmul` is the precision of float32 matrix products (see `set_matmul`)."""

    matmul: str = "highest"
    parameters: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    scale_gradients: bool = False


RECIPES: dict[Precision, Recipe] = {
    "fp32": Recipe(),
    "tf32": Recipe(matmul="high"),
    "bf16-mixed": Recipe(autocast=torch.bfloat16),
    "fp16-mixed": Recipe(autocast=torch.float16, scale_gradients=True),
    "bf16": Recipe(parameters=torch.bfloat16),
}


def check_precision(precision: Precision, device_type: str) -> None:
    """Raise ValueError for TF32 off CUDA: torch accepts the setting everywhere, but only CUDA has the format."""
    if precision == "tf32" and device_type != "cuda":
        raise ValueError(f"precision tf32: {device_type} cannot do it, only cuda can")


def set_matmul(precision: str) -> None:
    """Set torch's float32 matmul precision: ``highest`` is true fp32, ``high`` allows TF32 on CUDA."""
    torch.set_float32_matmul_precision(precision)


def tf32_override() -> str | None:
    """What ``NVIDIA_TF32_OVERRIDE`` makes NVIDIA's libraries do whatever torch asks: ``0`` never use TF32, ``1``
    always. None when it is not set to either."""
    value = os.environ.get("NVIDIA_TF32_OVERRIDE")
    return value if value in ("0", "1") else None


def tf32_allowed() -> bool:
    """Whether cuBLAS may use TF32 for float32 matmuls: the environment's word, else what torch reads back."""
    if (override := tf32_override()) is not None:
        return override == "1"
    matmul = torch.backends.cuda.matmul
    # From torch 2.9 on the setting has a new name, and mixing the two names in one process is an error.
    return bool(matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32)


def autocast_for(recipe: Recipe, device_type: str) -> Callable[[], AbstractContextManager[object]]:
    """The context in which forward and loss run."""
    if recipe.autocast is None:
        return nullcontext
    return partial(torch.autocast, device_type, dtype=recipe.autocast)


def autocast_in_force(autocast: Callable[[], AbstractContextManager[object]], device_type: str) -> torch.dtype | None:
    """The dtype that operations are cast to inside the context; None when torch has left autocast off."""
    with autocast():
        return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")
