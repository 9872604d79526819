"""Recordings opened; the folder of those of real GPUs, and their figures counted in plain Python."""

import gzip
import json
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.session.recordings.recording import Opening, Recorded, RecordingError, read


def cells_of(path: Path, opening: Opening | None = None) -> tuple[Recorded, ...]:
    return read(path, path.name, opening or Opening())


def report_of(path: Path, opening: Opening | None = None) -> KernelReport:
    """The report on kernels of a file's only cell."""
    (cell,) = cells_of(path, opening)
    return cell.report


def refusal(path: Path) -> str:
    """Why a file is refused, in one line that names it."""
    with pytest.raises(RecordingError) as caught:
        cells_of(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value).removeprefix(f"{path}: ")


def cells_if_any(path: Path) -> tuple[Recorded, ...]:
    """The cells of a file; none if it is refused, in one line."""
    message = ""
    try:
        return cells_of(path)
    except RecordingError as refused:
        message = str(refused)
    assert "\n" not in message
    return ()


FOLDER = Path(__file__).parents[4] / "shared/recordings"
TRACES = {
    "h100-bert-small-inference": (60, 307_197),
    "h100-timesformer-inference": (446, 154_855_595),
    "b200-eager-inference": (768, 10_862_916),
    "v100-training-rank0": (4_350, 468_153_602),
}
"""Kernels and the sum of their times, ns."""


PART = Path(__file__).parents[2] / "data/v100-training.trace.json"
"""A part of the V100's trace that comes with the tests, so that they run where the recordings are not."""
PART_KERNELS = (25, 4_974_918)


def recording(name: str) -> Path:
    """A file of the folder; skips the test where the recordings are not."""
    if not (path := FOLDER / name).is_file():
        pytest.skip("the recordings are not here")
    return path


def trace_path(name: str) -> Path:
    """The file of a trace, ``part`` for the one here."""
    return PART if name == "part" else recording(f"{name}.trace.json.gz")


@cache
def events_of(name: str) -> list[dict[str, Any]]:
    """The events of a trace as Python's own reader has them, times to the last digit."""
    data = trace_path(name).read_bytes()
    text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    events: list[dict[str, Any]] = json.loads(text, parse_float=Decimal)["traceEvents"]
    return events
