"""Phases of a step and parts of its model, named for whoever watches: one vocabulary for profilers of every kind."""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch import nn

from cs336_tui.workload.passes import Step
from cs336_tui.workload.ranges import Around, name_parts

PHASE, RANGE = "phase/", "range/"
"""What the names of phases and of ranges begin with."""


def name_step(step: Step, model: nn.Module, around: Around) -> None:
    """Have every phase run inside ``around("phase/forward")`` and so on, every part inside ``around("range/norms")``.

    Phases that a pass runs untimed (forward and loss of `backward`) are named too. For good: only for a step that
    nobody times, or whose reader knows that it is watched.
    """
    name_parts(model, lambda name: around(RANGE + name))
    run = step.run

    @wraps(run)
    def named(phase: str) -> Any:
        with around(PHASE + phase):
            return run(phase)

    setattr(step, "run", named)  # noqa: B010
