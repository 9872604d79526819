"""Effects of one choice, all else alike: another precision than fp32, the steps of warm-up, the wrapper of several
ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
from statistics import fmean, median
from typing import Literal, NamedTuple

import msgspec

from cs336_tui.analysis.ab import Exposed, runs_in_turns, turns_of
from cs336_tui.analysis.comparison import Side, side_of
from cs336_tui.analysis.fields import FIELDS, machine, warmup_done
from cs336_tui.analysis.measures import largest, tensor_bytes
from cs336_tui.analysis.merge import Result, grouped, measured, runs_of
from cs336_tui.config.spec import CellSpec, Precision
from cs336_tui.config.variants import is_imported
from cs336_tui.stats.quantities import fixed_milliseconds, millisecond_decimals
from cs336_tui.stats.ratio import LEVEL, Outcome, Ratio, explain, outcome, ratio_of
from cs336_tui.stats.summaries import Summary, skews, summarize

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
    fp32, compared = (
        msgspec.structs.replace(side_of(side), peak_allocated_bytes=largest(map(tensor_bytes, measured(side))))
        for side in (base, other)
    )
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


_MAD_TO_STD = 1.4826
"""Of normal samples, the std over the median absolute deviation: 1 / Φ⁻¹(3/4)."""


class Trace(NamedTuple):
    """All steps of one result. `first_step_cost` is the cell's first step, warm-up or not, over the median of its
    measured steps; `steady_after` is its `steps_until_steady`."""

    result: Result
    summary: Summary
    first_step_cost: float | None
    steady_after: int | None

    @property
    def warmup(self) -> str:
        """The setting as shown, ``auto (12)`` where it was automatic."""
        return warmup_done(self.result.cell)

    def text(self, times_s: Sequence[float]) -> str:
        """Some of its times as an array in ms, with the decimals of the median in 4 significant digits."""
        return array(times_s, millisecond_decimals(self.summary.median_s, None))


class WarmupGroup(NamedTuple):
    """Measured cells that differ in warm-up steps alone, fewest first; `title` says what they share."""

    title: str
    machine: str
    results: Sequence[Result]

    @property
    def warmups(self) -> tuple[str, ...]:
        """The warm-up settings that there are, as shown."""
        return tuple(dict.fromkeys(map(FIELDS["warmup"].show, self.results)))

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The steps of each cell; they may be read from a file for this."""
        return tuple(map(trace, self.results))


def warmup_groups(results: Iterable[Result]) -> tuple[WarmupGroup, ...]:
    """The measured cells, grouped by all but their warm-up steps, on one machine with one torch; smallest size first.
    Automatic warm-up is one more setting, after the fixed ones. A group may hold one setting only; `warmups` says."""

    def alike(result: Result) -> tuple[CellSpec, str, str]:
        spec = msgspec.structs.replace(result.spec, warmup_steps=0, warmup_auto=False, warmup_for=None)
        return spec, machine(result), FIELDS["torch"].show(result)

    def group(cells: Sequence[Result]) -> WarmupGroup:
        ordered = sorted(cells, key=lambda result: (FIELDS["warmup"].order(result), result.source, result.cell.cell))
        return WarmupGroup(f"{cells[0].spec.title} · batch {cells[0].spec.batch_size}", machine(cells[0]), ordered)

    order = [FIELDS[key].order for key in ("size", "context", "batch", "pass", "precision", "device")]
    by_size = sorted(measured(results), key=lambda result: tuple(rank(result) for rank in order))
    return tuple(map(group, grouped(by_size, alike).values()))


def steps_until_steady(times_s: Sequence[float], measured_s: Sequence[float]) -> int | None:
    """The number of steps of `times_s` before all later ones are steady; None when the last one is not. Steady is a
    step within m ± max(3 · 1.4826 · MAD, 0.02 m), where m is the median of `measured_s` and MAD the median absolute
    deviation from it. Medians, so that a cold step among the measured ones does not hide itself."""
    if not times_s or not measured_s:
        return None
    centre = median(measured_s)
    spread = _MAD_TO_STD * median(abs(time_s - centre) for time_s in measured_s)
    reach = max(3 * spread, 0.02 * centre)
    unsteady = [step for step, time_s in enumerate(times_s) if abs(time_s - centre) > reach]
    after = unsteady[-1] + 1 if unsteady else 0
    return after if after < len(times_s) else None


def array(times_s: Sequence[float], decimals: int) -> str:
    """Times as a text array in ms: ``[812.3, 41.2, 40.9]``."""
    return f"[{', '.join(fixed_milliseconds(time_s, decimals) for time_s in times_s)}]"


def trace(result: Result) -> Trace:
    """All steps of one measured result."""
    cell = result.cell
    summary = cell.summary(result.state.ddof)
    assert summary is not None, "only measured cells are grouped"
    every = (*cell.warmup_times_s, *cell.step_times_s)
    cost = every[0] / summary.median_s if summary.median_s else None
    return Trace(result, summary, cost, steps_until_steady(every, cell.step_times_s))


NO_COMMUNICATION = "none"
"""The way to share a step in which each rank trains alone."""


class GradientSync(NamedTuple):
    """The phase gradient sync over measured steps. `last` is, of each step, that of the rank that comes to it last: all
    ranks leave it together, so that the others' includes their wait for this one. `wait` is how much longer the phase
    is on the rank that comes first."""

    last: Summary
    wait: Summary


def gradient_sync(runs: Iterable[Result], ddof: int) -> GradientSync | None:
    """That of all measured runs together; None where no wrapper synchronises after backward."""
    of_runs = [run.cell.times.rank_sync_s for run in measured(runs)]
    last_s = [min(step) for ranks in of_runs for step in zip(*ranks, strict=True)]
    if not last_s:
        return None
    return GradientSync(summarize(last_s, ddof), summarize([wait for ranks in of_runs for wait in skews(ranks)], ddof))


How = Literal["in turns", "repeats"]
FEWEST_REPEATS = 3
"""Runs of a cell and of the same ranks without communication, round after round, that say how much runs differ."""


class Waited(NamedTuple):
    """The communication that the steps of a cell wait for, of so many rounds: of each a process that times the cell and
    the same ranks without communication in turns, or a process of either one after the other (`bench --repeats`)."""

    exposed: Exposed
    rounds: int
    how: How
    level: float = LEVEL


def exposed_communication(results: Sequence[Result]) -> dict[CellSpec, Waited]:
    """By `work_of_ranks`, of each cell that was timed in turns with the same ranks without communication, or that was
    repeated round after round with them. An optimizer of one's own may communicate too: of such cells nothing is
    known."""
    found = dict(_of_repeats(results))
    for rounds in runs_in_turns(results):
        turns = turns_of(rounds)
        spec = turns.communicating.spec
        if (exposed := turns.exposed) and not is_imported(spec.optimizer):
            found[work_of_ranks(spec)] = Waited(exposed, len(turns.counted), "in turns", turns.level)
    return found


def _of_repeats(results: Sequence[Result]) -> Iterator[tuple[CellSpec, Waited]]:
    alone = [each for each in measured(results) if not each.cell.in_turns and each.spec.ranks > 1]
    runs = grouped(alone, lambda each: (each.source, machine(each), work_of_ranks(each.spec)))
    for (source, where, work), several in runs.items():
        silent = msgspec.structs.replace(work, parallel=NO_COMMUNICATION)
        if work == silent or is_imported(work.optimizer):
            continue
        without = {each.cell.repeat: each for each in runs.get((source, where, silent), ())}
        both = [(each, without[each.cell.repeat]) for each in several if each.cell.repeat in without]
        if len(both) < FEWEST_REPEATS:
            continue
        sides = list(zip(*both, strict=True))
        step_s, silent_s = (fmean(each.cell.running.mean for each in side) for side in sides)
        if ratio := ratio_of(runs_of(sides[0]), runs_of(sides[1])):
            yield work, Waited(Exposed.of("A", step_s, silent_s, ratio), len(both), "repeats")


def work_of_ranks(spec: CellSpec) -> CellSpec:
    """Equal for cells whose steps do the same, whatever their number."""
    return msgspec.structs.replace(
        spec, warmup_steps=0, measure_steps=1, warmup_auto=False, steps_auto=None, warmup_for=None, steps_for=None,
        seed=0, model_path=(),
    )  # fmt: skip


def one_rank_of(spec: CellSpec) -> CellSpec:
    """By `work_of_ranks`, the cell of one rank beside which this one is said to scale; of one rank itself."""
    return msgspec.structs.replace(
        work_of_ranks(spec), ranks=1, parallel=NO_COMMUNICATION, backend="auto", batch_is="per-rank"
    )


def speed_up(spec: CellSpec, one_s: float, several_s: float) -> float:
    """Tokens/s of all ranks over those of one, from the time of a step on one rank and on these. Each rank has a batch
    of its own (weak scaling), or all divide one (strong)."""
    return one_s / several_s * (1 if spec.batch_is == "global" else spec.ranks)


def efficiency(spec: CellSpec, one_s: float, several_s: float) -> float:
    """The speed-up over the number of ranks: T1 / Tn for weak scaling, T1 / (n Tn) for strong."""
    return speed_up(spec, one_s, several_s) / spec.ranks
