"""Switches on how a model is run, and names of what a user brings: spelled one way everywhere."""

from __future__ import annotations

import re
from typing import Literal, get_args

Work = Literal["language-model", "attention"]
Compile = Literal["off", "default", "reduce-overhead", "max-autotune"]
CudaGraph = Literal["off", "step"]

WORKLOADS: tuple[str, ...] = get_args(Work)
"""``attention`` is attention alone, over random queries, keys and values without a head dimension."""
COMPILES: tuple[str, ...] = get_args(Compile)
"""torch.compile's modes; ``off`` is the model as it is written."""
CUDA_GRAPHS: tuple[str, ...] = get_args(CudaGraph)
"""``step`` replays one CUDA graph of the whole step."""

Range = Literal[
    "embedding",
    "norms",
    "QKV projections",
    "rotary",
    "attention scores",
    "softmax",
    "final matmul",
    "attention core",
    "attention rest",
    "output projection",
    "feed-forward",
    "residual",
    "head",
    "loss",
    "optimizer",
    "zero_grad",
]
RANGES: tuple[str, ...] = get_args(Range)
"""Parts of a model and of a step, in the order in which a step comes to them. The backward of a part is counted to it.
``attention core`` is scores, softmax and final matmul where they cannot be told apart, as in a fused kernel;
``attention rest`` what moves heads about, ``residual`` the additions between the parts."""

REFERENCE = "reference"
"""The model that comes with the product, as the name of a model."""
ATTENTIONS = ("naive", "sdpa", "flash", "memory-efficient", "cudnn", "math")
"""How the reference model computes attention: ``naive`` materialises its scores; ``sdpa`` is torch's
scaled_dot_product_attention with the backend that torch chooses, the others are its backends by name."""
OPTIMIZERS = ("adamw", "adamw-fused", "adamw-foreach", "adamw-for-loop")
"""torch's AdamW: ``adamw`` with the implementation that torch chooses on the device, the others by name."""
CROSS_ENTROPY = "cross-entropy"

_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_IMPORTED = re.compile(f"{_DOTTED}:{_DOTTED}")


def is_imported(name: str) -> bool:
    """Whether this names something that a user brings, as ``package.module:Class``."""
    return ":" in name


def is_well_formed(name: str) -> bool:
    """Whether it reads ``package.module:attribute``, attributes dotted where they are nested."""
    return _IMPORTED.fullmatch(name) is not None


def short(name: str) -> str:
    """``Class`` of ``package.module:Class``; any other name as it is."""
    return name.partition(":")[2] or name
