"""The time limit of a whole run from empty caches (the choice `within`): what its steps leave for start-up, compiling
and autotuning."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from cs336_tui.analysis.tuning import Entry
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.tuning import Tuning
from cs336_tui.session.states import CellState


class TimeRule(NamedTuple):
    """A whole run of a candidate within its limit, s. `steps_s` are its warm-up and measured steps; None is unknown, of
    a forecast it is the least. `start_s` is what comes before them but for compiling."""

    limit_s: float
    steps_s: float | None
    start_s: float | None = None
    compile_s: float | None = None

    @property
    def left_s(self) -> float | None:
        """Seconds that are left for compiling and autotuning, and for start-up where that is unknown."""
        return None if self.steps_s is None else self.limit_s - self.steps_s - (self.start_s or 0.0)


def forecast_rule(tuning: Tuning, spec: CellSpec, least_step_s: float | None) -> TimeRule | None:
    """The rule before anything ran: only the steps are known. None without a limit."""
    run = tuning.as_run(spec)
    return None if run.within is None else TimeRule(run.within, run.steps_s(least_step_s))


def measured_rule(tuning: Tuning, entry: Entry, cells: Sequence[CellState]) -> TimeRule | None:
    """The rule by a candidate's visits; None without a limit, and without a visit that ended well."""
    run = tuning.as_run(entry.spec)
    ended = [cell for cell in cells if cell.status == "ok" and not cell.in_turns]
    steps = [each.median_s for cell in ended if (each := cell.summary(1)) and each.median_s]
    starts = [cell.until_first_step_s for cell in ended if cell.until_first_step_s is not None]
    if run.within is None or not steps:
        return None
    compile_s = entry.compile_s or 0.0
    start_s = max(fmean(starts) - compile_s, 0.0) if starts else None
    return TimeRule(run.within, run.steps_s(fmean(steps)), start_s, compile_s)
