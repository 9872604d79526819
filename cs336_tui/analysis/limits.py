"""How close one cell came to what its device can do, as a row or a line shows it."""

from __future__ import annotations

import msgspec

from cs336_tui.analysis.merge import Result
from cs336_tui.analysis.roofline import Bound, Ceiling, PeakLookup, RooflinePoint, point_of, work_of


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell achieved and of which share of its two ceilings; what is not known is None, never a guess.

    Rates are there for a measured cell, shares where their ceiling is known, for the precision in force.
    """

    flops: int | None = None
    """Of the matrix products of the timed phases of a step."""
    flops_per_s: float | None = None
    """Achieved: these over the mean measured step time."""
    share_of_sheet: float | None = None
    """Of the data sheet's peak FLOP/s."""
    share_of_measured: float | None = None
    """Of the measured peak FLOP/s."""
    sheet: Ceiling | None = None
    measured: Ceiling | None = None
    bound: Bound | None = None
    """What keeps it from more FLOP/s, by its intensity."""
    bytes_per_s: float | None = None
    """Achieved, at least: the least bytes that a step must move over its time."""
    share_of_bandwidth: float | None = None
    """Of its ceiling's bandwidth, at least; None unless that is the bound."""
    point: RooflinePoint | None = None


def limit_of(result: Result, peaks: PeakLookup) -> Limit:
    """How close the cell came to its limits; `peaks` finds what was measured of its device."""
    point = point_of(result, peaks)
    if point is None:
        work = work_of(result)
        return Limit(flops=work.flops if work else None)
    return Limit(
        flops=point.flops,
        flops_per_s=point.flops_per_s,
        share_of_sheet=point.share_of_sheet,
        share_of_measured=point.share_of_measured,
        sheet=point.sheet,
        measured=point.measured,
        bound=point.bound,
        bytes_per_s=point.bytes_per_s,
        share_of_bandwidth=point.share_of_bandwidth,
        point=point,
    )
