"""Runs a race on a bench: asks what comes next, queues visits, checks and turns, and keeps the budget."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import chain

from cs336_tui import __version__
from cs336_tui.config.order import Checks, Finish, Step, Turns, Visits
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.tuning import BUDGET_ENDED
from cs336_tui.events.events import CellSkipped, EnvironmentRead, Event, SessionResumed, TuningEnded, TuningStarted
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.pipes import beside
from cs336_tui.runner.queue import WaitingReport
from cs336_tui.runner.resume import BROKEN_OFF
from cs336_tui.session.state import SessionState, check_s, fold, visit_s, visits_of
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import duration

_OVERTIME, _STOPS_IN_S = 0.1, 2.0
"""Share of the budget after which what still runs is stopped; sooner where that, in so many seconds, would come to
twice the share."""
_CHECKING = 0.2
"""Share of the budget, at most, that the first round leaves for the check of the best."""
_LONGEST_VISIT = 0.5
"""Share of what is left of the budget that a candidate's first visit may take, as another one hangs."""

Decide = Callable[[SessionState, float], Step]
"""The next step of a session's race, of whose budget so many seconds are left."""


class Tuner:
    """A race on this bench. `decide` says what comes next; `began` is when its budget began, by `time.monotonic`. `run`
    and `go_on` block; `Bench.cancel` and `stop` end them from any thread, and the race has no end then. Its `state` is
    the session's from then on, until the race ends or `close` is called."""

    def __init__(self, bench: Bench, decide: Decide, *, began: float | None = None) -> None:
        self._bench, self._decide = bench, decide
        self._began = time.monotonic() if began is None else began
        self._stopped = threading.Event()
        self._timeout_s = bench.timeout_s
        self.state = SessionState()
        self.close = bench.listen(self.recall)
        """Hears no more of the session; the race cannot go on then."""

    def recall(self, events: Sequence[Event]) -> None:
        """Take what happened in the session, which its bench does not tell."""
        fold(events, self.state)

    def stop(self) -> None:
        """Begin no other step; `Bench.cancel` ends the one that runs, too."""
        self._stopped.set()

    def run(self, started: TuningStarted, command: str) -> None:
        """Race the candidates of a search, which `analysis.shortlist` chose. Raises like `Bench.run`."""
        # A session whose log is open does not tell its machine again, by which the samples of a cell's GPU are known.
        self.recall([EnvironmentRead(at=time.time(), environment=self._bench.probe())])
        self._bench.record(started)
        self._race(command)

    def go_on(self) -> None:
        """Go on with the race of a session that was resumed, with the rest of its budget; nothing if it has no
        unfinished one."""
        if self.state.has_unfinished_race:
            if self._stopped.is_set():  # here, so that the break is told
                self._bench.record(SessionResumed(at=time.time(), app=__version__))
            self._skip([cell for cell in self._cancelled if cell.queued_in_turns], BROKEN_OFF)
            self._stopped.clear()
            self._began = time.monotonic() - self.state.races[-1].spent_s
            self._race(None)

    @property
    def left_words(self) -> str:
        """The rest of the budget of a race that was resumed, such as ``43 s``."""
        return duration(max(self._budget_s - self.state.races[-1].spent_s, 0.0))

    @property
    def _begun(self) -> TuningStarted:
        assert self.state.tuning is not None, "a race was begun"
        return self.state.tuning

    @property
    def _budget_s(self) -> float:
        return self._begun.tuning.budget_s

    def _race(self, command: str | None) -> None:
        candidates = self._begun.candidates
        with self._bench.in_parts(self._stopped), self._within_budget():
            self._visit()  # what waits in a session that goes on
            while not self._stopped.is_set():
                match self._decide(self.state, self._left_s):
                    case Finish(reason):
                        self._bench.record(TuningEnded(at=time.time(), reason=reason))
                        self.close()
                        return
                    case Visits(numbers, round_):
                        self._bench.add([(candidates[number], round_) for number in numbers], command)
                        command = None
                        self._visit()
                    case Checks(specs):
                        for spec in specs:  # what cannot run fails as a report
                            self._bench.queue.ask(WaitingReport("agreement", spec, None))
                        self._bench.work()
                    case Turns(a, b):
                        visited = visits_of(self.state)
                        first = max(cell.repeat for each in (a, b) for cell in visited[each]) + 1
                        self._bench.run_ab(candidates[a], candidates[b], 1, first=first)
                if not self._stopped.is_set() and self._left_s <= 0:
                    # Visits that the budget ended are no cells that were cancelled: nothing is left to run of them.
                    self._skip(self._cancelled, BUDGET_ENDED)

    @property
    def _left_s(self) -> float:
        """Seconds left of the budget."""
        return self._budget_s - (time.monotonic() - self._began)

    def _visit(self) -> None:
        """Run the visits that wait, but those that do not fit into the rest of the budget."""
        try:
            self._bench.work(self._refuse)
        finally:
            self._bench.timeout_s = self._timeout_s

    def _refuse(self, spec: CellSpec) -> str:
        """The reason not to begin a visit; also limits the time of one that is begun."""
        visited, candidates = visits_of(self.state), self._begun.candidates
        if spec not in candidates:  # a cell from before the race
            return ""
        number, left_s = candidates.index(spec), self._left_s
        ended = {each for each, cells in visited.items() if any(cell.is_over and not cell.in_turns for cell in cells)}
        expected_s = visit_s(visited, candidates, number)
        is_first_round = all(cell.repeat == 1 for cells in visited.values() for cell in cells)
        if ended and is_first_round:  # after which the best is checked
            left_s -= min(2 * check_s(self.state), _CHECKING * self._budget_s)
        if left_s <= 0:
            return BUDGET_ENDED
        if expected_s is not None and expected_s > left_s:
            return f"{BUDGET_ENDED} before it: a visit may take {expected_s:.1f} s, and {left_s:.1f} s were left"
        limits = [self._timeout_s] if self._timeout_s else []
        if number not in ended and expected_s is not None:
            limits.append(round(max(left_s * _LONGEST_VISIT, 2 * expected_s), 1))
        self._bench.timeout_s = min(limits, default=None)
        return ""

    @property
    def _cancelled(self) -> list[CellState]:
        """The visits that were stopped."""
        return [cell for cell in chain.from_iterable(visits_of(self.state).values()) if cell.status == "cancelled"]

    def _skip(self, cells: Sequence[CellState], reason: str) -> None:
        for cell in cells:
            self._bench.record(CellSkipped(at=time.time(), cell=cell.cell, reason=reason))

    def _within_budget(self) -> AbstractContextManager[None]:
        """When the budget ends, no visit that waits is begun; a little later what runs is stopped, and each report that
        waits soon after it began."""
        overtime_s = _OVERTIME * self._budget_s

        def watch(over: threading.Event) -> None:
            if over.wait(max(0.0, self._left_s)):
                return
            self._bench.queue.skip(tuple(self.state.waiting), BUDGET_ENDED)
            wait_s = max(0.0, min(overtime_s, 2 * overtime_s - _STOPS_IN_S))
            while not over.wait(wait_s):
                self._bench.stop_running()
                wait_s = _STOPS_IN_S

        return beside("budget", watch)
