"""Norms of the reference model, and the workload of a norm alone. Letters in shapes: D the width of a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_tui.config.spec import CellSpec

NORM_EPS = 1e-5

NormFunction = Callable[[Tensor, Tensor], Tensor]  # Rows (..., D) and weights (D,) to (..., D)


class Factory(TypedDict):
    device: torch.device
    dtype: torch.dtype


class MakeNorm(Protocol):
    """Makes a norm of rows of this width."""

    def __call__(self, width: int, **factory: Unpack[Factory]) -> nn.Module: ...


class RMSNorm(nn.Module):
    """Root-mean-square norm (Zhang and Sennrich 2019), computed in fp32: (..., D) -> (..., D)."""

    def __init__(self, width: int, **factory: Unpack[Factory]) -> None:
        super().__init__()
        self.weight = _filled(1, width, factory)

    def forward(self, x: Tensor) -> Tensor:
        exact = x.float()
        scale = torch.rsqrt(exact.square().mean(dim=-1, keepdim=True) + NORM_EPS)  # (..., 1)
        return (exact * scale * self.weight).type_as(x)


class TorchRMSNorm(RMSNorm):
    """The same by `torch.nn.functional.rms_norm`."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, NORM_EPS)


class LayerNorm(nn.Module):
    """`torch.nn.functional.layer_norm` with weights and a bias (Ba, Kiros, Hinton 2016): (..., D) -> (..., D)."""

    def __init__(self, width: int, **factory: Unpack[Factory]) -> None:
        super().__init__()
        self.weight, self.bias = _filled(1, width, factory), _filled(0, width, factory)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, NORM_EPS)


class OwnNorm(RMSNorm):
    """A user's function of rows and weights: (..., D), (D,) -> (..., D)."""

    def __init__(self, width: int, *, function: NormFunction, **factory: Unpack[Factory]) -> None:
        super().__init__(width, **factory)
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        return self._function(x, self.weight)


NORM_CLASSES: Mapping[str, MakeNorm] = {"rmsnorm": RMSNorm, "layernorm": LayerNorm, "torch-rmsnorm": TorchRMSNorm}
"""Those that come along, by the names of `config.values.NORMS`."""


def _filled(value: int, width: int, factory: Factory) -> nn.Parameter:
    empty = torch.empty(width, **factory)
    return nn.Parameter(empty if empty.is_meta else empty.fill_(value))


class OperationAlone(nn.Module):
    """Holds the inputs of an operation as its parameters, which are created uninitialised; ignores its own input."""

    def initialise(self, seed: int) -> None:
        """Draw every parameter from a standard normal."""
        parameters = list(self.parameters())
        generator = torch.Generator(parameters[0].device).manual_seed(seed)
        with torch.no_grad():
            for parameter in parameters:
                parameter.normal_(generator=generator)


class NormOnly(OperationAlone):
    """Holds rows, (B, T, D), and the norm's weights on `device` in `dtype`; returns the rows normed."""

    def __init__(self, spec: CellSpec, norm: MakeNorm, **factory: Unpack[Factory]) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.empty(spec.batch_size, spec.context_length, spec.d_model, **factory))
        self.norm = norm(spec.d_model, **factory)

    def forward(self, _: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.rows)
        return normed


class _Begin(torch.autograd.Function):
    """One number of the output, whose backward is a gradient of the whole output. Neither direction computes anything:
    ``_Begin.apply(output, gradient).backward()`` does what ``output.backward(gradient)`` does."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return output.as_strided((), ())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient, None


def norm_loss(output: Tensor, gradient: Tensor) -> Tensor:
    """A number whose backward begins with this gradient of the output, at no cost."""
    number: Tensor = _Begin.apply(output, gradient)
    return number
