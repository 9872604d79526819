"""Types that all readers of others' recordings share: the result, its progress, its error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from cs336_tui.config.axis import UserError
from cs336_tui.config.spec import recorded_spec
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.events.memory_report import MemoryReport

INFLATED = 1 << 28
"""Bytes that any gzipped file may hold."""


class RecordingError(UserError):
    """A file that cannot be read as a recording: damaged, cut, too large or none at all; one line says so."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")


def most_inflated(size: int, most: int) -> int:
    """The most bytes, `most` at any rate, to which a gzipped file of `size` bytes is decompressed: traces shrink to a
    tenth or so, and what shrinks to less than a 300th is made to fill memory."""
    return min(max(300 * size, INFLATED), most)


def check_time(path: Path, total_ns: float) -> None:
    """Raises `RecordingError` if all times together are so long that a sum of them could overflow."""
    if total_ns > 2**61:
        raise RecordingError(path, "damaged: its times together are longer than a century")


class OpeningCancelled(Exception):
    """Reading was stopped by the person who asked for it."""


class Watch(Protocol):
    """Told of progress in bytes of the file, whose `total` is 0 if unknown; raises `OpeningCancelled` to stop."""

    def __call__(self, done: int, total: int) -> None: ...


def unwatched(done: int, total: int) -> None:
    """A `Watch` for nobody."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of a recording: what one device of one process did."""

    name: str
    """The file's name, with the rank if there is one, such as ``trace.json.gz, rank 1``."""
    device: str
    """As ``cuda:0``."""
    report: KernelReport | MemoryReport
    device_label: str = ""
    """Such as ``NVIDIA H100 80GB HBM3``; empty if unknown."""
    memory_bytes: int | None = None
    """All memory of the device."""
    capability: str | None = None
    """CUDA compute capability of the device, such as ``9.0``."""
    torch: str = ""
    host: str = ""


class Opening(NamedTuple):
    """Options for reading a file."""

    watch: Watch = unwatched
    phases: Mapping[str, tuple[str, ...]] = {}
    """Names of ranges, beside the usual ones, that are a phase, by the phase."""


def header(name: str, device: str, label: str, torch: str) -> dict[str, object]:
    """The fields that begin every report: its spec, its device, torch's version."""
    return {"spec": recorded_spec(name, device), "device_name": label or device, "torch": torch or "unknown"}
