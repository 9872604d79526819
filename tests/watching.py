"""Help for tests that follow a session's events as they happen."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from cs336_tui.config.processes import lives
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import Event
from cs336_tui.session.state import SessionState, fold
from cs336_tui.session.states import CellState
from tests.samples import a_spec

PATIENCE_S = 60.0
"""Time limit of every wait. Far longer than anything should take; a test that reaches it fails."""


class Watch:
    """A sink that keeps every event and lets a test wait for one."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.state = SessionState()
        self.on_event: Callable[[Event], object] = lambda _event: None
        """Called with every event, on the thread that it came on."""
        self._changed = threading.Condition()

    def __call__(self, events: Sequence[Event]) -> None:
        for event in events:
            self.on_event(event)
        with self._changed:
            self.events.extend(events)
            fold(events, self.state)
            self._changed.notify_all()

    def until(self, predicate: Callable[[SessionState], Any]) -> Any:
        """Wait until `predicate` of the state is true; returns what it returned."""
        with self._changed:
            found = self._changed.wait_for(lambda: predicate(self.state), PATIENCE_S)
        assert found, "nothing happened for a minute"
        return found

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def small_spec(**changes: Any) -> CellSpec:
    """A model whose step takes about a millisecond on any machine."""
    shape = {"size": "custom", "d_model": 32, "d_ff": 64, "num_layers": 1, "num_heads": 2, "vocab_size": 64}
    fields: dict[str, Any] = {"context_length": 8, "batch_size": 1, "pass_": "forward", "device": "cpu"}
    fields |= {"warmup_steps": 1, "measure_steps": 3, "threads": 1}  # on a busy machine two wait for one another
    fields |= {"check": "off"}  # which takes a third of the cell's time
    return a_spec(**shape | fields | changes)


def endless_spec(**changes: Any) -> CellSpec:
    """A cell that runs far longer than a test needs to disturb it."""
    return small_spec(**({"measure_steps": 10_000_000} | changes))


def ample_timeout_s(ended: CellState, at_least: float) -> float:
    """Time limit of a small cell on this machine under its present load: many times the run time of this one."""
    return round(max(at_least, 20 * (ended.finished.at - ended.started_at)), 1)


def is_gone(pid: int) -> bool:
    """True if no process of that pid is left; a zombie counts as gone."""
    return not lives(pid)


def wait_gone(pid: int, timeout_s: float = 10.0) -> bool:
    """Wait until the process has ended."""
    try:
        psutil.Process(pid).wait(timeout_s)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return is_gone(pid)
    return True
