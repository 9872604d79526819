"""The largest batch or context that fits, found with few predictions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from fractions import Fraction
from math import floor, prod
from typing import Literal

import msgspec

from cs336_tui.config.spec import MAX_COUNT, CellSpec

Dimension = Literal["batch", "context"]
FIELD: dict[Dimension, str] = {"batch": "batch_size", "context": "context_length"}
LIMIT: dict[Dimension, int] = {"batch": 65_536, "context": 131_072}
"""Nothing larger is tried unless asked for."""


def step_of(spec: CellSpec, by: Dimension) -> int:
    """The step in which sizes are tried. Contexts are multiples of 16: nobody trains at 1,337, and kernels like even
    shapes. Batches are those that micro-batches, and ranks of a global batch, divide equally."""
    if by == "context":
        return 16
    return spec.accumulate * (spec.ranks if spec.batch_is == "global" else 1)


def largest(need: Callable[[int], int], room: int, *, start: int, limit: int, step: int = 1) -> int | None:
    """The largest multiple of `step` up to `limit` whose need is at most `room`; None when not even one step fits.
    `need` must not fall when its argument grows. It is asked from `start` on upwards, at least twice as far each time,
    until something does not fit. Then two guesses are where the parabola through the three nearest known needs meets
    `room` (Muller 1956), every third is half-way, which bounds their number; about six do."""
    top = limit // step
    known: dict[int, int] = {}

    def fits(at: int) -> bool:
        known[at] = need(at * step)
        return known[at] <= room

    low, high, at = 0, top + 1, min(max(start // step, 1), top)
    while low < top:
        if not fits(at):
            high = at
            break
        # From two on, one beyond where the curve ends: it likely does not fit, and then the one before is the answer.
        beyond = _meets(known, room, 2 * at, top) + 1 if len(known) > 1 else 2 * at
        low, at = at, min(beyond, top)
    turn = 0
    while high - low > 1:
        turn += 1
        at = (low + high) // 2 if turn % 3 == 0 else _meets(known, room, low + 1, high - 1)
        if fits(at):
            low = at
        else:
            high = at
    return low * step or None


def _meets(known: dict[int, int], room: int, first: int, last: int) -> int:
    """The last place from `first` to `last` at which a curve through the three known needs nearest to `room` is at
    most `room`; `first` where it is nowhere."""
    points = sorted(known.items(), key=lambda point: abs(point[1] - room))[:3]

    def curve(at: int) -> int:  # Lagrange's form, rounded down
        total = Fraction(0)
        for x, y in points:
            others = [other for other, _ in points if other != x]
            total += y * prod((Fraction(at - other, x - other) for other in others), start=Fraction(1))
        return floor(total)

    return max(first + bisect_right(range(first, last + 1), room, key=curve) - 1, first)


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The result: the cell with the largest batch or context that fits, None when none does."""

    by: Dimension
    largest: int | None
    spec: CellSpec | None
    next_spec: CellSpec | None
    """The next larger one, which does not fit; None where the limit ended the search."""
    limit: int
    predictions: int


def search(
    spec: CellSpec,
    by: Dimension,
    need: Callable[[CellSpec], int],
    room: int,
    *,
    limit: int | None = None,
    on_try: Callable[[CellSpec, bool], object] = lambda _spec, _fits: None,
) -> Fit:
    """The largest batch or context of this cell, all else as it is, whose need (bytes) is at most `room`. `on_try`
    hears of every one that was looked at and whether it fits."""
    limit = min(limit or LIMIT[by], MAX_COUNT)
    step = min(step_of(spec, by), limit)
    tried: list[CellSpec] = []

    def at(value: int) -> CellSpec:
        return msgspec.structs.replace(spec, **{FIELD[by]: value})

    def measure(value: int) -> int:
        candidate = at(value)
        needed = need(candidate)
        tried.append(candidate)
        on_try(candidate, needed <= room)
        return needed

    start = getattr(spec, FIELD[by])
    found = largest(measure, room, start=start, limit=limit, step=step)
    following = (found or 0) + step
    return Fit(
        by=by,
        largest=found,
        spec=None if found is None else at(found),
        next_spec=at(following) if following <= limit else None,
        limit=limit,
        predictions=len(tried),
    )
