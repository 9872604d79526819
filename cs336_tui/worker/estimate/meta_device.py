"""Modes that make tensors of the meta device behave as a real device's: kernels, autocast, recomputation."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import torch.utils.checkpoint as checkpointing
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from cs336_tui.worker.workload.imported.problems import OwnWords


class _HasData(Exception):
    """An operand has data, on which the result may depend."""


class _TensorForm(NamedTuple):
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


class MetaKernels(TorchDispatchMode):
    """Caches the forms of results for equal operands, as in equal layers, which saves a third of the time.

    With `answers`, for an optimizer, it answers the one question about a tensor's value: scaled gradients have not
    overflowed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answers = False
        self._results: dict[Hashable, _TensorForm] = {}

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            if not self.answers:
                raise OwnWords("what it does depends on the value of a tensor, which only running it tells")
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
        # ``_unsafe_view``, for one, shares its operand's memory, contrary to its schema.
        if out.is_meta and not any(_share_memory(out, leaf) for leaf in tree_leaves((args, kwargs))):
            self._results[key] = _TensorForm(out.shape, out.stride(), out.dtype)
        return out


def _share_memory(tensor: Tensor, other: Any) -> bool:
    return isinstance(other, Tensor) and other.untyped_storage()._cdata == tensor.untyped_storage()._cdata


@cache
def _makes_one_tensor(func: Any) -> bool:
    """True if an operation, by its schema, only makes one tensor that shares no memory with another."""
    schema = func._schema
    (returned, *others) = schema.returns or (None,)
    return (
        returned is not None
        and not others
        and str(returned.type) == "Tensor"
        and returned.alias_info is None
        and not schema.is_mutable
    )


def _form(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        if not value.is_meta:
            raise _HasData
        return _TensorForm(value.shape, value.stride(), value.dtype)
    if isinstance(value, list | tuple):
        return tuple(map(_form, value))
    return (type(value), value)  # 1, 1.0 and True are equal


LOWERED = frozenset(  # Run in fp16 or bf16
    "linear matmul __matmul__ __rmatmul__ mm bmm mv addmm addmv addbmm baddbmm einsum "
    "scaled_dot_product_attention".split()
)
RAISED = frozenset("cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss kl_div".split())  # Run in fp32
RAISED_OFF_CPU = frozenset(  # Run in fp32 on a GPU, unless a dtype is given; a CPU takes them as they come
    "pow square __pow__ __rpow__ rsqrt reciprocal exp expm1 log log2 log10 log1p sinh cosh tan acos asin erfinv "
    "softplus layer_norm group_norm norm logsumexp softmax log_softmax sum prod cumsum cumprod".split()
)
_LOW = (torch.float16, torch.bfloat16)


class Autocast(TorchFunctionMode):
    """A mode that casts as one context of ``torch.autocast(device_type, dtype)``.

    After PyTorch's autocast op reference, for operations of language models; others keep their dtypes. fp32 parameters
    are cast once a context and the copies live until it ends; under inference mode each use casts again if torch's own
    autocast does. CUDA's softmax and log-softmax read fp16 directly (bf16 by a copy) and give fp32: ``softmax`` and
    ``log_softmax`` in aten/src/ATen/native/SoftMax.cpp.
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
    """Make `torch.utils.checkpoint`, reentrant or not, recompute in the modes of its forward. torch only restores
    its own autocast, and calls backward outside function modes."""
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
            for mode in modes if torch._C._current_autograd_node() is not None else ():
                stack.enter_context(mode)
            return run(*args, **kwargs)

    return again
