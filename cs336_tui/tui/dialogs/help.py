"""The help: opens at a tab's section, and is searched while one types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Input

from cs336_tui.tui.dialogs.window import Dialog
from cs336_tui.tui.keys import bind, bind_keys, key_name
from cs336_tui.tui.widgets.entries import InputLine
from cs336_tui.tui.widgets.lines import Line, Lines, Span
from cs336_tui.tui.widgets.rows import Rows


class Page(NamedTuple):
    """The help in lines, and for each tab the first line of its section."""

    lines: Sequence[Line]
    starts: Mapping[str, int]


class HelpReader(Dialog[None]):
    """Shows the page that `write` makes for the window's width, from the section of the tab `at` on."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("help", "dismiss", "Close", "help.close", show=False),
        bind("quit", "dismiss", "Close", "help.leave", show=False),
        bind("search", "search", "Search", "help.search"),
        bind_keys("escape", "leave", "Close", "help.escape"),
        bind_keys("enter", "leave", "Close", "help.enter", show=False),
    ]

    def __init__(self, write: Callable[[int], Page], at: str) -> None:
        super().__init__()
        self._write, self._at = write, at
        self._rows = Rows(cursor=False, id="text")
        self._page: Page | None = None
        self._matches: list[int] = []
        self._match = 0

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title, box.border_subtitle = "Help", _reading()
            yield self._rows
            yield _Search(placeholder="search", compact=True, id="search")

    def on_mount(self) -> None:
        self._search.cursor_blink = False
        self._search.display = False
        self._rows.focus()

    @property
    def _search(self) -> Input:
        return self.query_one(Input)

    def on_lines_resized(self, event: Lines.Resized) -> None:
        event.stop()
        first = self._page is None
        self._page = self._write(self._rows.content_size.width)
        if first and self._rows.content_size:
            self._rows.fill(self._page.lines)
            self._rows.show_from(self._page.starts.get(self._at, 0))
        self._find(self._rows.first_in_sight)

    def action_search(self) -> None:
        self._search.display = True
        self.set_focus(self._search)  # at once: what is typed behind the key is for it

    def action_leave(self) -> None:
        self.dismiss()

    def action_end_search(self) -> None:
        """Read on where the last match was found."""
        self._search.value = ""
        self._search.display = False
        self._rows.focus()
        self._find(self._rows.first_in_sight)

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._find(self._rows.first_in_sight)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_go(1)

    def action_go(self, by: int) -> None:
        """Go to the next match, or the one before."""
        if self._matches:
            self._match = (self._match + by) % len(self._matches)
            self._show()

    def _find(self, from_row: int) -> None:
        """Find what is entered; the match is the first from this row on."""
        if self._page is None:
            return
        text = self._search.value.casefold()
        rows = enumerate(self._page.lines)
        self._matches = [at for at, row in rows if text and text in "".join(span.text for span in row).casefold()]
        self._match = next((n for n, at in enumerate(self._matches) if at >= from_row), 0)
        self._show()

    def _show(self) -> None:
        assert self._page is not None
        text, at = self._search.value.casefold(), self._matches[self._match] if self._matches else None
        lines = [
            _marked(row, text, "cursor" if number == at else "caution") if number in {*self._matches} else row
            for number, row in enumerate(self._page.lines)
        ]
        self._rows.fill(lines)
        if at is not None and not self._rows.first_in_sight <= at < self._rows.first_in_sight + self._rows.room:
            self._rows.show_from(max(at - self._rows.room // 3, 0))
        box = self.query_one("#box")
        found = f"{self._match + 1}/{len(self._matches)}" if self._matches else "not found"
        box.border_subtitle = f"{found} · Enter next · {key_name('search.end')} end" if text else _reading()


class _Search(InputLine):
    """The line in which a search is entered."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind_keys("escape", "screen.end_search", "End search", "search.end", show=False),
        bind_keys("down", "screen.go(1)", "Next match", "search.next", show=False),
        bind_keys("up", "screen.go(-1)", "Previous match", "search.before", show=False),
    ]


def _reading() -> str:
    search, first, close = map(key_name, ("help.search", "rows.first", "help.escape"))
    return f"{search} search · {first} all keys · {close} close"


def _marked(row: Line, text: str, role: str) -> Line:
    """The row with each place of a text in a role."""
    plain = "".join(span.text for span in row)
    folded = plain.casefold()
    if len(folded) != len(plain):  # a character whose other case has another length
        return tuple(Span(span.text, role) for span in row)
    roles = [span.role for span in row for _ in span.text]
    at = folded.find(text)
    while at >= 0:
        roles[at : at + len(text)] = [role] * len(text)
        at = folded.find(text, at + len(text))
    spans: list[Span] = []
    for char, each in zip(plain, roles, strict=True):
        if spans and spans[-1].role == each:
            spans[-1] = Span(spans[-1].text + char, each)
        else:
            spans.append(Span(char, each))
    return tuple(spans)
