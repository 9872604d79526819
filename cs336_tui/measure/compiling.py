"""Having torch.compile do all its work before the first warm-up step, and counting what it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from cs336_tui.workload.passes import Step


class Compiled(NamedTuple):
    """What compiling took and came to, as in `cs336_tui.events.ModelPrepared`."""

    seconds: float
    graphs: int
    graph_breaks: tuple[str, ...]


def compile_ahead(step: Step, device: torch.device, go_on: Callable[[], object]) -> Compiled:
    """Run forward, loss and backward of the step, as far as its pass has them, until nothing is compiled any more.

    The optimizer is left out, so that parameters stay as they are. `go_on` is called between runs and may raise.
    """
    raise NotImplementedError(step, device, go_on)
