"""A pane alone on a screen, and the subjects of the Memory tab."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from textual import on
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widget import Widget

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import Event
from cs336_tui.events.reports import MemoryReport
from cs336_tui.session.state import SessionState
from cs336_tui.tui.dialogs.windows import Reader
from cs336_tui.tui.preferences import VARIABLE_DEFAULTS
from cs336_tui.tui.tabs.memory import MemoryPane
from cs336_tui.tui.tabs.report import Subject
from cs336_tui.tui.widgets.lines import Lines
from cs336_tui.tui.widgets.rows import Rows
from tests.made_memory import MB, a_memory_report, an_oom_report
from tests.samples import MEASURED_S, a_spec, cell_end, cell_start, report_events, session_start, state_of, steps
from tests.tui.configuring import STYLES, Asked, recording
from tests.tui.watched import comes

P = TypeVar("P", bound=Widget)
COMPACT, PANEL, LARGE = (80, 20), (118, 12), (198, 22)
"""Sizes of the tab in terminals of 80x24, 120x40 and 200x60."""
SPEC = a_spec(pass_="train-step")


class OnePane(App[None], Generic[P]):
    """An app with a pane alone, which shows its subject, if there is one, and again when its size changes."""

    CSS_PATH = STYLES

    def __init__(self, pane: P, subject: Subject | None = None) -> None:
        super().__init__()
        self.pane, self.subject = pane, subject
        self.asked: Asked = []
        self.requests = recording(self.asked)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return VARIABLE_DEFAULTS

    def compose(self) -> ComposeResult:
        yield self.pane

    @on(Lines.Resized)
    def paint(self) -> None:
        if self.subject is not None:
            self.pane.show(self.subject)  # type: ignore[attr-defined]

    async def about(self, pilot: Pilot[None], subject: Subject) -> str:
        """Show another subject; returns the tab's text."""
        self.subject = subject
        self.paint()
        await pilot.pause()
        return str(self.pane.text)  # type: ignore[attr-defined]


@asynccontextmanager
async def showing(
    pane: P, subject: Subject | None = None, size: tuple[int, int] = COMPACT
) -> AsyncIterator[tuple[Pilot[None], P, OnePane[P]]]:
    """The pane with the focus, in a terminal of this size."""
    app = OnePane(pane, subject)
    async with app.run_test(size=size) as pilot:
        pane.focus()
        await pilot.pause()
        yield pilot, pane, app


async def pressed(pilot: Pilot[None], *keys: str) -> str:
    """The text of the pane after these keys."""
    await pilot.press(*keys)
    await pilot.pause()
    return str(pilot.app.pane.text)  # type: ignore[attr-defined]


async def read(pilot: Pilot[None], *keys: str) -> str:
    """The text of the window that these keys open."""

    def shown() -> str:
        screen = pilot.app.screen
        return "".join(rows.text for rows in screen.query(Rows)) if isinstance(screen, Reader) else ""

    await pilot.press(*keys)
    return await comes(pilot, shown)


def timed(cell: int, **end: Any) -> list[Event]:
    return [*cell_start(cell), *steps(cell, (), MEASURED_S), cell_end(cell, **end)]


def session(*more: Event, specs: tuple[CellSpec, ...] = (SPEC,)) -> SessionState:
    return state_of([*session_start(specs), *timed(0, peak_allocated_bytes=305 * MB), *more])


def about(report: MemoryReport) -> Subject:
    """A session whose one cell has this report."""
    return Subject(session(*report_events(report, cell=0), specs=(report.spec,)), report.spec, 0, can_ask=True)


@asynccontextmanager
async def recorded(
    report: MemoryReport | None = None, size: tuple[int, int] = COMPACT
) -> AsyncIterator[tuple[Pilot[None], MemoryPane, OnePane[MemoryPane]]]:
    """The Memory tab of a session whose one cell has this report."""
    async with showing(MemoryPane(), about(report or a_memory_report()), size) as shown:
        yield shown


def out_of_memory(*more: Event) -> Subject:
    spec = an_oom_report().spec
    ended = cell_end(
        0, "oom", error="CUDA out of memory: tried to allocate 2 GiB", stage="warm-up", step=0, phase="forward"
    )
    return Subject(state_of([*session_start([spec]), *cell_start(0), ended, *more]), spec, 0, can_ask=True)
