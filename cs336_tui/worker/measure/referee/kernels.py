"""Compares a user's own attention with naive attention: causal and not, at odd lengths and one that is even, in the
dtype of the cell, forward and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

import msgspec
import torch
from torch import Tensor

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import WITHOUT_BACKWARD
from cs336_tui.events.audit import AttentionCheck, Difference
from cs336_tui.worker.measure.referee.results import differences, part_of
from cs336_tui.worker.workload.attention import core_of
from cs336_tui.worker.workload.compile_and_capture import nothing_compiled
from cs336_tui.worker.workload.import_problems import in_one_line, raise_interrupt
from cs336_tui.worker.workload.precision import RECIPES, Context
from cs336_tui.worker.workload.transformer import causal_mask

LENGTHS = (33, 128, 129)
"""Tokens: blocks of 16 to 128 end within the odd ones, one with a single token."""
_SEQUENCES, _HEADS = 2, 2
_MOST_S = 30.0
"""No further form is begun after so many seconds: a kernel may be compiled for each."""


def attention_checks(spec: CellSpec, device: torch.device, autocast: Context) -> Iterator[AttentionCheck]:
    """A check of each form for which there is time. Whatever its attention raises is the reason of a form without
    result."""
    began = perf_counter()
    for causal in (True, False):
        for length in LENGTHS:
            if perf_counter() - began > _MOST_S:
                return
            form = f"{'causal' if causal else 'not causal'}, {length} tokens"
            spec = msgspec.structs.replace(spec, context_length=length, causal=causal)
            try:
                yield AttentionCheck(form=form, differences=_differences(spec, device, autocast))
            except BaseException as error:
                raise_interrupt(error)
                yield AttentionCheck(form=form, error=in_one_line(error))


def _differences(spec: CellSpec, device: torch.device, autocast: Context) -> tuple[Difference, ...]:
    recipe = RECIPES[spec.precision]
    dtype = recipe.parameters if spec.is_alone else recipe.autocast or recipe.parameters
    shape = (_SEQUENCES, min(spec.num_heads, _HEADS), spec.context_length, spec.head_dim)
    random = torch.Generator(device).manual_seed(spec.seed)
    q, k, v, gradient = (torch.randn(shape, device=device, generator=random).to(dtype) for _ in range(4))

    def naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q * q.shape[-1] ** -0.5) @ k.mT
        return (scores + mask if spec.causal else scores).softmax(-1) @ v

    mask = causal_mask(spec.context_length, device=device, dtype=torch.float32)
    with autocast(), nothing_compiled():
        own = _run(core_of(spec, device, autocast).run, (q, k, v), gradient, spec)  # type: ignore[union-attr]
    expected = _run(naive, (q.float(), k.float(), v.float()), gradient, spec)
    names = ("output", "gradient of queries", "gradient of keys", "gradient of values")
    parts = list(map(part_of, names, own, expected))
    return (*differences("logits", parts[:1]), *differences("gradients", parts[1:]))


def _run(attend: Callable[..., Tensor], given: tuple[Tensor, ...], gradient: Tensor, spec: CellSpec) -> list[Tensor]:
    """Output and gradients, which an attention need not have in a cell without a backward."""
    inputs = [each.detach().requires_grad_() for each in given]
    with torch.enable_grad():
        out = attend(*inputs)
    if spec.pass_ in WITHOUT_BACKWARD and not out.requires_grad:
        return [out]
    return [out.detach(), *torch.autograd.grad(out, inputs, gradient.to(out.dtype))]
