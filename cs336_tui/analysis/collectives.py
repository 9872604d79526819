"""Bandwidth of collectives, as nccl-tests defines it (its PERFORMANCE.md)."""

from __future__ import annotations

from cs336_tui.analysis.merge import Result
from cs336_tui.config.spec import CellSpec


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


def mean_step_s(result: Result) -> float | None:
    """Mean step time of a collective; None of another cell, or without a measured step."""
    return result.cell.running.mean or None if result.spec.is_collective and result.cell.running.n else None
