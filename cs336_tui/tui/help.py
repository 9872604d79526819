"""The help text: what the keys do, what each number means, and a glossary."""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.resources import files
from typing import NamedTuple

from textual.binding import Binding

from cs336_tui.tui.dialogs.help import Page
from cs336_tui.tui.keys import printed_key
from cs336_tui.tui.tab_list import APP_KEYS, REPORT_TABS, TABS, PaneTab
from cs336_tui.tui.widgets.lines import Line, line

_TEXTS = tomllib.loads((files("cs336_tui") / "data" / "help.toml").read_text(encoding="utf-8"))
ACTIONS: dict[str, str] = {id: about for ids, about in _TEXTS["actions"].items() for id in ids.split()}
"""The app's keys that have a name in the command palette, too."""
VERDICTS: dict[str, str] = _TEXTS["verdicts"]
GLOSSARY: dict[str, str] = _TEXTS["glossary"]
NUMBERS: dict[str, str] = _TEXTS["numbers"]
ABOUT: dict[str, str] = _TEXTS["about"]
"""The content of each tab, by its id."""
_LABEL = 19
"""Columns of the keys and words, from which what they mean stands beside them."""
_DIALOGS = ("window.Reader", "questions.Confirm", "questions.ChoiceList", "export.ExportDialog", "questions.ThemeList",
            "help.HelpReader")  # fmt: skip


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
            lines += _entry(_shown(name, bindings), about, width)
    return Page(lines, starts)


def help_lines(width: int, *, replaying: bool, keymap: Mapping[str, str] | None = None) -> Sequence[Line]:
    """As `help_page`, the lines alone."""
    return help_page(width, replaying=replaying, keymap=keymap).lines


def _shown(name: str, bindings: Mapping[str, Binding]) -> str:
    """The keys of the bindings of these ids, each once; words as they are."""
    ids = name.split()
    if not bindings.keys() >= {*ids}:
        return name
    return "  ".join(dict.fromkeys(printed(bindings[id]) for id in ids))


def told_of(binding: str | None, tab: str) -> str:
    """The line of help on a binding in a tab's section; empty if there is none."""
    found = (_TEXTS["tabs"].get(tab, {}), _TEXTS["tabs"]["reports"], *_TEXTS["tabs"].values())
    return next((about for entries in found for ids, about in entries.items() if binding in ids.split()), "")


def described() -> frozenset[str]:
    """The ids of the bindings of which the help tells."""
    return frozenset(id for part in sections(replaying=True) for name, _ in part.entries for id in name.split())


def bindings_by_id(keymap: Mapping[str, str] | None = None) -> dict[str, Binding]:
    """The keys of the app, of every tab and of the dialogs, those in the keymap as it says."""
    return {
        each.id: each.with_key(keymap[each.id]) if keymap and each.id in keymap else each
        for each in (*APP_KEYS, *_of_classes())
        if each.id
    }


def _of_classes() -> Iterator[Binding]:
    for tab in TABS.values():
        yield from of_pane(tab)
    for module, name in (each.split(".") for each in _DIALOGS):
        yield from _declared(getattr(import_module(f"cs336_tui.tui.dialogs.{module}"), name))


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
