"""Runs a device's scaled_dot_product_attention on tensors of the meta device, for which torch only has math."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends import cuda
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import flop_registry, register_flop_formula, sdpa_backward_flop_count, sdpa_flop_count

from cs336_tui.events.gpus import HOPPER

_AMPERE = (8, 0)
_HALVES = (torch.float16, torch.bfloat16)
_aten = torch.ops.aten
_ATTENTION = F.scaled_dot_product_attention
"""torch's own function: while parts are named, `F` has a wrapper of it, which torch passes on."""


class MetaAttention(TorchFunctionMode):
    """A mode that runs the kernel that torch would run on this type of device, which saves for backward queries, keys,
    values, output and the log of each row's sum, not the scores.

    The CPU's choice comes from torch. CUDA's follows aten/src/ATen/native/transformers/cuda/sdp_utils.cpp as far as it
    depends on dtype, width, mask and compute `capability`, without disabled kernels
    (`torch.nn.attention.sdpa_kernel`). cuDNN's is taken only if alone: it saves the same tensors as flash. Raises
    RuntimeError, as torch does, if no kernel is left.
    """

    def __init__(self, device_type: str, capability: tuple[int, int] = HOPPER) -> None:
        super().__init__()
        self._device_type, self._capability = device_type, capability

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__wrapped__", func) is _ATTENTION:
            out = self._attend(*args, **kwargs)
            if out is not None:
                return out
        return func(*args, **kwargs)

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor | None:
        """The output; None for math or an unknown kernel."""
        if not query.is_meta or self._device_type not in ("cpu", "cuda"):
            return None
        if self._device_type == "cpu":
            options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
            with _disable_current_modes():
                standing_in = [None if x is None else _with_data(x) for x in (query, key, value, attn_mask)]
                choice = torch._fused_sdp_choice(*standing_in, dropout_p, is_causal, **options)
            if SDPBackend(choice) != SDPBackend.FLASH_ATTENTION:
                return None
            mask = _as_bias(attn_mask, query)
            out = _aten._scaled_dot_product_flash_attention_for_cpu(
                query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale
            )
            return out[0]
        width = query.shape[-1]
        scale = width**-0.5 if scale is None else scale
        keeps = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
        match self._cuda_kernel(query, value, masked=attn_mask is not None, grouped=enable_gqa):
            case SDPBackend.FLASH_ATTENTION:
                padded = [F.pad(x, (0, -width % 8)) if width % 8 else x for x in (query, key, value)]
                out = _aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=scale)
                return out[0][..., :width] if width % 8 else out[0]
            case SDPBackend.EFFICIENT_ATTENTION:
                mask = _as_bias(attn_mask, query)
                if mask is not None:
                    mask = mask.expand(*query.shape[:3], key.shape[-2])
                arguments = (query, key, value, mask, keeps, dropout_p, is_causal)
                return _aten._scaled_dot_product_efficient_attention(*arguments, scale=scale)[0]
            case SDPBackend.CUDNN_ATTENTION:
                arguments = (query, key, value, None, keeps, dropout_p, is_causal)
                return _aten._scaled_dot_product_cudnn_attention(*arguments, False, scale=scale)[0]
        return None

    def _cuda_kernel(self, query: Tensor, value: Tensor, *, masked: bool, grouped: bool) -> SDPBackend:
        """CUDA's kernel: torch's order, with cuDNN's last."""
        half = query.dtype in _HALVES
        width = query.shape[-1]
        fused = query.dim() == 4
        unmasked_half = fused and half and not masked and width == value.shape[-1] and self._capability >= _AMPERE
        if cuda.flash_sdp_enabled() and unmasked_half and width <= 256:
            return SDPBackend.FLASH_ATTENTION
        known = half or query.dtype is torch.float32
        aligned = width % (8 if half else 4) == 0 and value.shape[-1] % (8 if half else 4) == 0
        if cuda.mem_efficient_sdp_enabled() and fused and known and aligned and not grouped:
            return SDPBackend.EFFICIENT_ATTENTION
        if cuda.math_sdp_enabled():
            return SDPBackend.MATH
        if cuda.cudnn_sdp_enabled() and unmasked_half:
            return SDPBackend.CUDNN_ATTENTION
        raise RuntimeError("No available kernel. Aborting execution.")


def _with_data(tensor: Tensor) -> Tensor:
    """A CPU tensor of one row with the same shape, for which torch chooses the same kernel."""
    row = torch.empty(tensor.shape[-1:], dtype=tensor.dtype, device="cpu", requires_grad=tensor.requires_grad)
    return row.expand(tensor.shape)


def _as_bias(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """The mask as numbers that are added to the scores."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype)


def _count_flops(operation: Any, count: Callable[..., int], tensors: int) -> None:
    """Count an operation's FLOPs by the shapes of its first tensors."""
    if operation not in flop_registry:
        register_flop_formula(operation)(lambda *shapes, **_: int(count(*shapes[:tensors])))


# The CPU's kernel, as torch counts CUDA's: masked scores too, and again in backward.
_count_flops(_aten._scaled_dot_product_flash_attention_for_cpu, sdpa_flop_count, 3)
_count_flops(_aten._scaled_dot_product_flash_attention_for_cpu_backward, sdpa_backward_flop_count, 4)
