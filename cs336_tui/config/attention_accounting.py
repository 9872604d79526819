"""Memory that attention alone keeps from forward to backward, term by term.

Letters in formulas: B sequences of T tokens, K the width of a query, a key and a value; with heads H their number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import msgspec

from cs336_tui.config.spec import CellSpec

Shape = Literal["B T K", "B T T", "T T", "B T", "B H T K", "B H T T", "B H T"]
_WITH_HEADS: dict[Shape, Shape] = {"B T K": "B H T K", "B T T": "B H T T", "B T": "B H T"}

FUSED = ("sdpa", "flash", "memory-efficient", "cudnn")
"""Kinds of attention that keep the logarithm of each token's sum of exponentials; the weights are never in memory."""
_LOGSUMEXP_BYTES = 4
_Tensors = tuple[str, int, Shape, int]
"""Tensors: their name, number, shape and bytes an element."""


class Term(msgspec.Struct, frozen=True):
    """Some tensors of one shape and width: `number` of them, `element_bytes` an element."""

    what: str
    number: int
    shape: Shape
    element_bytes: int
    bytes: int

    @property
    def formula(self) -> str:
        """Such as ``3 B T K x 4 bytes``."""
        number = "" if self.number == 1 else f"{self.number} "
        return f"{number}{self.shape} x {self.element_bytes} bytes"


class Accounting(msgspec.Struct, frozen=True):
    """`terms` are in the order of their allocation."""

    terms: tuple[Term, ...]

    @property
    def bytes(self) -> int:
        """Sum over all terms."""
        return sum(term.bytes for term in self.terms)

    @property
    def in_words(self) -> str:
        """Such as ``3 B T K x 4 bytes (q, k, v) + B T T x 4 bytes (weights)``."""
        return " + ".join(f"{term.formula} ({term.what})" for term in self.terms)


def accounting_of(spec: CellSpec) -> Accounting | None:
    """Memory that a cell of workload ``attention`` holds before backward, by its operations.

    That is its tensors, q, k, v and the output's gradient; a naive causal mask; the output; and what autograd keeps for
    the backward: of each product its factors, of the softmax its result. A fused kernel keeps the logarithm of the sum
    of exponentials in float32 (Dao et al. 2022, section 3.1) and computes the weights again. Under autocast the factors
    are copies in half precision. Scalars, and what an allocator adds to a tensor, are left out; a compiler may keep
    less.

    None of a norm alone, and of a user's own function, of which nobody knows.
    """
    kept = {"naive": _naive, "math": _math, **dict.fromkeys(FUSED, _fused)}.get(spec.attention)
    if kept is None or spec.workload != "attention":
        return None
    made, factor = _widths(spec)
    tensors: list[_Tensors] = [("q, k, v", 3, "B T K", made), ("gradient of the output", 1, "B T K", made)]
    letters = {"B": spec.batch_size, "H": spec.num_heads, "T": spec.context_length, "K": spec.head_dim}
    named = _WITH_HEADS if spec.num_heads > 1 else {}
    terms: list[Term] = []
    for what, number, plain, width in (*tensors, *kept(spec, made, factor)):
        shape = named.get(plain, plain)
        size = number * width * math.prod(map(letters.__getitem__, shape.split()))
        terms.append(Term(what, number, shape, width, size))
    return Accounting(tuple(terms))


def _naive(spec: CellSpec, made: int, factor: int) -> Iterator[_Tensors]:
    if spec.causal:
        yield "mask", 1, "T T", made
    if factor == made:
        yield "scaled q", 1, "B T K", made
        yield "weights", 1, "B T T", made
    else:
        softmax_stays = spec.device == "cpu"  # in half precision; on a GPU autocast computes it in float32
        yield "scaled q, k, v in half precision", 3, "B T K", factor
        yield "weights", 1, "B T T", factor if softmax_stays and not spec.causal else made
        yield "weights in half precision", 1, "B T T", factor
    yield "output", 1, "B T K", factor


def _fused(_: CellSpec, made: int, factor: int) -> Iterator[_Tensors]:
    if factor != made:
        yield "q, k, v in half precision", 3, "B T K", factor
    yield "output", 1, "B T K", factor
    yield "logsumexp", 1, "B T", _LOGSUMEXP_BYTES


def _math(_: CellSpec, _made: int, factor: int) -> Iterator[_Tensors]:
    """torch's math backend: it scales q and k by a root each, and computes in float32 whatever it is given."""
    yield "scaled q and k", 2, "B T K", 4
    yield "weights", 1, "B T T", 4
    if factor != 4:
        yield "v in float32", 1, "B T K", 4
    yield "output", 1, "B T K", factor


def _widths(spec: CellSpec) -> tuple[int, int]:
    """Bytes of an element as it is made and as a factor of a product."""
    return {"bf16": (2, 2), "bf16-mixed": (4, 2), "fp16-mixed": (4, 2)}.get(spec.precision, (4, 4))
