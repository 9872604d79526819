"""A whole step as one CUDA graph: launched once by the host, so that what is left is the device's own time."""

from __future__ import annotations

import torch

from cs336_tui.workload.passes import Step


def why_no_graph(device_type: str) -> str | None:
    """Why a step on this kind of device cannot be captured; None where it may be."""
    return None if device_type == "cuda" else f"cuda graph step: {device_type} has none, only cuda has"


def captured(step: Step, device: torch.device) -> Step:
    """The step as one graph: warmed up on a stream of its own, captured, and from now on replayed.

    Raises ValueError, in one line, where that cannot be.
    """
    raise NotImplementedError
