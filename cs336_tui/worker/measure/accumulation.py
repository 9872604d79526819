"""The course's accumulation experiment: what the dtypes of a sum and of what is added to it do to the result."""

from __future__ import annotations

from typing import NamedTuple

import torch

from cs336_tui.events.reports import Accumulation
from cs336_tui.worker.workload.precision import dtype_name

ADDEND = 0.01
ADDITIONS = 1000


class _Variant(NamedTuple):
    accumulator: torch.dtype
    addend: torch.dtype
    converted: bool = False


_VARIANTS = (
    _Variant(torch.float32, torch.float32),
    _Variant(torch.float16, torch.float16),
    _Variant(torch.float32, torch.float16),
    _Variant(torch.float32, torch.float16, converted=True),
)


def accumulate() -> tuple[Accumulation, ...]:
    """Add 0.01 a thousand times, one after another on the CPU, in the four variants of the assignment."""
    return tuple(
        Accumulation(dtype_name(variant.accumulator), dtype_name(variant.addend), variant.converted, _sum(variant))
        for variant in _VARIANTS
    )


def _sum(variant: _Variant) -> float:
    total = torch.zeros((), dtype=variant.accumulator)
    for _ in range(ADDITIONS):
        addend = torch.tensor(ADDEND, dtype=variant.addend)
        total += addend.to(variant.accumulator) if variant.converted else addend
    return float(total)
