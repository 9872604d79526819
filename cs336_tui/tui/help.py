"""The help: what the keys do, what each number means, and a glossary. It opens at a tab's section, and is searched
while one types."""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import ClassVar, NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from cs336_tui.config.reading import packaged
from cs336_tui.tui.dialogs.windows import ChoiceList, Confirm, Dialog, Reader, ThemeList
from cs336_tui.tui.keys import bind, bind_keys, key_name, printed_key
from cs336_tui.tui.tab_list import APP_KEYS, REPORT_TABS, TABS, PaneTab
from cs336_tui.tui.widgets.entries import InputLine
from cs336_tui.tui.widgets.lines import Line, Lines, Span, line
from cs336_tui.tui.widgets.rows import Rows

_TEXTS = tomllib.loads(packaged("help.toml"))
ACTIONS: dict[str, str] = {id: about for ids, about in _TEXTS["actions"].items() for id in ids.split()}
"""The app's keys that have a name in the command palette, too."""
VERDICTS: dict[str, str] = _TEXTS["verdicts"]
GLOSSARY: dict[str, str] = _TEXTS["glossary"]
NUMBERS: dict[str, str] = _TEXTS["numbers"]
ABOUT: dict[str, str] = _TEXTS["about"]
"""The content of each tab, by its id."""
_LABEL = 19
"""Columns of the keys and words, from which what they mean stands beside them."""


class Section(NamedTuple):
    """A part of the help; `tabs`: those that open it."""

    title: str
    entries: Sequence[tuple[str, str]]
    about: str = ""
    tabs: Sequence[str] = ()


def sections(*, replaying: bool) -> Iterator[Section]:
    """The help in its order; the entries' first parts are ids of bindings or words."""
    yield from key_sections(replaying=replaying)
    yield Section("Verdicts on a cell", [*VERDICTS.items()])
    yield Section("What the numbers mean", [*NUMBERS.items()])
    yield Section("Glossary", [*GLOSSARY.items()])


def key_sections(*, replaying: bool = True) -> Iterator[Section]:
    """The meanings of the keys: the app's, those of dialogs, those of each tab."""
    from cs336_tui.tui.configure.entries import tips

    of_replay = _TEXTS["replay"].items() if replaying else ()
    yield Section("Keys", [*_TEXTS["actions"].items(), *_TEXTS["more"].items(), *of_replay])
    yield Section("Tabs", [(f"app.open_{tab.id}", f"{tab.label}: {ABOUT[tab.id]}") for tab in TABS.values()])
    yield Section("Dialogs", [*_TEXTS["dialogs"].items()])
    for id in (*TABS, "reports"):
        of_tab = _TEXTS["tabs"].get(id, {}).items()
        if id == "reports":
            ids = [tab.id for tab in REPORT_TABS.values()]
            yield Section(", ".join(TABS[each].title for each in ids), [*of_tab], ABOUT[id], ids)
        elif of_tab or id not in [tab.id for tab in REPORT_TABS.values()]:
            yield Section(TABS[id].title, [*of_tab, *(tips() if id == "configure" else ())], ABOUT[id], [id])


def help_page(width: int, *, replaying: bool, keymap: Mapping[str, str] | None = None) -> Page:
    """The help for a window of `width` columns; `keymap`: the keys of what was moved, by id."""
    bindings = bindings_by_id(keymap)
    lines: list[Line] = []
    starts: dict[str, int] = {}
    for section in sections(replaying=replaying):
        lines += [()] if lines else []
        starts = {id: len(lines) for id in section.tabs} | starts
        lines.append(line((section.title, "title")))
        lines += [line((row, "muted")) for row in textwrap.wrap(section.about, max(width, 12))]
        for name, about in section.entries:
            ids = name.split()
            if bindings.keys() >= {*ids}:  # else words
                name = "  ".join(dict.fromkeys(printed(bindings[id]) for id in ids))
            lines += _entry(name, about, width)
    return Page(lines, starts)


def told_of(binding: str | None, tab: str) -> str:
    """The line of help on a binding in a tab's section; empty if there is none."""
    found = (_TEXTS["tabs"].get(tab, {}), _TEXTS["tabs"]["reports"], *_TEXTS["tabs"].values())
    return next((about for entries in found for ids, about in entries.items() if binding in ids.split()), "")


def bindings_by_id(keymap: Mapping[str, str] | None = None) -> dict[str, Binding]:
    """The keys of the app, of every tab and of the dialogs, those in the keymap as it says."""
    from cs336_tui.tui.dialogs.export import ExportDialog

    dialogs = (Reader, Confirm, ChoiceList, ExportDialog, ThemeList, HelpReader)
    of_classes, moved = chain(*map(of_pane, TABS.values()), *map(_declared, dialogs)), keymap or {}
    return {each.id: each.with_key(moved.get(each.id, each.key)) for each in (*APP_KEYS, *of_classes) if each.id}


def of_pane(tab: PaneTab) -> Iterator[Binding]:
    """The bindings of a tab's pane."""
    yield from _declared(tab.pane())
    if tab.id == "estimate":
        from cs336_tui.tui.tabs.estimate import EstimateList

        yield from _declared(EstimateList)


def _declared(cls: type) -> Iterator[Binding]:
    for base in cls.__mro__:
        if base.__module__.startswith("cs336_tui."):
            yield from (each for each in base.__dict__.get("BINDINGS", ()) if isinstance(each, Binding))


def printed(binding: Binding) -> str:
    """The keys of a binding, such as ``K``, ``x Space``, ``Ctrl+C``; of keys that say the same the shorter ones."""
    keys = binding.key.split(",")
    return " ".join(printed_key(key) for key in keys if not key.startswith("shift+") or keys == [key])


def _entry(name: str, meaning: str, width: int) -> list[Line]:
    first, *rest = textwrap.wrap(meaning, max(width - _LABEL, 12))
    if len(name) >= _LABEL:  # on a line of its own
        return [line((name, "key")), *(line(" " * _LABEL + row) for row in (first, *rest))]
    return [line((f"{name:<{_LABEL}}", "key"), first), *(line(" " * _LABEL + row) for row in rest)]


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
        bind_keys("escape", "dismiss", "Close", "help.escape"),
        bind_keys("enter", "dismiss", "Close", "help.enter", show=False),
    ]

    def __init__(self, write: Callable[[int], Page], at: str) -> None:
        super().__init__()
        self._write, self._at = write, at
        self._rows = Rows(cursor=False, id="text")
        self._page: Page | None = None
        self._matches: list[int] = []
        self._match = 0

    def compose(self) -> ComposeResult:
        with self.box("Help", _reading()):
            yield self._rows
            yield _Search(placeholder="search", compact=True, id="search")

    def on_mount(self) -> None:
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
    alike = groupby(zip(plain, roles, strict=True), key=itemgetter(1))
    return tuple(Span("".join(char for char, _ in chars), each) for each, chars in alike)
