"""Phases of a step and parts of its model, named for whoever watches: one vocabulary for profilers of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

from torch import nn

from cs336_tui.config.spec import CellSpec
from cs336_tui.worker.workload.annotations import Annotation
from cs336_tui.worker.workload.passes import Step
from cs336_tui.worker.workload.ranges import Around, name_parts

PHASE, RANGE = "phase/", "range/"
"""What the names of phases and of ranges begin with."""
COMPILE_LEFT_OUT = "Shown is the model as it is written, not what torch.compile makes of it."
GRAPH_LEFT_OUT = "The step ran as it is launched without its CUDA graph."


def left_out(spec: CellSpec) -> tuple[str, ...]:
    """What a look into the model as it is written says of a cell that runs in another form."""
    compiled = (COMPILE_LEFT_OUT,) if spec.compile != "off" else ()
    return (*compiled, GRAPH_LEFT_OUT) if spec.cuda_graph != "off" else compiled


def name_step(step: Step, model: nn.Module | None, around: Around, annotations: Sequence[Annotation] = ()) -> None:
    """Have every phase run inside ``around("phase/forward")`` and so on, every part inside ``around("range/norms")``.

    Without a model, phases alone: parts of one that is compiled cannot be named, as that would break its graphs. Phases
    that a pass runs untimed (forward and loss of `backward`) are named too. For good: only for a step that
    nobody times, or whose reader knows that it is watched.
    """
    if model is not None:
        name_parts(model, lambda name: around(RANGE + name), annotations)
    run = step.run

    @wraps(run)
    def named(phase: str) -> Any:
        with around(PHASE + phase):
            return run(phase)

    setattr(step, "run", named)  # noqa: B010
