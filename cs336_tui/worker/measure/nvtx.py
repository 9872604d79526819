"""NVTX ranges round warm-up, steps, phases and parts, for ``nsys profile``: named as the app's own tables name them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import nn

from cs336_tui.worker.measure.naming import name_step
from cs336_tui.worker.workload.annotations import Annotation
from cs336_tui.worker.workload.passes import Step

UNAVAILABLE = (
    "no NVTX ranges: this torch was built without CUDA, which brings NVTX; nsys sees the process without named parts"
)


def under_nsys() -> bool:
    """Whether NVIDIA's nsys started this process: it sets this variable in what it profiles."""
    return "NSYS_PROFILING_SESSION_ID" in os.environ


def available() -> bool:
    """Whether torch can emit NVTX ranges."""
    try:
        torch.cuda.nvtx.range_push("check")
        torch.cuda.nvtx.range_pop()
    except RuntimeError:  # "NVTX functions not installed"
        return False
    return True


def nvtx_range(name: str) -> AbstractContextManager[object]:
    """What is entered is a range of this name on the calling thread."""
    entered: AbstractContextManager[object] = torch.cuda.nvtx.range(name)
    return entered


def emit_ranges(step: Step, model: nn.Module | None, annotations: Sequence[Annotation] = ()) -> None:
    """Have the step emit a range round every phase (``forward``) and every part (``norms``), from now on; round
    phases alone without a model.

    Backward has its phase only: its kernels belong to no part on the thread that launches them.
    """
    name_step(step, model, lambda name: nvtx_range(name.partition("/")[2]), annotations)
