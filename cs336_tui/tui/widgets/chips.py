"""Small choices side by side, wrapped over rows: ``■small □medium``, or ``●2026 ○2025`` when only one may be chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.reactive import reactive

from cs336_tui.tui.widgets.entries import LABEL_WIDTH, Entry


class Chip(NamedTuple):
    """One choice: the value it stands for and what is written."""

    value: str
    label: str


def wrap(widths: Sequence[int], available: int) -> list[list[int]]:
    """Indices of the chips of each row, filled greedily with one column between chips; never an empty row."""
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
    """Several choices of which any number, or with ``multiple=False`` exactly one, is chosen.

    Arrows move a cursor, space or enter or a click toggles. `alone` is a value that cannot stand beside others.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Previous", show=False, id="chips.left"),
        Binding("right", "move(1)", "Next", show=False, id="chips.right"),
        Binding("up", "row(-1)", "Row above", show=False, id="chips.up"),
        Binding("down", "row(1)", "Row below", show=False, id="chips.down"),
        Binding("space,enter", "choose", "Choose", show=False, id="chips.toggle"),
    ]

    chosen: reactive[tuple[str, ...]] = reactive(())
    """Chosen values, in the order of the chips."""

    cursor: reactive[int] = reactive(0)

    def __init__(
        self,
        field: str,
        label: str,
        chips: Iterable[Chip],
        chosen: Iterable[str],
        *,
        multiple: bool = True,
        alone: str | None = None,
        tooltip: str | None = None,
    ) -> None:
        super().__init__(field, label, tooltip=tooltip)
        self._chips = tuple(chips)
        self.multiple, self.alone = multiple, alone
        self.set_reactive(Chips.chosen, tuple(chosen))

    @property
    def chips(self) -> tuple[Chip, ...]:
        return self._chips

    @chips.setter
    def chips(self, chips: Iterable[Chip]) -> None:
        self._chips = tuple(chips)
        self.cursor = min(self.cursor, max(len(self._chips) - 1, 0))
        self.refresh(layout=True)

    def content_rows(self, width: int) -> list[list[Segment]]:
        plain, chosen = self.style_of("text"), self.style_of("title")
        rows: list[list[Segment]] = []
        for row in self._rows(width):
            segments: list[Segment] = []
            for index in row:
                style = chosen if self._chips[index].value in self.chosen else plain
                if self.has_focus and index == self.cursor:
                    style += Style(reverse=True)
                if segments:
                    segments.append(Segment(" ", plain))
                segments.append(Segment(self._text(index), style))
            rows.append(segments)
        return rows

    def toggle(self, value: str) -> None:
        """Choose the value, or no longer."""
        if not self.multiple or (value == self.alone and value not in self.chosen):
            chosen = {value}
        else:
            chosen = (set(self.chosen) ^ {value}) - ({self.alone} - {value})
        ordered = tuple(chip.value for chip in self._chips if chip.value in chosen)
        if ordered != self.chosen:
            self.chosen = ordered
            self.post_message(self.Changed(self, ordered))

    def action_move(self, by: int) -> None:
        self.cursor = max(0, min(self.cursor + by, len(self._chips) - 1))

    def action_row(self, by: int) -> None:
        """Move to the chip above or below; past the edge, to the neighbouring widget."""
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
        if self._chips:
            self.toggle(self._chips[self.cursor].value)

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
        chip = self._chips[index]
        off, on = "□■" if self.multiple else "○●"
        return (on if chip.value in self.chosen else off) + chip.label

    def _rows(self, width: int) -> list[list[int]]:
        return wrap([cell_len(self._text(index)) for index in range(len(self._chips))], width)

    def _starts(self, row: Sequence[int]) -> list[int]:
        """First column of each chip of a row."""
        return list(accumulate((cell_len(self._text(index)) + 1 for index in row[:-1]), initial=0)) if row else []
