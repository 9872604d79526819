"""Windows over the screen that close once: what was clicked or pressed meanwhile closes nothing else.

Textual's `dismiss` closes whatever is on top, also when its own screen is gone, and fails where nothing is left. Its
lists and texts fail where a terminal has no room for them, its palette when its list is still to come.
"""

from __future__ import annotations

from typing import Any, Literal

from textual.await_complete import AwaitComplete
from textual.content import Content
from textual.screen import ModalScreen, ScreenResultType
from textual.widgets import OptionList

from cs336_tui.tui.terminal import SteadyCompositor


class Dialog(ModalScreen[ScreenResultType]):
    """A window that is answered or left before anything else goes on."""

    def __init__(self) -> None:
        super().__init__()
        self._compositor = SteadyCompositor()

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        return super().dismiss(result) if self.app.screen is self else AwaitComplete()


_move_page, _wrap_and_format = OptionList._move_page, Content._wrap_and_format


def _move_page_of_some_size(options: OptionList, direction: Literal[-1, 1]) -> None:
    if (options.highlighted or 0) in options._index_to_line:
        _move_page(options, direction)


def _wrap_and_format_in_some_width(content: Content, width: int, *more: Any, **named: Any) -> Any:
    return _wrap_and_format(content, max(width, 1), *more, **named)


# In Textual's classes, as its own widgets make lists and texts too.
OptionList._move_page = _move_page_of_some_size  # type: ignore[assignment]
Content._wrap_and_format = _wrap_and_format_in_some_width  # type: ignore[assignment, method-assign]
