"""The steps of a race: `analysis.next_step` decides which comes next, `runner.tuning` runs it."""

from __future__ import annotations

import msgspec

from cs336_tui.config.spec import CellSpec


class Visits(msgspec.Struct, frozen=True):
    """A round: candidates by number, in the order in which they are visited."""

    candidates: tuple[int, ...]
    round: int


class Checks(msgspec.Struct, frozen=True):
    """Reports of the logits and gradients of these specs, which are not there yet."""

    specs: tuple[CellSpec, ...]


class Turns(msgspec.Struct, frozen=True):
    """A round of two candidates in turns, in one process."""

    a: int
    b: int


class Finish(msgspec.Struct, frozen=True):
    """Nothing is left to do, for this reason."""

    reason: str


Step = Visits | Checks | Turns | Finish
"""A step of a race."""
