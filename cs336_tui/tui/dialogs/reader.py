"""A window with text to read, scrolled by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from cs336_tui.tui.dialogs.window import Dialog
from cs336_tui.tui.widgets.lines import Line, Lines, wrapped
from cs336_tui.tui.widgets.rows import Rows


class Reader(Dialog[None]):
    """Shows the lines that `write` makes for the window's width; made anew when the terminal is resized."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "dismiss", "Close", id="reader.close"),
    ]

    DEFAULT_CSS = """
    Reader {
        align: center middle;
        Rows {
            width: 88; max-width: 100%; height: 100%; max-height: 36;
            border: round $border; border-title-color: $primary; border-subtitle-color: $text-muted;
            background: $surface; padding: 0 1;
        }
    }
    """

    def __init__(self, title: str, write: Callable[[int], Sequence[Line]]) -> None:
        super().__init__()
        self._write, self._rows = write, Rows()
        self._rows.border_title = title
        self._rows.border_subtitle = "↑↓ scroll · Esc close"

    def compose(self) -> ComposeResult:
        yield self._rows

    def on_lines_resized(self, event: Lines.Resized) -> None:
        event.stop()
        self.write()

    def write(self) -> None:
        """Make the lines anew: more may be known."""
        self._rows.fill(self._write(self._rows.content_size.width))


def text_reader(title: str, text: str) -> Reader:
    """A window with a text, each of its lines wrapped."""

    def write(width: int) -> list[Line]:
        return [row for each in text.splitlines() for row in wrapped(each, width, indent="  ") or [()]]

    return Reader(title, write)
