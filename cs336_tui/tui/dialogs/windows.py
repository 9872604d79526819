"""Windows over the screen, which close once: those that show a text, and those that ask for one answer: yes or no, a
line of text, one of a list.

Textual's `dismiss` closes whatever is on top, or fails if nothing is left. Its lists fail where a terminal has no room
for them; here they do not."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from textual import on
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen, ScreenResultType
from textual.widgets import Button, Input, Label, OptionList
from textual.widgets.option_list import Option

from cs336_tui.tui.compositor import TightCompositor
from cs336_tui.tui.keys import bind, bind_keys, key_name
from cs336_tui.tui.widgets.entries import Chips, InputLine
from cs336_tui.tui.widgets.lines import Line, Lines, wrapped
from cs336_tui.tui.widgets.rows import Rows


class Dialog(ModalScreen[ScreenResultType]):
    """A window that is answered or left before anything else goes on; most stand in a ``#box``."""

    CSS_PATH = Path(__file__).with_name("dialogs.tcss")  # read with the first dialog: the app starts without it

    def __init__(self) -> None:
        super().__init__()
        self._compositor = TightCompositor()

    @staticmethod
    def box(title: str, keys: str) -> Vertical:
        """The ``#box``, with its title above and what its keys do below."""
        box = Vertical(id="box")
        box.border_title, box.border_subtitle = title, keys
        return box

    def ask(self, then: Callable[[ScreenResultType], object]) -> None:
        """Open the window; `then` is given its answer, unless it was left without one."""

        def answered(answer: ScreenResultType | None) -> None:
            if answer is not None:
                then(answer)

        self.app.push_screen(self, answered)

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        return super().dismiss(result) if self.app.screen is self else AwaitComplete()


class Press(Button, can_focus=False):
    """A button of a dialog for the mouse: keys do the same, as the border says, and stay in the fields."""


class OneOf(Chips):
    """Choices of which the arrows take the next; Enter is the dialog's."""

    BINDINGS: ClassVar[list[BindingType]] = [bind_keys("enter", "screen.accept", "Accept", "dialog.enter", show=False)]

    def take(self, value: str) -> None:
        """Choose this value without a message."""
        self.chosen = (value,)
        self.cursor = self.chips.index(value) if value in self.chips else 0

    def action_move(self, by: int) -> None:
        super().action_move(by)
        self.action_choose()

    def toggle(self, value: str) -> None:
        if value not in self.chosen:
            super().toggle(value)


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


_LIST_WIDTH = 72
"""Of `ChoiceList`, as in its style."""


class AskText(Dialog[str]):
    """Answers with what was entered, or None on Escape. `check` says in one line why a text is refused, empty when it
    is taken. `warn` says what should be known of a text that is taken all the same; it needs a second Enter."""

    BINDINGS: ClassVar[list[BindingType]] = [bind_keys("escape", "dismiss(None)", "Cancel", "ask.cancel")]

    def __init__(
        self,
        title: str,
        about: str = "",
        value: str = "",
        *,
        check: Callable[[str], str] = lambda _: "",
        warn: Callable[[str], str] = lambda _: "",
        longest: int = 200,
    ) -> None:
        super().__init__()
        self._longest = longest
        self._title, self._about, self._value = title, about, value
        self._check, self._warn = check, warn
        self._warned_of = ""
        self._problem = Label("", id="problem", markup=False)

    def compose(self) -> ComposeResult:
        with self.box(self._title, f"Enter take · {key_name('ask.cancel')} leave"):
            if self._about:
                yield Label(self._about, markup=False)
            yield InputLine(self._value, compact=True, max_length=self._longest)
            yield self._problem

    @on(Input.Changed)
    def _changed(self) -> None:
        self._warned_of = ""
        self._problem.update("")

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        text = event.value.strip()
        if problem := self._check(text):
            self._problem.update(f"✗ {problem}")
        elif (warning := self._warn(text)) and self._warned_of != text:
            self._warned_of = text
            self._problem.update(f"! {warning}")
        else:
            self.dismiss(text)


class Confirm(Dialog[bool]):
    """Answers true for `yes` (also by y) and false for Escape; `q_means` is what q answers, with which people leave."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind_keys("y", "dismiss(True)", "Yes", "confirm.yes"),
        bind("quit", "quit_key", "Yes", "confirm.quit", show=False),
        bind_keys("escape,n", "dismiss(False)", "No", "confirm.no"),
        bind_keys("left,right", "app.focus_next", "Other", "confirm.other", show=False),
    ]

    def __init__(self, question: str, yes: str, no: str, *, q_means: bool = False) -> None:
        super().__init__()
        self._question, self._yes, self._no, self._q_means = question, yes, no, q_means

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Label(self._question, markup=False)
            with Horizontal():
                yield Button(self._no, id="no", compact=True)
                yield Button(self._yes, id="yes", variant="error", compact=True)

    def action_quit_key(self) -> None:
        self.dismiss(self._q_means)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")


class ChoiceList(Dialog[int]):
    """Choices, each a name and what it is; answers with the place of one, or None on Escape. `at` is highlighted.
    `headings` stand before the choices of these places."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("quit", "dismiss(None)", "Close", "choices.close", first="escape", show=False)
    ]

    def __init__(
        self, title: str, choices: Sequence[tuple[str, str]], at: int = 0, headings: Mapping[int, str] = {}
    ) -> None:
        super().__init__()
        self._title, self._choices, self._at, self._headings = title, choices, at, headings

    def compose(self) -> ComposeResult:
        options = OptionList(*self._options())
        options.border_title = self._title
        options.border_subtitle = f"Enter choose · {key_name('choices.close')} keep"
        options.highlighted = options.get_option_index(str(self._at)) if self._choices else None
        yield options

    def _options(self) -> Iterator[Option]:
        room = max(min(self.app.size.width, _LIST_WIDTH) - len("│   ▄▄ │"), 12)
        for place, (name, about) in enumerate(self._choices):
            if heading := self._headings.get(place):
                yield Option(Content.assemble((heading, "$primary")), disabled=True)
            rows = [row for text in about.split("\n") for row in textwrap.wrap(text.strip(), room)]
            yield Option(Content.assemble((name, "bold"), *(f"\n  {row}" for row in rows)), id=str(place))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(int(event.option.id or 0))


class ThemeList(ChoiceList):
    """Answers with the place of a theme, or None on Escape. The first `own` come with this tool or are the person's."""

    BINDINGS: ClassVar[list[BindingType]] = [bind("theme", "next", "Next", "themes.next", show=False)]

    def __init__(self, names: Sequence[str], own: int, on: str) -> None:
        at = names.index(on) if on in names else 0
        super().__init__("Theme", [(name, "") for name in names], at, headings={own: "Textual's own"})
        self._names = names

    def compose(self) -> ComposeResult:
        for options in super().compose():
            options.border_subtitle = f"Enter keep for good · {key_name('choices.close')} back"
            yield options

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        if event.option.id is not None:
            self.app.theme = self._names[int(event.option.id)]

    def action_next(self) -> None:
        self.query_one(OptionList).action_cursor_down()
