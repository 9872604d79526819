"""The Memory tab alone on a screen, and its subjects."""

from __future__ import annotations

from typing import Any

from textual import on
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import Event, ReportFinished, ReportStarted
from cs336_tui.events.reports import MemoryReport, OomReport, Report
from cs336_tui.session.state import SessionState
from cs336_tui.tui.preferences import VARIABLE_DEFAULTS
from cs336_tui.tui.tabs.memory import MemoryPane
from cs336_tui.tui.tabs.report import Subject
from cs336_tui.tui.widgets.lines import Lines
from tests.made_memory import MB, a_memory_report, an_oom_report
from tests.samples import MEASURED_S, START, a_spec, cell_end, cell_start, session_start, state_of, steps
from tests.tui.configuring import STYLES, Asked, recording

COMPACT, PANEL, LARGE = (80, 20), (118, 12), (198, 22)
"""Sizes of the tab in terminals of 80x24, 120x40 and 200x60."""
SPEC = a_spec(pass_="train-step")


class Tab(App[None]):
    """An app with the tab alone, repainted when its size changes."""

    CSS_PATH = STYLES

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject = subject
        self.asked: Asked = []
        self.requests = recording(self.asked)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return VARIABLE_DEFAULTS

    def compose(self) -> ComposeResult:
        yield MemoryPane()

    @property
    def pane(self) -> MemoryPane:
        return self.screen_stack[0].query_one(MemoryPane)

    @on(Lines.Resized)
    def paint(self) -> None:
        self.pane.show(self.subject)

    async def about(self, pilot: Pilot[None], subject: Subject) -> str:
        """Show another subject; returns the tab's text."""
        self.subject = subject
        self.paint()
        await pilot.pause()
        return self.pane.text


async def pressed(pilot: Pilot[None], *keys: str) -> str:
    app = pilot.app
    assert isinstance(app, Tab)
    if not app.pane.has_focus:
        app.pane.focus()
        await pilot.pause()
    await pilot.press(*keys)
    await pilot.pause()
    return app.pane.text


def report_events(content: Report, number: int = 0, cell: int | None = 0) -> list[Event]:
    kind: Any = "oom" if isinstance(content, OomReport) else "memory"
    return [
        ReportStarted(at=START + 50, report=number, kind=kind, spec=content.spec, cell=cell),
        ReportFinished(at=START + 55, report=number, status="ok", content=content),
    ]


def timed(cell: int, **end: Any) -> list[Event]:
    return [*cell_start(cell), *steps(cell, (), MEASURED_S), cell_end(cell, **end)]


def session(*more: Event, specs: tuple[CellSpec, ...] = (SPEC,)) -> SessionState:
    return state_of([*session_start(specs), *timed(0, peak_allocated_bytes=305 * MB), *more])


def recorded(report: MemoryReport | None = None) -> Subject:
    return Subject(session(*report_events(report or a_memory_report())), SPEC, 0, can_ask=True)


def out_of_memory(*more: Event) -> Subject:
    spec = an_oom_report().spec
    ended = cell_end(
        0, "oom", error="CUDA out of memory: tried to allocate 2 GiB", stage="warm-up", step=0, phase="forward"
    )
    return Subject(state_of([*session_start([spec]), *cell_start(0), ended, *more]), spec, 0, can_ask=True)
