"""Parts of a form: entries with a label and the problem with them, buttons, and folds."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive, var
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from cs336_tui.tui.keys import bind_keys
from cs336_tui.tui.widgets.lines import Styled
from cs336_tui.tui.widgets.paths import PathSuggester

LABEL_WIDTH = 11
"""Columns of the label with the gap after it."""


class Entry(Styled):
    """Draws the label, the content right of it, and the problem below. `field` is the name in a `SpecError`."""

    problem: reactive[str] = reactive("", layout=True)
    """The problem, without the field's name; empty if there is none."""

    @dataclass(eq=False, repr=False)
    class Changed(Message):
        """The user chose or typed something; `value`: the text, or the chosen values."""

        entry: Entry
        value: str | tuple[str, ...]

    def __init__(self, field: str, label: str, *, tooltip: str | None = None) -> None:
        super().__init__(id=f"entry-{field.replace('_', '-')}")
        self.field, self.label = field, label
        self.tooltip = tooltip

    def watch_problem(self, problem: str) -> None:
        """Scroll to the problem of the entry that the user edits."""
        if problem and self.has_focus_within:
            self.call_after_refresh(self.scroll_visible, animate=False)

    def on_descendant_focus(self) -> None:
        self.refresh()

    on_descendant_blur = on_descendant_focus

    def content_rows(self, width: int) -> list[list[Segment]]:  # noqa: ARG002
        """Rows right of the label, each at most `width` columns wide."""
        return [[]]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return len(self.content_rows(width - LABEL_WIDTH)) + len(self._problem_lines(width))

    def render_line(self, y: int) -> Strip:
        width = self.content_size.width
        rows = self.content_rows(width - LABEL_WIDTH)
        if y < len(rows):
            label = set_cell_size(self.label if y == 0 else "", LABEL_WIDTH)
            focused = "cursor" if self.screen.is_modal else "strong"
            segments = [Segment(label, self.style_of(focused if self.has_focus_within else "muted")), *rows[y]]
        else:
            lines = self._problem_lines(width)[y - len(rows) :]
            segments = [Segment(line, self.style_of("bad")) for line in lines[:1]]
        return Strip(segments).adjust_cell_length(width, self.style_of("text"))

    def _problem_lines(self, width: int) -> list[str]:
        return textwrap.wrap(
            self.problem, max(width, 8), initial_indent="✗ ", subsequent_indent="  ", break_on_hyphens=False
        )


class InputLine(Input):
    """A line of text that takes keys in their order. Textual's acts on Backspace, and on every other key with a
    binding, only after the letters that came behind it in one burst, as they do over a slow connection. A path in it is
    completed: Tab or right takes what is shown dim."""

    cursor_blink = var(False, init=False)

    def on_focus(self) -> None:
        # From here on: what fills it at the start needs none.
        self.suggester = PathSuggester(use_cache=False, case_sensitive=True)

    async def _on_key(self, event: events.Key) -> None:
        completes = event.key == "tab" and self._suggestion and self.cursor_at_end
        for binding in self._bindings.key_to_bindings.get("right" if completes else event.key, ()):
            if await self.app.run_action(binding.action, self):
                event.stop()
                event.prevent_default()
                return


class _Line(InputLine):
    """A line of text; up and down go to the neighbouring entries."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind_keys("up", "app.focus_previous", "Previous entry", "entry.previous", show=False),
        bind_keys("down", "app.focus_next", "Next entry", "entry.next", show=False),
    ]


class TextEntry(Entry):
    """An entry for text."""

    def __init__(
        self, field: str, label: str, value: str, *, hint: str = "", tooltip: str | None = None, max_length: int = 200
    ) -> None:
        super().__init__(field, label, tooltip=tooltip)
        self._input = _Line(
            value,
            placeholder=hint,
            compact=True,
            max_length=max_length,
            classes="-valid",  # if it came when the value is set, it and its four parts were styled twice
        )

    def compose(self) -> ComposeResult:
        yield self._input

    @property
    def value(self) -> str:
        return self._input.value

    @value.setter
    def value(self, text: str) -> None:
        """Show the text without posting `Changed`."""
        with self.prevent(Input.Changed):
            self._input.value = text

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Changed(self, event.value))

    def on_click(self) -> None:
        self._input.focus()


def wrap(widths: Sequence[int], available: int) -> list[list[int]]:
    """The indices of the chips of each row, one column between chips; no row is empty."""
    rows: list[list[int]] = [[]]
    used = 0
    for index, width in enumerate(widths):
        if rows[-1] and used + 1 + width > available:
            rows.append([])
            used = 0
        used += width + (1 if rows[-1] else 0)
        rows[-1].append(index)
    return rows


class Chips(Entry, can_focus=True):
    """Choices side by side, wrapped over rows: ``■small □medium``, or ``●2026 ○2025`` if only one can be chosen (not
    `multiple`). Arrows move a cursor; space, enter or a click toggles."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind_keys("left", "move(-1)", "Previous", "chips.left", show=False),
        bind_keys("right", "move(1)", "Next", "chips.right", show=False),
        bind_keys("up", "row(-1)", "Row above", "chips.up", show=False),
        bind_keys("down", "row(1)", "Row below", "chips.down", show=False),
        bind_keys("space,enter", "choose", "Choose", "chips.toggle", show=False),
    ]

    class Moved(Message):
        """The cursor is on another choice."""

    chips: reactive[tuple[str, ...]] = reactive((), layout=True)
    """The values to choose from."""

    labels: reactive[Mapping[str, str]] = reactive({}, layout=True)
    """Words in place of values."""

    chosen: reactive[tuple[str, ...]] = reactive(())
    """Chosen values, in the order of the chips."""

    cursor: reactive[int] = reactive(0)

    def __init__(
        self,
        field: str,
        label: str,
        chips: Iterable[str],
        chosen: Iterable[str],
        *,
        labels: Mapping[str, str] = {},
        multiple: bool = True,
        tooltip: str | None = None,
    ) -> None:
        super().__init__(field, label, tooltip=tooltip)
        self.set_reactive(Chips.chips, tuple(chips))
        self.set_reactive(Chips.labels, labels)
        self.multiple = multiple
        self.set_reactive(Chips.chosen, tuple(chosen))

    def watch_chips(self) -> None:
        self.cursor = min(self.cursor, max(len(self.chips) - 1, 0))

    def watch_cursor(self) -> None:
        self.post_message(self.Moved())

    @property
    def under_cursor(self) -> str:
        """The value under the cursor; empty if there is none."""
        return self.chips[self.cursor] if self.cursor < len(self.chips) else ""

    def content_rows(self, width: int) -> list[list[Segment]]:
        plain, chosen = self.style_of("text"), self.style_of("title")
        rows: list[list[Segment]] = []
        for row in self._rows(width):
            segments: list[Segment] = []
            for index in row:
                style = chosen if self.chips[index] in self.chosen else plain
                if self.has_focus and index == self.cursor:
                    style += Style(reverse=True)
                if segments:
                    segments.append(Segment(" ", plain))
                segments.append(Segment(self._text(index), style))
            rows.append(segments)
        return rows

    def toggle(self, value: str) -> None:
        chosen = set(self.chosen) ^ {value} if self.multiple else {value}
        ordered = tuple(value for value in self.chips if value in chosen)
        if ordered != self.chosen:
            self.chosen = ordered
            self.post_message(self.Changed(self, ordered))

    def action_move(self, by: int) -> None:
        self.cursor = max(0, min(self.cursor + by, len(self.chips) - 1))

    def action_row(self, by: int) -> None:
        """Move to the chip above or below, past the edge to the neighbouring widget."""
        rows = self._rows(self.content_size.width - LABEL_WIDTH)
        here = next(y for y, row in enumerate(rows) if self.cursor in row or not row)
        if not 0 <= here + by < len(rows):
            (self.screen.focus_next if by > 0 else self.screen.focus_previous)()
            return
        column = self._starts(rows[here])[rows[here].index(self.cursor)]
        starts = self._starts(rows[here + by])
        nearest = min(range(len(starts)), key=lambda i: abs(starts[i] - column))
        self.cursor = rows[here + by][nearest]

    def action_choose(self) -> None:
        if self.chips:
            self.toggle(self.chips[self.cursor])

    def on_click(self, event: events.Click) -> None:
        rows = self._rows(self.content_size.width - LABEL_WIDTH)
        if event.y >= len(rows):
            return
        row = rows[event.y]
        for index, start in zip(row, self._starts(row), strict=True):
            if start <= event.x - LABEL_WIDTH < start + cell_len(self._text(index)):
                self.cursor = index
                self.action_choose()

    def _text(self, index: int) -> str:
        value = self.chips[index]
        off, on = "□■" if self.multiple else "○●"
        return (on if value in self.chosen else off) + self.labels.get(value, value)

    def _rows(self, width: int) -> list[list[int]]:
        return wrap([cell_len(self._text(index)) for index in range(len(self.chips))], width)

    def _starts(self, row: Sequence[int]) -> list[int]:
        return list(accumulate((cell_len(self._text(index)) + 1 for index in row[:-1]), initial=0)) if row else []


class Fold(Widget, can_focus=True):
    """Shows or hides what follows: ``▸ more``, and ``▾ more`` if `open`; space, enter or a click turns it."""

    BINDINGS: ClassVar[list[BindingType]] = [bind_keys("space,enter", "turn", "Show or hide", "fold.turn", show=False)]

    open: reactive[bool] = reactive(False)
    label: reactive[str] = reactive("")

    @dataclass(eq=False, repr=False)
    class Turned(Message):
        """The user opened or closed this fold."""

        fold: Fold

    def render(self) -> Content:
        return Content(f"{'▾' if self.open else '▸'} {self.label}")

    def action_turn(self) -> None:
        self.open = not self.open
        self.post_message(self.Turned(self))

    on_click = action_turn


class PushButton(Widget, can_focus=True):
    """``[ Run ]``, pressed by enter, space or a click; a disabled button has no brackets."""

    BINDINGS: ClassVar[list[BindingType]] = [bind_keys("enter,space", "press", "Press", "button.press", show=False)]

    label: reactive[str] = reactive("", layout=True)

    @dataclass(eq=False, repr=False)
    class Pressed(Message):
        """The user pressed this button."""

        button: PushButton

    def __init__(self, label: str, *, id: str, disabled: bool = False) -> None:
        super().__init__(id=id, disabled=disabled)
        self.set_reactive(PushButton.label, label)

    def render(self) -> Content:
        return Content(f"  {self.label}  " if self.disabled else f"[ {self.label} ]")

    def offer(self, label: str, enabled: bool) -> None:
        """Set the label, and whether the button can be pressed."""
        self.label, self.disabled = label, not enabled
        self.refresh()

    def action_press(self) -> None:
        self.post_message(self.Pressed(self))

    on_click = action_press
