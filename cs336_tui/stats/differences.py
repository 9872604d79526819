"""Relative differences of arrays in parts: of the whole and of its worst part, from norms. Pure Python: the norms come
from torch, or from sketches in a log."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

LEAST_RMS = 0.1
"""Share of all parts' root mean square. The error of a part with smaller numbers is relative to that: the gradient of
one that is 0 but for rounding, as that of a key's bias, is all error."""


class Part(NamedTuple):
    """A part, such as some positions' logits or a parameter's gradient: the norm of its difference, that of what it is
    compared with, and the number of its elements."""

    name: str
    apart: float
    norm: float
    elements: int


class Errors(NamedTuple):
    """The norm of a difference over the norm of what is compared with: of the `whole` and of its `worst` part."""

    whole: float
    worst: str
    worst_error: float


def relative_errors(parts: Iterable[Part]) -> Errors | None:
    """The errors of the whole and of the worst part; None of no parts."""
    found = list(parts)
    if not found:
        return None
    norm = math.hypot(*(part.norm for part in found))
    rms = norm / math.sqrt(max(sum(part.elements for part in found), 1))
    errors = [relative_error(part.apart, max(part.norm, LEAST_RMS * rms * math.sqrt(part.elements))) for part in found]
    worst = max(range(len(found)), key=errors.__getitem__)
    return Errors(relative_error(math.hypot(*(part.apart for part in found)), norm), found[worst].name, errors[worst])


def relative_error(apart: float, norm: float) -> float:
    """The one over the other; infinite of a difference from 0 and of one that is no number."""
    error = apart / norm if norm else math.inf if apart else 0.0
    return math.inf if math.isnan(error) else error
