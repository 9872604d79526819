"""The gain of another precision than fp32: time and memory of the cells that were measured in both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from cs336_tui.analysis.fields import FIELDS, machine
from cs336_tui.analysis.merge import Result, ddof_of, measured, pooled, runs_of
from cs336_tui.config.spec import CellSpec, Precision
from cs336_tui.events.reports import MemoryReport
from cs336_tui.stats.ratio import Outcome, Ratio, explain, outcome, ratio_of
from cs336_tui.stats.summaries import Summary

BASELINE: Precision = "fp32"
_BY = ("size", "context", "batch", "pass", "device", "precision")
"""Fields in whose order the rows are."""


class TimedSide(msgspec.Struct, frozen=True, kw_only=True):
    """A cell in one precision, all its runs together.

    `summary` is over the steps of all measured runs; where none was measured it is None and `note` says why (OOM,
    failed, ...). `peak_bytes` is the largest peak of allocated memory, None where no allocator
    counts and no memory report was made.
    """

    precision: Precision
    runs: int
    summary: Summary | None
    peak_bytes: int | None
    note: str = ""


class SpeedUp(msgspec.Struct, frozen=True, kw_only=True):
    """One cell in another precision against the same work in fp32.

    `ratio` is fp32's mean step time over the other's, so that above 1 the other is faster; None where a side has not
    the steps for it. `outcome` is of the other precision: faster, slower, same, ambiguous.
    """

    spec: CellSpec
    """In the other precision."""
    machine: str
    fp32: TimedSide
    other: TimedSide
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
        if not self.fp32.peak_bytes or not self.other.peak_bytes:
            return None
        return self.other.peak_bytes / self.fp32.peak_bytes


def mixed_speedups(results: Sequence[Result]) -> tuple[SpeedUp, ...]:
    """Every cell that is over in fp32 and in another precision, at least one of them measured.

    Cells belong together that timed the same work in the same way on one machine with one torch; numbers of measured
    steps, seeds and editions may differ. TF32 is compared with true fp32, never taken for it.
    """
    groups: dict[tuple[object, ...], dict[Precision, list[Result]]] = {}
    for result in results:
        if result.cell.is_over:
            groups.setdefault(_work(result), {}).setdefault(result.spec.precision, []).append(result)
    found: list[tuple[Result, SpeedUp]] = []
    for by_precision in groups.values():
        base = by_precision.pop(BASELINE, [])
        for other in by_precision.values():
            if base and (measured(base) or measured(other)):
                found.append((other[0], _speedup(base, other)))
    found.sort(key=lambda each: tuple(FIELDS[key].order(each[0]) for key in _BY))
    return tuple(speedup for _, speedup in found)


def _work(result: Result) -> tuple[object, ...]:
    """Fields that two cells must share but for their precision. Threads are those in force; of a cell that did not
    come so far, those that it would have had."""
    alike = msgspec.structs.replace(
        result.spec,
        precision=BASELINE,
        size="",
        edition="2026",
        measure_steps=1,
        steps_auto=None,
        seed=0,
        threads=None,
    )
    known = (result.spec, result.cell.in_force, result.environment)
    threads = next((found.threads for found in known if found and found.threads), None)
    return alike, threads, machine(result), FIELDS["torch"].show(result)


def _speedup(base: Sequence[Result], other: Sequence[Result]) -> SpeedUp:
    fp32, compared = _side(base), _side(other)
    fp32_times, times = runs_of(base), runs_of(other)
    of_times = ratio_of(times, fp32_times)
    missing = [f"{side.precision} has no timing: {side.note}" for side in (fp32, compared) if side.note]
    typical = next(iter(measured(other)), other[0])
    return SpeedUp(
        spec=typical.spec,
        machine=machine(typical),
        fp32=fp32,
        other=compared,
        ratio=ratio_of(fp32_times, times),
        outcome=outcome(of_times),
        explanation="; ".join(missing) + "." if missing else explain(of_times, a=compared.precision, b=fp32.precision),
    )


def _side(results: Sequence[Result]) -> TimedSide:
    ran = measured(results)
    return TimedSide(
        precision=results[0].spec.precision,
        runs=len(ran),
        summary=pooled(results, ddof_of(results)),
        peak_bytes=max(_peaks(ran), default=None),
        note="" if ran else results[0].ending,
    )


def _peaks(results: Iterable[Result]) -> Iterable[int]:
    """The allocator's peak; if it does not count, the peak of a memory report of the same cell."""
    for result in results:
        if result.cell.finished and result.cell.finished.peak_allocated_bytes:
            yield result.cell.finished.peak_allocated_bytes
        elif (report := result.state.report_of("memory", result.spec)) and isinstance(report.content, MemoryReport):
            yield report.content.peak_bytes
