"""The gain of another precision than fp32: time and memory of the cells that were measured in both."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap

import msgspec

from cs336_tui.analysis.comparison import Side, side_of
from cs336_tui.analysis.fields import FIELDS, machine
from cs336_tui.analysis.measures import largest, tensor_bytes
from cs336_tui.analysis.merge import Result, grouped, measured, runs_of
from cs336_tui.config.spec import CellSpec, Precision
from cs336_tui.stats.ratio import Outcome, Ratio, explain, outcome, ratio_of

BASELINE: Precision = "fp32"
_BY = ("size", "context", "batch", "pass", "device", "precision")
"""Fields in whose order the rows are."""


class SpeedUp(msgspec.Struct, frozen=True, kw_only=True):
    """One cell in another precision, which `spec` and `outcome` are of, against the same work in fp32. `ratio` is
    fp32's mean step time over the other's; None where a side has too few steps. Peaks of allocated memory are None
    where no allocator counts and no memory report was made."""

    spec: CellSpec
    machine: str
    fp32: Side
    other: Side
    ratio: Ratio | None
    outcome: Outcome
    explanation: str

    @property
    def pays(self) -> bool | None:
        """True if the other precision takes less time; None where that cannot be told."""
        return None if self.outcome == "ambiguous" else self.outcome == "faster"

    @property
    def memory_ratio(self) -> float | None:
        """The other's peak of allocated memory over fp32's; None where one is unknown."""
        base, other = self.fp32.peak_allocated_bytes, self.other.peak_allocated_bytes
        return other / base if base and other else None


def mixed_speedups(results: Sequence[Result]) -> tuple[SpeedUp, ...]:
    """Every cell that is over in fp32 and in another precision, at least one of them measured: the same work, done in
    the same way on one machine with one torch; numbers of measured steps, seeds and editions may differ."""
    found: list[tuple[list[Result], list[Result]]] = []
    for cells in grouped((result for result in results if result.cell.is_over), _work).values():
        by_precision = grouped(cells, lambda result: result.spec.precision)
        base = by_precision.pop(BASELINE, [])
        found += [(base, other) for other in by_precision.values() if base and measured((*base, *other))]
    found.sort(key=lambda both: tuple(FIELDS[key].order(both[1][0]) for key in _BY))
    return tuple(starmap(_speedup, found))


def _work(result: Result) -> tuple[object, ...]:
    """Fields that two cells must share but for their precision. Threads are those in force; of a cell that did not
    come so far, those that it would have had."""
    any_ = {"size": "", "edition": "2026", "seed": 0, "threads": None}
    any_ |= {"measure_steps": 1, "steps_auto": None, "steps_for": None}
    alike = msgspec.structs.replace(result.spec, precision=BASELINE, **any_)
    known = (result.spec, result.cell.in_force, result.environment)
    threads = next((found.threads for found in known if found and found.threads), None)
    return alike, threads, machine(result), FIELDS["torch"].show(result)


def _speedup(base: Sequence[Result], other: Sequence[Result]) -> SpeedUp:
    fp32, compared = _side(base), _side(other)
    of_times = ratio_of(runs_of(other), runs_of(base))
    missing = [f"{side.spec.precision} has no timing: {side.note}" for side in (fp32, compared) if side.note]
    typical = next(iter(measured(other)), other[0])
    return SpeedUp(
        spec=typical.spec,
        machine=machine(typical),
        fp32=fp32,
        other=compared,
        ratio=ratio_of(runs_of(base), runs_of(other)),
        outcome=outcome(of_times),
        explanation="; ".join(missing) + "." if missing else explain(of_times, a=typical.spec.precision, b=BASELINE),
    )


def _side(results: Sequence[Result]) -> Side:
    return msgspec.structs.replace(side_of(results), peak_allocated_bytes=largest(map(tensor_bytes, measured(results))))
