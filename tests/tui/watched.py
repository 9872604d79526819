"""Driving the app in tests: a bench that plays a script, and waiting for what the screen shows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from textual.pilot import Pilot

from cs336_tui.environment import Environment
from cs336_tui.events import (
    SCHEMA,
    CellFinished,
    CellsQueued,
    CellStarted,
    EnvironmentRead,
    Event,
    SessionStarted,
    StepsTimed,
    to_line,
)
from cs336_tui.session.log import LogReader
from cs336_tui.session.recorder import Sink
from cs336_tui.spec import RunSpec
from cs336_tui.sweep import Sweep
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.screen import MainScreen
from tests.samples import ENVIRONMENT, START
from tests.tui.make_log import DEMO_LOG

WIDE = (120, 40)
SMALL = (80, 24)


class ScriptedBench:
    """Stands where the real bench stands, starts no process, and takes its time until it is told to go on."""

    def __init__(self, sink: Sink, environment: Environment = ENVIRONMENT) -> None:
        self.sink, self.environment = sink, environment
        self.log_path = Path("/nowhere/2026-11-20T14-03-42-ab12.jsonl")
        self.ddof, self.timeout_s = 1, None
        self.prepared = self.closed = False
        self.go_on, self.stopped = threading.Event(), threading.Event()
        self.refuse: Exception | None = None
        self.commands: list[str] = []

    def prepare(self) -> None:
        self.prepared = True

    def probe(self) -> Environment:
        self.sink([EnvironmentRead(at=START, environment=self.environment)])
        return self.environment

    def resolve(self, sweep: Sweep) -> Sweep:
        return sweep.with_devices(self.environment.resolve(sweep.devices))

    def run(self, specs: Sequence[RunSpec], command: str) -> None:
        if self.refuse:
            raise self.refuse
        self.commands.append(command)
        self.sink([SessionStarted(at=START, schema=SCHEMA, session=self.log_path.stem, app="0")])
        self.sink([CellsQueued(at=START, first=0, specs=tuple(specs), command=command, ddof=self.ddof)])
        self.sink([CellStarted(at=START + 1, cell=0, pid=1)])
        while not (self.go_on.wait(0.01) or self.stopped.is_set()):
            pass
        status = "cancelled" if self.stopped.is_set() else "ok"
        for cell in range(len(specs)):
            if status == "ok":
                self.sink([CellStarted(at=START + 2, cell=cell), a_step(cell, 0.1532)])
            self.sink([CellFinished(at=START + 3, cell=cell, status=status)])

    def cancel(self) -> None:
        self.stopped.set()

    def close(self) -> None:
        self.closed = True
        self.stopped.set()


def a_step(cell: int, time_s: float, first: int = 0, kind: str = "measured") -> StepsTimed:
    return StepsTimed(at=START + 2, cell=cell, kind=kind, first=first, times_s=(time_s,))


def demo(until: Callable[[Event], bool] | None = None) -> list[Event]:
    """The demo session's events, up to the first one that satisfies `until`, it included."""
    events: list[Event] = []
    for event in LogReader(DEMO_LOG):
        events.append(event)
        if until and until(event):
            break
    return events


def in_the_middle(event: Event) -> bool:
    """Six measured steps into the sixth cell of the demo session."""
    return isinstance(event, StepsTimed) and (event.cell, event.kind, event.first) == (5, "measured", 5)


def log_of(events: Iterable[Event], folder: Path) -> Path:
    path = folder / "session.jsonl"
    path.write_bytes(b"".join(map(to_line, events)))
    return path


def screen_text(app: Cs336App) -> str:
    """What the terminal shows, rows joined by newlines."""
    return "\n".join("".join(s.text for s in strip) for strip in app.screen._compositor.render_strips())


def main(app: Cs336App) -> MainScreen:
    screen = app.screen_stack[0]
    assert isinstance(screen, MainScreen)
    return screen


async def until(pilot: Pilot[None], seen: str | Callable[[str], bool]) -> str:
    """Let the app work until its screen shows the text (or satisfies the predicate); the screen."""
    app = pilot.app
    assert isinstance(app, Cs336App)
    wanted = (lambda text: seen in text) if isinstance(seen, str) else seen
    for _ in range(500):
        await pilot.pause(0.01)
        if len(app.screen_stack) == 1:
            app.paint()
            await pilot.pause()
        text = screen_text(app)
        if wanted(text):
            return text
    raise AssertionError(f"{seen!r} did not appear; the screen was:\n{screen_text(app)}")
