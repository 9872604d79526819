"""Modes that make tensors of the meta device behave as a real device's: kernels, attention, autocast, recomputation."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import torch.utils.checkpoint as checkpointing
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.backends import cuda
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry, register_flop_formula, sdpa_backward_flop_count, sdpa_flop_count

from cs336_tui.events.gpus import HOPPER
from cs336_tui.worker.estimate.scratch import norm_scratch
from cs336_tui.worker.estimate.tracker import Args, Kwargs
from cs336_tui.worker.workload.import_problems import OwnWords


class _HasData(Exception):
    """An operand has data, on which the result may depend."""


class _TensorForm(NamedTuple):
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


class MetaKernels(TorchDispatchMode):
    """Caches the forms of results for equal operands, as in equal layers: a third less time. With `answers`, for an
    optimizer, it answers the one question about a tensor's value: scaled gradients have not overflowed."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = False
        self._results: dict[Hashable, _TensorForm] = {}

    def __torch_dispatch__(self, func: Any, types: object, args: Args = (), kwargs: Kwargs = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            if not self.answers:
                raise OwnWords("it depends on the value of a tensor, known only when it runs")
            return 0.0
        if not _makes_one_tensor(func):
            return func(*args, **kwargs)
        try:
            key = (func, torch.is_inference_mode_enabled(), *map(_form, args), *map(_form, kwargs.items()))
        except _HasData:
            return func(*args, **kwargs)
        if known := self._results.get(key):
            return torch.empty_strided(known.shape, known.stride, dtype=known.dtype, device="meta")
        out = func(*args, **kwargs)
        operands = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        # ``_unsafe_view``, for one, shares its operand's memory, contrary to its schema.
        if out.is_meta and out.untyped_storage()._cdata not in operands:
            self._results[key] = _TensorForm(out.shape, out.stride(), out.dtype)
        return out


@cache
def _makes_one_tensor(func: Any) -> bool:
    """True if an operation, by its schema, only makes one tensor that shares no memory with another."""
    returns = func._schema.returns
    makes_one = len(returns) == 1 and str(returns[0].type) == "Tensor" and returns[0].alias_info is None
    return makes_one and not func._schema.is_mutable


def _form(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        if not value.is_meta:
            raise _HasData
        return _TensorForm(value.shape, value.stride(), value.dtype)
    if isinstance(value, list | tuple):
        return tuple(map(_form, value))
    return (type(value), value)  # 1, 1.0 and True are equal


RULES = "aten/src/ATen/autocast_mode.h of torch 2.13"
"""Source of these lists: AT_FORALL_LOWER_PRECISION_FP and AT_FORALL_FP32 there. Operations on none keep their dtype."""
LOWERED = frozenset(  # Run in fp16 or bf16
    "linear matmul __matmul__ __rmatmul__ mm bmm mv addmm addmv addbmm baddbmm einsum "
    "scaled_dot_product_attention".split()
)
RAISED = frozenset("cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss kl_div".split())  # Run in fp32
RAISED_OFF_CPU = frozenset(  # Run in fp32 on a GPU, unless a dtype is given; a CPU takes them as they come
    "pow square __pow__ __rpow__ rsqrt reciprocal exp expm1 log log2 log10 log1p sinh cosh tan acos asin erfinv "
    "softplus layer_norm group_norm norm logsumexp softmax log_softmax sum prod cumsum cumprod".split()
)
if torch._C._dispatch_has_kernel_for_dispatch_key("aten::rms_norm", "AutocastCUDA"):
    RAISED_OFF_CPU |= {"rms_norm"}
_LOW = (torch.float16, torch.bfloat16)


class Autocast(TorchFunctionMode):
    """A mode that casts as one context of ``torch.autocast(device_type, dtype)``.

    After PyTorch's autocast op reference, for operations of language models; others keep their dtypes. fp32 parameters
    are cast once a context and the copies live until it ends; under inference mode each use casts again if torch's own
    autocast does. CUDA's softmax and log-softmax read fp16 directly (bf16 by a copy) and give fp32: ``softmax`` and
    ``log_softmax`` in aten/src/ATen/native/SoftMax.cpp. Its cross-entropy takes the log-softmax in the logits' dtype
    and copies that to fp32: ``cross_entropy_loss`` in LossNLL.cpp, which is on the CPU's list alone, names the dtype.
    """

    def __init__(self, device_type: str, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._raised = RAISED if device_type == "cpu" else RAISED | RAISED_OFF_CPU
        self._is_cuda = device_type == "cuda"
        self._copies: dict[int, Tensor] = {}

    def __exit__(self, *error: Any) -> None:
        self._copies.clear()
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: object, args: Args = (), kwargs: Kwargs = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in LOWERED:
            # Last first, as torch's compilers evaluate them.
            lowered = [tree_map(self._lowered, each) for each in reversed(args)]
            return func(*reversed(lowered), **tree_map(self._lowered, kwargs))
        if name not in self._raised or kwargs.get("dtype") is not None:
            return func(*args, **kwargs)
        if self._is_cuda and name == "cross_entropy" and not kwargs.get("label_smoothing") and args[0].dim() > 1:
            log_softmax = torch.ops.aten._log_softmax(args[0], 1, False)
            options = {key: kwargs[key] for key in ("weight", "ignore_index", "reduction") if key in kwargs}
            return F.nll_loss(_raised(log_softmax), *args[1:], **tree_map(_raised, options))
        if self._is_cuda and args[0].dtype is torch.float16:
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
    """True if torch's own autocast keeps its copies of parameters under inference mode, as it did until 2025. A kept
    copy has the parameter's old value. Runs outside the modes that track a step."""
    with _disable_current_modes():
        weight = torch.nn.Parameter(torch.zeros(1, 1, device="cpu"))  # a prediction's default device is meta
        one = torch.ones(1, 1, device="cpu")
    with _disable_current_modes(), torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        F.linear(one, weight)
        weight.data.fill_(1)
        return not F.linear(one, weight)


def _raised(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _LOW else value


_GENERATOR = next(  # Generator of a forward that is not reentrant; the first name is that of torch 2.15 on
    name
    for name in ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
    if hasattr(checkpointing, name)
)


@contextmanager
def modes_kept_for_recomputation() -> Iterator[None]:
    """Make `torch.utils.checkpoint` recompute in the modes of its forward. torch only restores its own autocast."""
    generator, function = getattr(checkpointing, _GENERATOR), checkpointing.CheckpointFunction

    def with_modes(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return generator(_in_modes_of_now(run), *args, **kwargs)

    class WithModes:
        @staticmethod
        def apply(run: Callable[..., Any], *args: Any) -> Any:
            return function.apply(_in_modes_of_now(run), *args)

    setattr(checkpointing, _GENERATOR, with_modes)
    checkpointing.CheckpointFunction = WithModes
    try:
        yield
    finally:
        setattr(checkpointing, _GENERATOR, generator)
        checkpointing.CheckpointFunction = function


def _in_modes_of_now(run: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which enters the present modes when it runs in a backward."""
    modes = tuple(_get_current_function_mode_stack())

    def again(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            # In a nested recomputation the outer one has entered them.
            present = _get_current_function_mode_stack()
            for mode in modes if torch._C._current_autograd_node() is not None else ():
                if mode not in present:
                    stack.enter_context(mode)
            return run(*args, **kwargs)

    return again


def _is_shape_only(tensor: Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, FakeTensor)


class MetaDropout(TorchFunctionMode):
    """A mode that drops out as CUDA does, by one kernel that keeps a mask of one byte an element; other devices keep a
    mask in the tensor's dtype (``dropout`` in aten/src/ATen/native/Dropout.cpp)."""

    def __torch_function__(self, func: Any, types: object, args: Args = (), kwargs: Kwargs = None) -> Any:
        if func is not F.dropout:
            return func(*args, **kwargs or {})
        return _drop_out(*args, **kwargs or {})


def _drop_out(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if _is_shape_only(x) and training and 0 < p < 1 and not inplace:
        return torch.native_dropout(x, p, True)[0]
    return F.dropout(x, p, training, inplace)


_AMPERE = (8, 0)
_aten = torch.ops.aten
_ATTENTION = F.scaled_dot_product_attention  # While parts are named, `F` has a wrapper, which torch passes on


_HAS_FUSED_NORM = hasattr(_aten, "_fused_rms_norm") and len(_aten._fused_rms_norm.default._schema.returns) == 2
"""True if this torch has a kernel of RMSNorm on CUDA; an older one makes it of elementwise operations."""

_OF_RMS_NORM = ("input", "normalized_shape", "weight")


class _FusedNorm(torch.autograd.Function):
    """Memory of CUDA's RMSNorm (``_fused_rms_norm``): for backward it keeps rows, weights and one number a row."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, dims: int, weight: Tensor) -> Tensor:
        out = torch.empty_like(rows)
        ctx.save_for_backward(rows, weight, rows.new_empty(rows.shape[:-dims], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        rows, weight, _scales = ctx.saved_tensors
        wanted = [torch.empty_like(x) if ctx.needs_input_grad[at] else None for at, x in ((0, rows), (2, weight))]
        scratch = norm_scratch(rows.numel() // weight.numel(), weight, gradients=1)
        _parts = [torch.empty(size, dtype=torch.uint8, device=rows.device) for size in scratch]
        return wanted[0], None, wanted[1]


class MetaAttention(TorchFunctionMode):
    """A mode that runs the kernel that torch would run on this type of device. Of attention it saves for backward
    queries, keys, values, output and the log of each row's sum, not the scores; of CUDA's RMSNorm a number a row.

    The CPU's choice comes from torch. CUDA's follows aten/src/ATen/native/transformers/cuda/sdp_utils.cpp by dtype,
    width, mask and compute `capability`, without disabled kernels (`torch.nn.attention.sdpa_kernel`). cuDNN's is taken
    only if alone: it saves the same tensors as flash. Raises RuntimeError, as torch does, if no kernel is left.
    """

    def __init__(self, device_type: str, capability: tuple[int, int] = HOPPER) -> None:
        super().__init__()
        self._device_type, self._capability = device_type, capability

    def __torch_function__(self, func: Any, types: object, args: Args = (), kwargs: Kwargs = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__wrapped__", func) is _ATTENTION:
            out = self._attend(*args, **kwargs)
            if out is not None:
                return out
        if func in (F.rms_norm, torch.rms_norm) and self._device_type == "cuda" and _HAS_FUSED_NORM:
            rows, shape, weight = (*args, *(kwargs.get(name) for name in _OF_RMS_NORM[len(args) :]))[:3]
            if _is_shape_only(rows) and weight is not None and weight.dtype == rows.dtype:
                normed: Tensor = _FusedNorm.apply(rows, len(shape), weight)
                return normed
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
        """The output; None for math on a CPU, or an unknown kernel."""
        if not _is_shape_only(query) or self._device_type not in ("cpu", "cuda"):
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
            case SDPBackend.MATH:
                with _MaskInPlace():
                    return _ATTENTION(
                        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
                    )
        return None

    def _cuda_kernel(self, query: Tensor, value: Tensor, *, masked: bool, grouped: bool) -> SDPBackend:
        """CUDA's kernel: torch's order, with cuDNN's last."""
        half = query.dtype in _LOW
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


class _MaskInPlace(TorchDispatchMode):
    """Has the scores of attention by math take its mask in place. Torch adds it to tensors of a mode out of place:
    ``_scaled_dot_product_attention_math`` in aten/src/ATen/native/transformers/attention.cpp."""

    def __torch_dispatch__(self, func: Any, types: object, args: Args = (), kwargs: Kwargs = None) -> Any:
        if func is _aten.add.Tensor:
            return _aten.alias(args[0])
        return func(*args, **(kwargs or {}))


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
