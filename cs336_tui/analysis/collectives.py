"""Bandwidth of collectives, as nccl-tests defines it (its PERFORMANCE.md), and its curves over sizes of messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from cs336_tui.analysis.grouping import groups, label, telling
from cs336_tui.analysis.merge import Result, ddof_of, measured, pooled
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import bytes_of

if TYPE_CHECKING:
    from cs336_tui.analysis.published import Published


def bus_factor(operation: str, ranks: int) -> float:
    """Bytes that pass the busiest link at least, as a multiple of the whole array's."""
    match operation:
        case "all-reduce":
            return 2 * (ranks - 1) / ranks
        case "broadcast":
            return 1.0
    return (ranks - 1) / ranks


def algbw(spec: CellSpec, step_s: float) -> float:
    """Bytes of a collective's whole array over the time of a step, bytes/s."""
    return spec.message_bytes / step_s


def busbw(spec: CellSpec, step_s: float) -> float:
    """The same by the operation's `bus_factor`: to be compared with a link's bandwidth, whatever the ranks."""
    return algbw(spec, step_s) * bus_factor(spec.collective, spec.ranks)


class Point(msgspec.Struct, frozen=True):
    """A message: its size as it was asked for, bytes of the whole array, busbw in bytes/s."""

    size: str
    bytes: int
    busbw: float


class Curve(msgspec.Struct, frozen=True):
    """Bandwidths of one operation over its sizes, smallest first, all other choices alike; `name` tells it from other
    curves, `spec` is one of its cells. A published one has the name of its device, and its `source`."""

    name: str
    spec: CellSpec
    points: tuple[Point, ...]
    source: str = ""


def curves(results: Iterable[Result]) -> tuple[Curve, ...]:
    """A curve for each combination of the choices, but for the size, of collectives that were timed."""
    timed = [each for each in measured(results) if each.spec.is_collective and each.cell.running.mean]
    keys, ddof = telling(timed, but=("size",)), ddof_of(timed) if timed else 1
    return tuple(
        Curve(label(group[0], keys) or group[0].spec.collective, group[0].spec, tuple(_points(group, ddof)))
        for group in groups(timed, keys).values()
    )


def _points(group: Sequence[Result], ddof: int) -> Iterator[Point]:
    for members in groups(group, ("size",)).values():
        spec, found = members[0].spec, pooled(members, ddof)
        if found and found.mean_s:
            yield Point(spec.size, spec.message_bytes, busbw(spec, found.mean_s))


def published_curves(spec: CellSpec, rows: Iterable[Published]) -> tuple[Curve, ...]:
    """Published curves of this operation, backend and number of ranks, one for each source."""
    found: dict[tuple[str, str], list[Point]] = {}
    for row in rows:
        if (row.op, row.backend, row.ranks) == (spec.collective, spec.backend_in_use, spec.ranks) and row.mean_ms:
            size = bytes_of(row.size)
            rate = size / (row.mean_ms / 1e3) * bus_factor(row.op, spec.ranks)
            found.setdefault((row.device, row.source), []).append(Point(row.size, size, rate))
    return tuple(
        Curve(device, spec, tuple(sorted(points, key=lambda point: point.bytes)), source)
        for (device, source), points in found.items()
    )
