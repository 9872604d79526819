"""Communication of training steps of several ranks: what a wrapper does after backward, and what steps wait for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import Literal, NamedTuple

import msgspec

from cs336_tui.analysis.ab import Exposed, runs_in_turns, turns_of
from cs336_tui.analysis.fields import machine
from cs336_tui.analysis.merge import Result, grouped, measured, runs_of
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import is_imported
from cs336_tui.stats.ratio import LEVEL, ratio_of
from cs336_tui.stats.summaries import Summary, skews, summarize

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
        if len(both) >= FEWEST_REPEATS and (exposed := _between(*zip(*both, strict=True))):
            yield work, Waited(exposed, len(both), "repeats")


def _between(cells: Sequence[Result], without: Sequence[Result]) -> Exposed | None:
    """The mean step of the one less that of the other, with the interval that the ratio of their runs' means has."""
    ratio = ratio_of(runs_of(cells), runs_of(without))
    step_s, silent_s = (fmean(each.cell.running.mean for each in several) for several in (cells, without))
    if ratio is None:
        return None
    low, high = (None if bound is None else step_s * (1 - 1 / bound) for bound in (ratio.low, ratio.high))
    return Exposed(side="A", mean_s=step_s - silent_s, low_s=low, high_s=high, step_s=step_s)


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
