"""The progress of a race: a line a round, and on a terminal the candidate that runs and the budget that is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TextIO

from cs336_tui.analysis.tuning import Entry, Race, race_of
from cs336_tui.cli.progress import RunProgress, bar, cut
from cs336_tui.config.tuning import NOT_AFFORDED, label
from cs336_tui.events.events import (
    CellFinished,
    CellSkipped,
    CellStarted,
    DeviceSampled,
    Event,
    Notice,
    ReportFinished,
    ReportStage,
    ReportStarted,
    StageChanged,
    StepsTimed,
    TuningStarted,
)
from cs336_tui.export.tuning import factor_words
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.session.visits import visits_of
from cs336_tui.stats.quantities import counted, duration

_QUIET_S = 5.0
"""Seconds after which a round that changed nothing has a line all the same."""
_MOST_NAMED = 2
"""The most candidates that a line names."""


class RaceProgress(RunProgress):
    """A line a round instead of a line a cell: who is out and why, the best so far, the budget left; rounds that change
    none of it have one every few seconds. As `RunProgress` where no race goes on."""

    def __init__(self, state: SessionState, stream: TextIO) -> None:
        super().__init__(state, stream)
        self._out: set[int] = set()
        self._best, self._told_best = "", -1
        self._told_at = 0.0

    def show(self, event: Event) -> None:
        if self._race is None:
            super().show(event)
            return
        match event:
            case TuningStarted():
                left_out = f", {counted(len(event.left_out), 'combination')} left out" if event.left_out else ""
                self._line(f"race of {counted(len(event.candidates), 'candidate')}{left_out}; {self._budget()}")
            case CellFinished() | CellSkipped() if not self._state.waiting and not self._state.running:
                if race := race_of(self._state):
                    self._tell(race, self._state.cells[event.cell], event.at)
            case ReportFinished() if event.status != "ok":
                super().show(event)
            case ReportStarted() | ReportStage() if self._live:
                self.say(f"comparing logits and gradients · {self._state.reports[event.report].spec.title}")
            case Notice() | DeviceSampled() | CellStarted() | StageChanged() | StepsTimed():
                super().show(event)

    def _tell(self, race: Race, cell: CellState, at: float) -> None:
        """``round 2: 3 of 8 left; best: sdpa 0.71 [0.70, 0.73]; out: checkpoint 1 (+40 %); 1:20 left``."""
        left = [entry for entry in race.entries if entry.is_alive]
        news = [entry for entry in race.entries if not entry.is_alive and entry.number not in self._out]
        self._out |= {entry.number for entry in news}
        gone = [entry for entry in news if entry.status != "not visited"]
        self._best, best = _best_words(race), race.best.number if race.best else -1
        if not news and best == self._told_best and at - self._told_at < _QUIET_S:
            return
        self._told_best, self._told_at = best, at
        unseen = f"{NOT_AFFORDED} of {len(news) - len(gone)}" if len(news) > len(gone) else ""
        parts = [f"{len(left)} of {len(race.entries)} left", self._best, _out_words(gone), unseen, self._budget()]
        self._line(f"{_place(cell)}: {'; '.join(filter(None, parts))}")

    @property
    def _race(self) -> TuningStarted | None:
        """The race that goes on."""
        return self._state.tuning if self._state.has_unfinished_race else None

    def _budget(self) -> str:
        return f"{duration(self._left_s)} left" if self._left_s > 0 else "the budget is used up"

    @property
    def _left_s(self) -> float:
        return self._race.tuning.budget_s - self._state.race_spent_s if self._race else 0.0

    def _running(self, cell: CellState) -> Iterator[str]:
        """``round 2 · 5/12 · attention sdpa · measured 3/5``."""
        if self._race is None:
            yield from super()._running(cell)
            return
        name = label(self._race.tuning, cell.asked_spec)
        visits = chain.from_iterable(visits_of(self._state).values())
        queued = [each for each in visits if each.repeat == cell.repeat and not each.in_turns]
        place = "" if cell.in_turns else f" · {sum(each.is_over for each in queued) + 1}/{len(queued)}"
        yield cut(f"{_place(cell)}{place} · {name}", f" · {self._stage(cell)}", self._width)

    def _bar(self) -> str:
        if self._race is None:
            return super()._bar()
        share = 1 - self._left_s / self._race.tuning.budget_s
        told = " · ".join(filter(None, (self._best, self._budget())))
        return bar(min(max(share, 0.0), 1.0), told, self._width)


def _place(cell: CellState) -> str:
    return "in turns" if cell.in_turns else f"round {cell.repeat}"


def _best_words(race: Race) -> str:
    best = race.best
    if best is None:
        return "none measured yet"
    if best.number == 0 or best.ratio is None:
        return "best: the starting point"
    return f"best: {best.label} {factor_words(best, 2)}"


def _out_words(gone: Sequence[Entry]) -> str:
    """Some of those that left, first what is not just slower, with the reason, and how many more."""
    if not gone:
        return ""
    first = sorted(gone, key=lambda entry: entry.status in ("out", "cut"))[:_MOST_NAMED]
    named = [f"{entry.label} ({(entry.why or entry.status).partition('; ')[0]})" for entry in first]
    more = len(gone) - len(named)
    return f"out: {', '.join(named)}" + (f" and {more} more" if more else "")
