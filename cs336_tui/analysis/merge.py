"""The cells of one or several sessions side by side, each told apart from every other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.environment import DeviceInfo, Environment
from cs336_tui.events.prediction import report_key
from cs336_tui.events.reports import Report
from cs336_tui.session.state import SessionState, visit_cells
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import counted
from cs336_tui.stats.summaries import Summary, summarize

RECORDED = "recorded"
"""The ending of a cell that others recorded, which has reports and no timed steps."""
ENDINGS = ("OOM", "failed", "killed", "unfinished", "skipped", "not run", RECORDED)
"""Why a cell has no timings, in a word; the most telling first."""
_WORDS = {"oom": "OOM", "failed": "failed", "killed": "killed", "skipped": "skipped", "queued": "not run"}
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items by their key, keys and items in the order in which they come."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


class Result(NamedTuple):
    """One cell and the session that it is of; `source` counts the sessions from 0, `session` is a short title."""

    source: int
    session: str
    state: SessionState
    cell: CellState
    home: Result | None = None
    """The result whose place tables show for a cell without timings; see `grouping.settled`."""

    @property
    def spec(self) -> CellSpec:
        return self.cell.spec

    @property
    def is_measured(self) -> bool:
        """True if it has timings to show: it ended well and has measured steps. What a cell timed before it ran out
        of memory, failed or was stopped is kept in its session, but does not stand beside whole results."""
        return self.cell.status == "ok" and self.cell.running.n > 0

    @property
    def ending(self) -> str:
        """Why it is not measured, one of `ENDINGS`; empty when it is."""
        if self.spec.recording:
            return RECORDED
        return "" if self.is_measured else _WORDS.get(self.cell.status, "unfinished")

    @property
    def environment(self) -> Environment | None:
        """The machine that the cell ran on; for one that has not started, that of its session."""
        return self.cell.environment or self.state.environment

    @property
    def device(self) -> DeviceInfo | None:
        """The device of that machine that the cell ran on; None where it is not known."""
        return self.environment.device(self.spec.device) if self.environment else None


def merge(sessions: Sequence[tuple[str, SessionState]]) -> tuple[Result, ...]:
    """Every cell of every session, given with its title, in order; nothing is dropped or joined, also where several
    sessions have a cell. A title that is taken gets a number: ``laptop``, ``laptop (2)``."""
    titles = _told_apart([title for title, _ in sessions])
    return tuple(
        Result(source, title, state, cell)
        for source, (title, (_, state)) in enumerate(zip(titles, sessions, strict=True))
        for cell in tuple(state.cells.values())  # to which another thread may add
    )


def results_of(*states: SessionState) -> tuple[Result, ...]:
    """The cells of these sessions, each session under its own title."""
    return merge([(title_of(state), state) for state in states])


def without_visits(results: Sequence[Result]) -> tuple[Result, ...]:
    """The results that are not visits of a race. Visits are few steps each, at different times: their race compares
    them within rounds, which no table or figure of single cells does."""
    states = {result.source: result.state for result in results}
    visits = {source: visit_cells(state) for source, state in states.items()}
    return tuple(result for result in results if result.cell.cell not in visits[result.source])


def without_turns(results: Sequence[Result]) -> tuple[tuple[Result, ...], tuple[str, ...]]:
    """The results without those in turns with another cell of cells that were measured alone in the same session, too:
    another model in memory and its steps in between are other conditions. A note says how many these are, if any."""
    alone = {(each.source, each.spec) for each in measured(results) if not each.cell.in_turns}
    kept = tuple(each for each in results if not (each.cell.in_turns and (each.source, each.spec) in alone))
    left = len(results) - len(kept)
    note = f"left out: {counted(left, 'cell')} in turns with another one; the same ran alone, too"
    return kept, (note,) if left else ()


R = TypeVar("R", bound=Report)


def without_cells(
    states: Sequence[SessionState], results: Sequence[Result], kind: type[R]
) -> Iterator[tuple[Result, R]]:
    """A result that was never run for each report of a kind that no cell of its session is of, chosen or not. Visits of
    a race are such cells if they are among the results."""
    titles = {id(result.state): (result.source, result.session) for result in results}
    for number, state in enumerate(states):
        visits = visit_cells(state).difference(each.cell.cell for each in results if each.state is state)
        known = {report_key(cell.spec) for number, cell in state.cells.items() if number not in visits}
        source, title = titles.get(id(state), (number, title_of(state)))
        for report in state.contents(kind):
            if report_key(report.spec) not in known:
                yield Result(source, title, state, CellState(-1, report.spec)), report


def title_of(state: SessionState) -> str:
    """A session's short title: its name, else its id."""
    return state.name or (state.started.session if state.started else "session")


def measured(results: Iterable[Result]) -> tuple[Result, ...]:
    """Those with timings to show."""
    return tuple(result for result in results if result.is_measured)


def ddof_of(results: Iterable[Result]) -> int:
    """The ddof of the results' stds: that of their sessions when these agree, else 1."""
    found = {result.state.ddof for result in results}
    return found.pop() if len(found) == 1 else 1


def runs_of(results: Iterable[Result]) -> tuple[tuple[float, ...], ...]:
    """The measured step times of each measured result, in seconds."""
    return tuple(tuple(result.cell.step_times_s) for result in results if result.is_measured)


def pooled(results: Iterable[Result], ddof: int) -> Summary | None:
    """Summary over the steps of all measured results together, None where there is none. Of a single one it is known
    without its steps, which may be in a file still, but for old logs."""
    found = measured(results)
    if len(found) == 1:
        return found[0].cell.full_summary(ddof)
    return summarize((time_s for run in runs_of(found) for time_s in run), ddof) if found else None


def _told_apart(titles: Sequence[str]) -> list[str]:
    found: list[str] = []
    for title in titles:
        candidate, number = title, 1
        while candidate in found or (number > 1 and candidate in titles):
            number += 1
            candidate = f"{title} ({number})"
        found.append(candidate)
    return found
