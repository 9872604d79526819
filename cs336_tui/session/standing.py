"""Progress of a session: its steps, the cells without a result, and whether it runs, was stopped or is done."""

from __future__ import annotations

import re
import time
from typing import Literal

import msgspec

from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import counted

Stage = Literal["empty", "running", "stopped", "killed", "done"]
"""``stopped``: cells or the rest of a race are left, by somebody's will. ``killed``: the process that ran them ended
without a word."""


class Standing(msgspec.Struct, frozen=True):
    """The progress of a session; steps and cells that were skipped do not count."""

    stage: Stage
    steps_done: int
    steps_total: int
    left: int
    """Cells without a result, which resuming runs."""
    race_left: bool = False
    """True if it has a race without an end, which resuming goes on with."""

    @property
    def can_resume(self) -> bool:
        """True if nobody runs it and something is left."""
        return self.stage in ("stopped", "killed")

    @property
    def words(self) -> str:
        """Such as ``stopped at 77/120 steps``; empty without cells."""
        if self.stage in ("empty", "done"):
            return "" if self.stage == "empty" else "done"
        if self.race_left:
            return f"{self.stage} in a race"
        return f"{self.stage} at {self.steps_done}/{counted(self.steps_total, 'step')}"

    @property
    def cells_left(self) -> str:
        """Such as ``3 cells left``."""
        if self.race_left:
            return "a race is left"
        return f"{self.left} cell{'s' * (self.left != 1)} left"


def standing_of(state: SessionState, *, runs: bool) -> Standing:
    """The standing of a session; `runs`: a process is there that runs what waits, or jobs are."""
    left = sum(cell.is_left for cell in state.cells.values())
    race_left = state.has_unfinished_race
    return Standing(_stage(state, left, runs), state.steps_done, state.steps_total, left, race_left)


def _stage(state: SessionState, left: int, runs: bool) -> Stage:
    if state.has_unfinished_race:
        was_stopped = state.ended is not None or any(cell.status == "cancelled" for cell in state.cells.values())
        return "running" if runs else "stopped" if was_stopped else "killed"
    if not state.cells:
        return "empty"
    if not left:
        return "done"
    if not (state.running or state.waiting):
        return "stopped"
    return "running" if runs else "killed" if state.ended is None else "stopped"


def session_time(session: str, started_at: float | None = None) -> str:
    """``2026-11-20 14:03``, when a session named ``2026-11-20T14-03-22-ab12`` began, by the clock of its machine; of
    one with another name `started_at` (Unix time) by the clock of this machine; empty if neither is known."""
    if match := re.fullmatch(r"(\d{4}-\d{2}-\d{2})T(\d{2})-(\d{2})-\d{2}(-\w+)?", session):
        return f"{match[1]} {match[2]}:{match[3]}"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(started_at)) if started_at else ""
