"""The work left in a session: cells that wait again when it is resumed, reports that were asked for with cells."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import cast

from cs336_tui import __version__
from cs336_tui.config.order import variant_kind
from cs336_tui.config.spec import PASSES, CellSpec
from cs336_tui.config.sweep import AskedReport
from cs336_tui.events import events as ev
from cs336_tui.events.environment import Environment
from cs336_tui.events.prediction import report_key
from cs336_tui.runner.queue import WaitingReport, why_unusable
from cs336_tui.runner.trust import check_log
from cs336_tui.session.log import LogError, LogReader
from cs336_tui.session.state import SessionState, fold

BROKEN_OFF = "broken off: cells in turns cannot go on one by one"


def check_imports(session: str, log: Path, *, failed: bool) -> None:
    """Raises `Untrusted` for cells that wait once the session goes on, before torch is imported to ask for devices."""
    history = LogReader(log).without(ev.StepsTimed, ev.DeviceSampled, ev.ChildOutput)
    state, _ = go_on(history, log, None, failed=failed, now=0.0)
    check_log(session, left_of(state), trusted=False)


def go_on(
    history: Iterable[ev.Event],
    log: Path,
    environment: Environment | None,
    *,
    failed: bool,
    now: float,
    checked: bool = True,
) -> tuple[SessionState, list[ev.Event]]:
    """The resumed session, its cells without a result waiting again, and the new events of its log. With `failed` those
    that failed or were killed wait too, and those that were skipped for them. Of a race, turns that were broken off are
    dropped. Raises `LogError` for another session whose cells cannot go on one by one and, if `checked`, `SpecError`
    when this machine cannot run one of them; without an `environment` nothing is known of it."""
    state = fold(history)
    again = ("cancelled", "failed", "killed") if failed else ("cancelled",)
    ends = (cell.finished for cell in state.cells.values() if cell.finished and cell.status == "failed")
    # Of those that were skipped because a failed one could not use code that they need.
    reasons = {why_unusable(end.unusable, end.cell) for end in ends if end.unusable} if failed else set()
    dropped = {cell.cell for cell in state.cells.values() if state.tuning and cell.queued_in_turns and cell.is_left}
    wanted = {cell.cell for cell in state.cells.values() if cell.status in again or cell.skipped_because in reasons}
    went_on: list[ev.Event] = [
        ev.SessionResumed(at=now, app=__version__),
        *([ev.EnvironmentRead(at=now, environment=environment)] if environment else []),
        *(ev.CellSkipped(at=now, cell=cell, reason=BROKEN_OFF) for cell in sorted(dropped)),
        *(ev.CellRequeued(at=now, cell=cell) for cell in sorted(wanted - dropped)),
    ]
    fold(went_on, state)
    if state.waiting and (command := next((each for each in state.commands if each.startswith("cs336-tui ab ")), None)):
        raise LogError(f"{log.name}: cells in turns cannot go on one by one; run again: {command}")
    if checked and environment:
        for cell in state.waiting:
            environment.check(state.cells[cell].spec)
    return state, went_on


def left_of(state: SessionState) -> tuple[CellSpec, ...]:
    """The cells that a resumed session runs: those that wait, and the candidates of a race that is not over."""
    waiting = (state.cells[cell].asked_spec for cell in state.waiting)
    return (*waiting, *(state.tuning.candidates if state.tuning and state.has_unfinished_race else ()))


class WantedReports:
    """The kinds of reports that were asked for with each cell, and the reports that are due. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[int, tuple[str, ...]] = {}
        self._due: dict[Hashable, WaitingReport] = {}
        self._made: set[Hashable] = set()

    def want(self, cells: Iterable[int], kinds: tuple[str, ...]) -> None:
        with self._lock:
            self._kinds |= dict.fromkeys(cells, kinds)

    def restore(self, state: SessionState) -> tuple[CellSpec, ...]:
        """Take over a session that goes on: what it has not made yet is due. Returns the cells that it is of."""
        with self._lock:
            self._kinds = dict(state.wanted)
            self._made = {_key(each.kind, each.spec) for each in state.reports.values() if each.status == "ok"}
        for cell in state.cells.values():
            if cell.status == "ok":
                self.ended_well(cell.cell, cell.spec)
        return tuple(report.spec for report in self._due.values())

    def ended_well(self, cell: int, spec: CellSpec) -> None:
        with self._lock:
            for kind in self._kinds.get(cell, ()):
                key, report = _key(kind, spec), WaitingReport(cast(AskedReport, kind), spec, cell)
                before = self._due[key].spec if key in self._due else None
                # Of the same model, more of a training step tells more.
                more = before and spec.dims == before.dims and PASSES.index(spec.pass_) > PASSES.index(before.pass_)
                if key not in self._made and (before is None or more):
                    self._due[key] = report

    def later(self, report: WaitingReport) -> None:
        """Have a report of a cell made once no cell waits any more, though none of its kind was asked for."""
        with self._lock:
            self._due[report.kind, report.cell] = report

    def take(self) -> tuple[WaitingReport, ...]:
        """The reports that are due; they count as made."""
        with self._lock:
            due, self._due = self._due, {}
            self._made |= due.keys()
            return tuple(due.values())

    def forget(self) -> None:
        """Nothing is due any more, nor will be for a cell that is ending now."""
        with self._lock:
            self._kinds, self._due = {}, {}


def _key(kind: str, spec: CellSpec) -> Hashable:
    """Equal for reports that tell the same: of dtypes the smallest model tells what all of its kind do."""
    if kind == "precision":
        return kind, spec.device, spec.precision, spec.arch, spec.model_args, variant_kind(spec)
    return kind, report_key(spec)
