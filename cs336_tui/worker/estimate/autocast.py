"""torch.autocast of another device, for tensors of the meta device, which torch itself never casts."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

LOWERED = frozenset(
    "linear matmul __matmul__ __rmatmul__ mm bmm mv addmm addmv addbmm baddbmm einsum "
    "scaled_dot_product_attention".split()
)
"""Run in fp16 or bf16."""
RAISED = frozenset("cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss kl_div".split())
"""Run in fp32."""
RAISED_OFF_CPU = frozenset(
    "pow square __pow__ __rpow__ rsqrt reciprocal exp expm1 log log2 log10 log1p sinh cosh tan acos asin erfinv "
    "softplus layer_norm group_norm norm logsumexp softmax log_softmax sum prod cumsum cumprod".split()
)
"""Run in fp32 on a GPU, unless a dtype is given; a CPU takes them as they come."""
_LOW = (torch.float16, torch.bfloat16)


class Autocast(TorchFunctionMode):
    """Casts as ``torch.autocast(device_type, dtype)`` does, one context like one of torch's.

    After PyTorch's autocast op reference; of its operations, those that a language model may call are known here.
    Everything else runs in the dtypes that it is given. fp32 parameters are cast once a context, and the copies live
    until it ends; under inference mode each use casts anew where torch's own autocast does. CUDA's softmax and
    log-softmax read fp16 as it is (but a copy of bf16) to give fp32: ``softmax`` and ``log_softmax`` in
    aten/src/ATen/native/SoftMax.cpp.
    """

    def __init__(self, device_type: str, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._raised = RAISED if device_type == "cpu" else RAISED | RAISED_OFF_CPU
        self._reads_fp16 = device_type == "cuda"
        self._copies: dict[int, Tensor] = {}

    def __exit__(self, *error: Any) -> None:
        self._copies.clear()
        super().__exit__(*error)

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in LOWERED:
            return func(*tree_map(self._lowered, args), **tree_map(self._lowered, kwargs))
        if name not in self._raised or kwargs.get("dtype") is not None:
            return func(*args, **kwargs)
        if self._reads_fp16 and args[0].dtype is torch.float16:
            if name == "cross_entropy":
                options = {key: kwargs[key] for key in ("weight", "ignore_index", "reduction") if key in kwargs}
                return F.nll_loss(torch.ops.aten._log_softmax(args[0], 1, True), *args[1:], **options)
            if name == "log_softmax":
                return torch.ops.aten._log_softmax(args[0], kwargs.get("dim", args[-1]), True)
            if name == "softmax":
                return torch.ops.aten._softmax(args[0], kwargs.get("dim", args[-1]), True)
        return func(*tree_map(_raised, args), **kwargs)

    def _lowered(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype not in (torch.float32, *_LOW) or value.dtype is self._dtype:
            return value
        keeps = value.is_leaf and value.requires_grad
        if not keeps or (torch.is_inference_mode_enabled() and not _keeps_copies_in_inference()):
            return value.to(self._dtype)
        if id(value) not in self._copies:
            self._copies[id(value)] = value.to(self._dtype)
        return self._copies[id(value)]


@cache
def _keeps_copies_in_inference() -> bool:
    """Whether torch's own autocast keeps its copies of parameters under inference mode, as it did until 2025.

    What was kept still has the value that the parameter had. The question belongs to no step that is followed.
    """
    with _disable_current_modes():
        weight = torch.nn.Parameter(torch.zeros(1, 1, device="cpu"))  # a prediction's default device is meta
        one = torch.ones(1, 1, device="cpu")
    with _disable_current_modes(), torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        F.linear(one, weight)
        weight.data.fill_(1)
        return not F.linear(one, weight)


def _raised(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _LOW else value
