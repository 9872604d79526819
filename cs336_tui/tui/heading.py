"""The top line: which session this is, and on what machine."""

from __future__ import annotations

from cs336_tui.events.environment import Environment
from cs336_tui.session.state import SessionState
from cs336_tui.tui import format
from cs336_tui.tui.widgets.lines import Line, line, spread, width_of


def heading(state: SessionState, session: str, mode: str, width: int) -> Line:
    """Session (and `mode`, such as ``replay ×2``) on the left; device, driver and torch on the right as they fit."""
    session = format.plain(state.name or format.session_time(state.started.session if state.started else session))
    left = line(
        ("cs336-tui", "title"),
        *([(f" · session {session}", "text")] if session else []),
        *([(f" · {mode}", "caution")] if mode else []),
    )
    if width_of(left) > width:
        left = line(("cs336-tui", "title"), *([(f" · {mode}", "caution")] if mode else []))
    if state.environment is None:
        return spread(left, line(("reading this machine ...", "muted")), width)
    parts = _machine(state.environment, state)
    while len(parts) > 1 and width_of(left) + len(" · ".join(parts)) + 2 > width:
        parts.pop(-2 if len(parts) > 2 else -1)
    return spread(left, line((" · ".join(parts), "text")), width)


def _machine(environment: Environment, state: SessionState) -> list[str]:
    """The device in use (else the best one), its driver, torch."""
    cell = state.running_cell
    name = cell.spec.device if cell else environment.resolve(("auto",))[0]
    info = environment.device(name)
    parts = [info.label if info else name]
    if environment.driver:
        parts.append(f"driver {environment.driver}")
    parts.append(f"torch {environment.torch}" if environment.torch else "no torch")
    return parts
