"""Memory that attention alone keeps from forward to backward, term by term.

Letters in formulas: B sequences of T tokens, K the width of a query, a key and a value.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from cs336_tui.config.spec import CellSpec

Shape = Literal["B T K", "B T T", "T T", "B T"]

FUSED = ("sdpa", "flash", "memory-efficient", "cudnn")
"""Kinds of attention that keep the logarithm of each token's sum of exponentials; the weights are never in memory."""
_LOGSUMEXP_BYTES = 4


class Term(NamedTuple):
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


class Accounting(NamedTuple):
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

    None of a user's own function, of which nobody knows.
    """
    if spec.attention == "naive":
        return Accounting(tuple(_naive(spec)))
    if spec.attention == "math":
        return Accounting(tuple(_math(spec)))
    return Accounting(tuple(_fused(spec))) if spec.attention in FUSED else None


def _naive(spec: CellSpec) -> list[Term]:
    made, factor = _widths(spec)
    terms = [*_inputs(spec)]
    if spec.causal:
        terms.append(_term(spec, "mask", 1, "T T", made))
    if factor == made:
        terms += [_term(spec, "scaled q", 1, "B T K", made), _term(spec, "weights", 1, "B T T", made)]
    else:
        weights = made if spec.causal or not _softmax_stays(spec) else factor
        terms += [
            _term(spec, "scaled q, k, v in half precision", 3, "B T K", factor),
            _term(spec, "weights", 1, "B T T", weights),
            _term(spec, "weights in half precision", 1, "B T T", factor),
        ]
    return [*terms, _term(spec, "output", 1, "B T K", factor)]


def _fused(spec: CellSpec) -> list[Term]:
    made, factor = _widths(spec)
    terms = [*_inputs(spec)]
    if factor != made:
        terms.append(_term(spec, "q, k, v in half precision", 3, "B T K", factor))
    output = _term(spec, "output", 1, "B T K", factor)
    return [*terms, output, _term(spec, "logsumexp", 1, "B T", _LOGSUMEXP_BYTES)]


def _math(spec: CellSpec) -> list[Term]:
    """torch's math backend: it scales q and k by a root each, and computes in float32 whatever it is given."""
    _, factor = _widths(spec)
    exact = [_term(spec, "scaled q and k", 2, "B T K", 4), _term(spec, "weights", 1, "B T T", 4)]
    if factor != 4:
        exact.append(_term(spec, "v in float32", 1, "B T K", 4))
    return [*_inputs(spec), *exact, _term(spec, "output", 1, "B T K", factor)]


def _inputs(spec: CellSpec) -> tuple[Term, ...]:
    made, _ = _widths(spec)
    return _term(spec, "q, k, v", 3, "B T K", made), _term(spec, "gradient of the output", 1, "B T K", made)


def _widths(spec: CellSpec) -> tuple[int, int]:
    """Bytes of an element as it is made and as a factor of a product."""
    match spec.precision:
        case "bf16":
            return 2, 2
        case "bf16-mixed" | "fp16-mixed":
            return 4, 2
        case _:
            return 4, 4


def _softmax_stays(spec: CellSpec) -> bool:
    """True if autocast keeps a softmax in half precision; on a GPU it computes softmax in float32."""
    return spec.device == "cpu"


def _term(spec: CellSpec, what: str, number: int, shape: Shape, element_bytes: int) -> Term:
    letters = {"B": spec.batch_size, "T": spec.context_length, "K": spec.d_model}
    elements = math.prod(letters[letter] for letter in shape.split())
    return Term(what, number, shape, element_bytes, number * elements * element_bytes)
