"""The Race tab: the candidates of a search with their shrinking intervals, who is out and why, and the winner."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Horizontal

from cs336_tui.analysis.tuning import Entry
from cs336_tui.export.subjects.tuning import race_table
from cs336_tui.session.state import SessionState
from cs336_tui.tui.dialogs.windows import Reader
from cs336_tui.tui.keys import bind, key_name, tab_name
from cs336_tui.tui.requests import requests_of
from cs336_tui.tui.tabs import race_lines
from cs336_tui.tui.tabs.race_lines import VIEWS, Order, Raced
from cs336_tui.tui.widgets.columns import Copied, copied_table
from cs336_tui.tui.widgets.entries import PushButton
from cs336_tui.tui.widgets.lines import Line, line, wrapped
from cs336_tui.tui.widgets.rows import Rows

_BEGINS = ("A race begins.", "What cannot run here, and what does not fit by prediction, is left out first.")


class RacePane(Container):
    """Rows keep their order and the cursor its candidate within a round."""

    DEFAULT_CSS = """
    RacePane {
        layout: vertical;
        #race-rows { height: 1fr; width: 1fr; }
        #race-buttons { height: 1; display: none; }
        #race-buttons PushButton { margin-right: 1; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("view", "view(1)", "View", "race.view"),
        bind("view-before", "view(-1)", "Previous view", "race.view_before", show=False),
        bind("axis", "zoom", "Zoom axis", "race.zoom"),
        bind("save", "save", "Save the best", "race.save"),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._rows = Rows(id="race-rows")
        self._shown: Raced | None = None
        self._state = SessionState()
        self._view, self._zoomed = VIEWS[0], False
        self._order = Order()
        self._on: int | None = None
        """The candidate to which the cursor was moved; None: it stays on the best."""

    def compose(self) -> ComposeResult:
        yield self._rows
        with Horizontal(id="race-buttons"):
            yield PushButton("Save as preset", id="race-save")
            yield PushButton("Copy command", id="race-copy")

    def copied(self) -> Copied | None:
        """The ranking."""
        return copied_table("The race", race_table(self._shown.race, self._state.cells)) if self._shown else None

    def show(self, state: SessionState, shown: Raced | None, *, begins: bool = False) -> None:
        """Paint the race; None: the session has none, or one `begins`."""
        if not self.is_mounted:
            return
        could = self._can
        self._state, self._shown = state, shown
        if shown is not None:
            before, self._order = self._order, self._order.now(state, shown)
            if self._order is not before:
                self._follow()
        self._paint(begins=begins)
        if could != self._can:
            self.refresh_bindings()

    def _follow(self) -> None:
        """Put the cursor on the candidate to which it was moved, or on the first row."""
        numbers = self._order.numbers if self._view == VIEWS[0] else ()
        self._rows.cursor = numbers.index(self._on) if self._on in numbers else 0

    @property
    def _best(self) -> Entry | None:
        return self._shown.race.best if self._shown else None

    @property
    def _entries(self) -> list[Entry]:
        """The candidates in the order of the rows."""
        by_number = {entry.number: entry for entry in self._shown.race.entries} if self._shown else {}
        return [by_number[number] for number in self._order.numbers if number in by_number]

    def _paint(self, *, begins: bool = False) -> None:
        rows, shown = self._rows, self._shown
        width, height = rows.content_size
        buttons = self.query_one("#race-buttons")
        buttons.display = shown is not None and shown.is_over and shown.race.best is not None
        if shown is None:
            choose = f"Tick several values of choices in {tab_name('configure')} and press {key_name('app.tune')}"
            text = f"{choose}: their combinations are raced, and the best is found."
            title, text = _BEGINS if begins else ("No race in this session.", text)
            rows.fill((), [(), line((title, "strong")), (), *wrapped(text, width, "muted")])
            return
        race, view = shown.race, self._view
        if view != VIEWS[0]:
            drawn = race_lines.gains(race, width) if view == "gains" else race_lines.not_tried(race, width)
            rows.fill(drawn, [*race_lines.heading(shown, view, width, height), ()])
            return
        entries = self._entries
        below = race_lines.below(shown, entries[min(rows.cursor, len(entries) - 1)], width, height)
        columns, axis = race_lines.columns_of(race, width), race_lines.scale(race, zoomed=self._zoomed)
        fixed = [*race_lines.heading(shown, view, width, height), race_lines.column_names(columns, axis)]
        if len(fixed) + len(entries) + len(below) > height:
            fixed[0] = race_lines.first_line(
                race, view, width - len(f"  {len(entries)}–{len(entries)} of {len(entries)}")
            )

        def draw(first: int, last: int) -> tuple[list[Line], list[Line]]:
            return fixed, [
                race_lines.row(race, entry, columns, axis, runs=entry.number in shown.running)
                for entry in entries[first:last]
            ]

        rows.draw_from(len(entries), draw, heading_rows=len(fixed), below=below)

    @property
    def _can(self) -> tuple[bool, bool]:
        """True of what keys do where there is a race, and where one was measured."""
        return self._shown is not None, self._best is not None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        has_race, has_best = self._can
        return {"view": has_race, "zoom": has_race, "save": has_best}.get(action, True)

    def action_view(self, by: int) -> None:
        self._view = VIEWS[(VIEWS.index(self._view) + by) % len(VIEWS)]
        self._follow()
        self._paint()

    def action_zoom(self) -> None:
        self._zoomed = not self._zoomed
        self._paint()

    def action_save(self) -> None:
        if self._shown is not None and (best := self._best) is not None:
            requests_of(self).save_best(self._shown.race, best)

    def on_push_button_pressed(self, event: PushButton.Pressed) -> None:
        event.stop()
        if event.button.id == "race-save":
            self.action_save()
        elif self._shown is not None and (best := self._best) is not None:
            self.app.copy_to_clipboard(race_lines.command(self._shown.race, best))
            self.app.notify("The command was sent to the terminal's clipboard.", title="Copied")

    @on(Rows.Moved)
    def _moved(self, event: Rows.Moved) -> None:
        event.stop()
        if self._view == VIEWS[0] and event.index < len(self._order.numbers):
            self._on = self._order.numbers[event.index]
        self._paint()

    @on(Rows.Chosen)
    def _chosen(self, event: Rows.Chosen) -> None:
        event.stop()
        entries = self._entries
        if self._shown is not None and self._view == VIEWS[0] and event.index < len(entries):
            state, race, entry = self._state, self._shown.race, entries[event.index]
            title = race_lines.name(race.tuning, entry.spec)
            self.app.push_screen(Reader(title, lambda width: race_lines.detail(state, race, entry, width)))
