"""The steps of a race, and two cells in turns: what they must have in common, and the order of their rounds."""

from __future__ import annotations

import msgspec

from cs336_tui.config.axis import SpecError
from cs336_tui.config.counts import steps_words
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


def check_sides(a: CellSpec, b: CellSpec) -> None:
    """Raises `SpecError` for two cells that cannot take turns in one process, step by step."""
    for name, spec in (("A", a), ("B", b)):
        if spec.sync != "each-step":
            raise SpecError("sync", f"{spec.sync} of {name}", "turns step by step need each-step")
        if spec.timer != "step":
            raise SpecError("timer", f"{spec.timer} of {name}", "two cells in turns need timer step")
        if spec.warmup_auto or spec.steps_auto is not None:
            field = "warmup_steps" if spec.warmup_auto else "measure_steps"
            raise SpecError(field, f"auto of {name}", "two cells in turns need a fixed number, or a time")
    for field in ("ranks", "backend", "device") if max(a.ranks, b.ranks) > 1 else ():
        if (given := [getattr(spec, field) for spec in (a, b)])[0] != given[1]:
            raise SpecError(field, f"{given[0]} and {given[1]}", "A and B need the same, as ranks are of one group")
    if a.threads != b.threads:
        given = [spec.threads or "torch's own" for spec in (a, b)]
        why = "A and B need the same, as setting them between steps changes how work is shared out"
        raise SpecError("threads", f"{given[0]} and {given[1]}", why)
    asked = [steps_words(spec.measure_steps, spec.steps_auto, spec.steps_for) for spec in (a, b)]
    if asked[0] != asked[1]:
        why = "A and B need the same, as steps are timed in pairs"
        raise SpecError("measure_steps", " and ".join(asked), why)


def rounds_of(a: CellSpec, b: CellSpec, rounds: int, first: int = 1) -> tuple[tuple[CellSpec, int], ...]:
    """The cells A, B, A, B and so on, each with the number of the run of its spec, from `first`; A and B may be one
    spec."""
    if a == b:
        return tuple((a, repeat) for repeat in range(first, first + 2 * rounds))
    return tuple((spec, number) for number in range(first, first + rounds) for spec in (a, b))
