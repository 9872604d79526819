"""Whether a cell on the host is worth trying: there, unlike on a GPU, running out of memory may stop the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cs336_tui.environment import DeviceInfo
from cs336_tui.order import rough_peak_bytes
from cs336_tui.quantities import gigabytes
from cs336_tui.reports import Prediction
from cs336_tui.runner.child import IMPOSSIBLE
from cs336_tui.runner.predictor import PredictionError, Predictor
from cs336_tui.spec import RunSpec

_MAY_MATTER = 1 / 4
"""From this share of the memory on, by a rough sum, a prediction is made."""


def why_not_tried(
    spec: RunSpec, device: DeviceInfo, predictor: Predictor, predicted: Callable[[Sequence[Prediction]], object]
) -> str:
    """Why the cell has no room on the device by prediction, in one line; empty when it may be tried, as any on CUDA.

    Blocks for some seconds where a prediction is made; that is given to `predicted`, too.
    """
    capacity = None if device.name.startswith("cuda") else device.memory_bytes
    if capacity is None or rough_peak_bytes(spec) < capacity * _MAY_MATTER:
        return ""
    try:
        (prediction,) = predictor.predict([spec])
    except PredictionError as error:
        return f"not tried: {error}" if IMPOSSIBLE in str(error) else ""
    predicted([prediction])
    if prediction.peak_bytes <= capacity:
        return ""
    needed, have = gigabytes(prediction.peak_bytes), gigabytes(capacity)
    return f"not tried: by prediction it needs {needed} GB, and {device.name} has {have} GB"
