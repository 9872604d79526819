"""One entry of a form: a label, something to choose or to type, and what is wrong with it."""

from __future__ import annotations

import textwrap
from typing import ClassVar

from rich.cells import set_cell_size
from rich.segment import Segment
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widgets import Input

from cs336_tui.tui.widgets.styled import Styled

LABEL_WIDTH = 11
"""Columns of the label, the gap after it included."""


class Entry(Styled):
    """Draws the label, rows of content right of it, and below them the problem, folded to the width.

    `field` names the entry as `SpecError` does.
    """

    DEFAULT_CSS = """
    Entry {
        height: auto;
        width: 1fr;
    }
    """

    problem: reactive[str] = reactive("", layout=True)
    """What is wrong, without the field's name; empty when all is well."""

    class Changed(Message):
        """Something was chosen or typed; `value` is the text, or the chosen values."""

        def __init__(self, entry: Entry, value: str | tuple[str, ...]) -> None:
            super().__init__()
            self.entry, self.value = entry, value

        @property
        def control(self) -> Entry:
            return self.entry

    def __init__(self, field: str, label: str, *, tooltip: str | None = None) -> None:
        super().__init__(id=f"entry-{field.replace('_', '-')}")
        self.field, self.label = field, label
        self.tooltip = tooltip

    def watch_problem(self, problem: str) -> None:
        """A person who types something wrong sees why, below it."""
        if problem and self.has_focus_within:
            self.call_after_refresh(self.scroll_visible, animate=False)

    def on_descendant_focus(self) -> None:
        self.refresh()

    def on_descendant_blur(self) -> None:
        self.refresh()

    def content_rows(self, width: int) -> list[list[Segment]]:
        """Rows right of the label, each at most `width` columns wide."""
        del width
        return [[]]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        del container, viewport
        return len(self.content_rows(width - LABEL_WIDTH)) + len(self._problem_lines(width))

    def render_line(self, y: int) -> Strip:
        width = self.content_size.width
        rows = self.content_rows(width - LABEL_WIDTH)
        if y < len(rows):
            label = set_cell_size(self.label if y == 0 else "", LABEL_WIDTH)
            segments = [Segment(label, self.style_of("strong" if self.has_focus_within else "muted")), *rows[y]]
        else:
            lines = self._problem_lines(width)[y - len(rows) :]
            segments = [Segment(line, self.style_of("bad")) for line in lines[:1]]
        return Strip(segments).adjust_cell_length(width, self.style_of("text"))

    def _problem_lines(self, width: int) -> list[str]:
        if not self.problem:
            return []
        return textwrap.wrap(
            self.problem, max(width, 8), initial_indent="✗ ", subsequent_indent="  ", break_on_hyphens=False
        )


class _Line(Input):
    """One line of text between other entries: up and down leave it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "app.focus_previous", "Previous entry", show=False, id="entry.previous"),
        Binding("down", "app.focus_next", "Next entry", show=False, id="entry.next"),
    ]


class TextEntry(Entry):
    """An entry to type into. Enter leaves it for the next one."""

    DEFAULT_CSS = """
    TextEntry {
        Input { margin-left: 11; background: $panel; }
        Input:focus { background: $panel; }
        .input--placeholder { color: $text-muted; text-style: italic; }
        Input:ansi { text-style: underline; }
    }
    """

    def __init__(
        self, field: str, label: str, value: str, *, hint: str = "", tooltip: str | None = None, max_length: int = 200
    ) -> None:
        super().__init__(field, label, tooltip=tooltip)
        self._input = _Line(value, placeholder=hint, compact=True, max_length=max_length, select_on_focus=False)

    def compose(self) -> ComposeResult:
        self._input.cursor_blink = False
        yield self._input

    @property
    def value(self) -> str:
        return self._input.value

    @value.setter
    def value(self, text: str) -> None:
        """Shows the text without posting `Changed`."""
        with self.prevent(Input.Changed):
            self._input.value = text

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Changed(self, event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.screen.focus_next()

    def on_click(self, event: events.Click) -> None:
        del event
        self._input.focus()
