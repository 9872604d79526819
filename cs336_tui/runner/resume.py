"""Decides which cells of a session wait again when it is resumed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cs336_tui import __version__
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.environment import Environment
from cs336_tui.events.events import (
    CellRequeued,
    CellSkipped,
    ChildOutput,
    DeviceSampled,
    EnvironmentRead,
    Event,
    SessionResumed,
    StepsTimed,
)
from cs336_tui.runner.queue import why_unusable
from cs336_tui.runner.trust import check_log
from cs336_tui.session.log import LogError, LogReader, SkippedLines, line_prefix
from cs336_tui.session.state import SessionState, fold

BROKEN_OFF = "broken off: cells in turns cannot go on one by one"
_PASSED_OVER = tuple(line_prefix(kind) for kind in (StepsTimed, DeviceSampled, ChildOutput))


def check_imports(session: str, log: Path, *, failed: bool) -> None:
    """Raises `Untrusted` for cells that wait once the session goes on, before torch is imported to ask for devices."""
    history = (event for event in LogReader(log).skim(_PASSED_OVER) if not isinstance(event, SkippedLines))
    state, _ = go_on(history, log, None, failed=failed, now=0.0)
    check_log(session, left_of(state), trusted=False)


def go_on(
    history: Iterable[Event],
    log: Path,
    environment: Environment | None,
    *,
    failed: bool,
    now: float,
    checked: bool = True,
) -> tuple[SessionState, list[Event]]:
    """The resumed session, its cells without a result waiting again, and the new events of its log. With `failed` those
    that failed or were killed wait too, and those that were skipped for them. Of a race, turns that were broken off are
    dropped. Raises `LogError` for another session whose cells cannot go on one by one and, if `checked`, `SpecError`
    when this machine cannot run one of them; without an `environment` nothing is known of it."""
    state = fold(history)
    again = ("cancelled", "failed", "killed") if failed else ("cancelled",)
    skipped = _skipped_with_failed(state) if failed else set()
    dropped = {cell.cell for cell in state.cells.values() if state.tuning and cell.queued_in_turns and cell.is_left}
    wanted = {cell.cell for cell in state.cells.values() if cell.status in again} | skipped
    went_on: list[Event] = [
        SessionResumed(at=now, app=__version__),
        *([EnvironmentRead(at=now, environment=environment)] if environment else []),
        *(CellSkipped(at=now, cell=cell, reason=BROKEN_OFF) for cell in sorted(dropped)),
        *(CellRequeued(at=now, cell=cell) for cell in sorted(wanted - dropped)),
    ]
    for event in went_on:
        state.apply(event)
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


def _skipped_with_failed(state: SessionState) -> set[int]:
    """The cells that were skipped because a failed one could not use code that they need."""
    ends = [cell.finished for cell in state.cells.values() if cell.finished and cell.status == "failed"]
    reasons = {why_unusable(end.unusable, end.cell) for end in ends if end.unusable}
    return {cell.cell for cell in state.cells.values() if cell.status == "skipped" and cell.skipped_because in reasons}
