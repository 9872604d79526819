"""Whether a cell on the host is worth trying: there, unlike on a GPU, running out of memory may stop the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cs336_tui.config.order import rough_peak_bytes
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.environment import DeviceInfo
from cs336_tui.events.reports import Prediction
from cs336_tui.runner.child import IMPOSSIBLE
from cs336_tui.runner.predictor import PredictionError, Predictor
from cs336_tui.stats.quantities import gigabytes

Predicted = Callable[[Sequence[Prediction]], object]
_MAY_MATTER = 1 / 4
"""From this share of the memory on, by a rough sum, a prediction is made."""


def why_not_tried(spec: CellSpec, device: DeviceInfo, predictor: Predictor, predicted: Predicted) -> str:
    """Why the cell has no room on the device by prediction, in one line; empty when it may be tried, as any on CUDA.

    Blocks for some seconds where a prediction is made; that is given to `predicted`, too.
    """
    return _why_not([spec], device, predictor, predicted)


def why_not_in_turns(a: CellSpec, b: CellSpec, device: DeviceInfo, predictor: Predictor, predicted: Predicted) -> str:
    """The same of two cells on the device that take turns in one process, both models in memory at once."""
    return _why_not([a, b], device, predictor, predicted)


def resident_bytes(prediction: Prediction) -> int:
    """What a cell holds between two of its steps: parameters, buffers and the optimizer's state; after a train-step
    gradients, too, as large as the parameters. Every other pass lets go of its gradients when a step is over."""
    held = prediction.by_category
    gradients = held["parameters"] if prediction.spec.pass_ == "train-step" else 0
    return held["parameters"] + gradients + held["optimizer_state"] + held["buffers"]


def in_turns_bytes(a: Prediction, b: Prediction) -> int:
    """The peak of two cells in turns: the larger of one's peak beside what the other holds, and the reverse."""
    return max(a.peak_bytes + resident_bytes(b), b.peak_bytes + resident_bytes(a))


def _why_not(specs: Sequence[CellSpec], device: DeviceInfo, predictor: Predictor, predicted: Predicted) -> str:
    """Of one cell, or of A and B in turns."""
    capacity = None if device.name.startswith("cuda") else device.memory_bytes
    if capacity is None or sum(map(rough_peak_bytes, specs)) < capacity * _MAY_MATTER:
        return ""
    try:
        found = predictor.predict(specs)
    except PredictionError as error:
        return f"not tried: {error}" if IMPOSSIBLE in str(error) else ""
    predicted(found)
    needed = in_turns_bytes(*found) if len(found) == 2 else found[0].peak_bytes
    if needed <= capacity:
        return ""
    who = "A and B together need" if len(found) == 2 else "it needs"
    have = gigabytes(capacity)
    return f"not tried: by prediction {who} {gigabytes(needed)} GB, and {device.name} has {have} GB"
