"""Where the recordings of real GPUs lie, and what is known of them by counting in plain Python."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[4] / "shared/recordings"
TRACES = {
    "h100-bert-small-inference": (60, 307_197),
    "h100-timesformer-inference": (446, 154_855_595),
    "b200-eager-inference": (768, 10_862_916),
    "v100-training-rank0": (4_350, 468_153_602),
}
"""Kernels and the sum of their times, ns."""


def trace_path(name: str) -> Path:
    """The file of a trace; skips the test where the recordings are not."""
    path = FOLDER / f"{name}.trace.json.gz"
    if not path.is_file():
        pytest.skip("the recordings are not here")
    return path


def events_of(name: str) -> list[dict[str, Any]]:
    """The events of a trace as Python's own reader has them."""
    with gzip.open(trace_path(name)) as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events
