"""Windows over the screen that close once: Textual's `dismiss` closes whatever is on top, or fails if nothing is left.

Textual's lists fail where a terminal has no room for them; here they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import BindingType
from textual.screen import ModalScreen, ScreenResultType
from textual.widgets import OptionList

from cs336_tui.tui.compositor import TightCompositor
from cs336_tui.tui.keys import bind, key_name
from cs336_tui.tui.widgets.lines import Line, Lines, wrapped
from cs336_tui.tui.widgets.rows import Rows


class Dialog(ModalScreen[ScreenResultType]):
    """A window that is answered or left before anything else goes on; most stand in a ``#box``."""

    CSS_PATH = "dialogs.tcss"  # read with the first dialog: the app starts without it

    def __init__(self) -> None:
        super().__init__()
        self._compositor = TightCompositor()

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        return super().dismiss(result) if self.app.screen is self else AwaitComplete()


_move_page = OptionList._move_page


def _move_page_of_some_size(options: OptionList, direction: Literal[-1, 1]) -> None:
    if (options.highlighted or 0) in options._index_to_line:
        _move_page(options, direction)


# In Textual's class, as its own widgets make lists too.
OptionList._move_page = _move_page_of_some_size  # type: ignore[assignment]


class Reader(Dialog[None]):
    """Shows the lines that `write` makes for the window's width; made anew when the terminal is resized."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("quit", "dismiss", "Close", "reader.close", first="escape", also="enter")
    ]

    def __init__(self, title: str, write: Callable[[int], Sequence[Line]]) -> None:
        super().__init__()
        self._write, self._rows = write, Rows(cursor=False, id="box")
        self._rows.border_title = title
        self._rows.border_subtitle = f"{key_name('rows.up', 'rows.down')} scroll · {key_name('reader.close')} close"

    def compose(self) -> ComposeResult:
        yield self._rows

    def on_lines_resized(self, event: Lines.Resized) -> None:
        event.stop()
        self.write()

    def write(self) -> None:
        """Make the lines anew: more may be known."""
        self._rows.fill(self._write(self._rows.content_size.width))


def text_reader(title: str, text: str) -> Reader:
    def write(width: int) -> list[Line]:
        return [row for each in text.splitlines() for row in wrapped(each, width, indent="  ") or [()]]

    return Reader(title, write)
