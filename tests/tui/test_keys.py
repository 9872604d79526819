"""Keys: one meaning for each on every tab and in every dialog, and the tabs' keys in the order of the screen."""

from __future__ import annotations

import importlib
import pkgutil
import string
from collections.abc import Iterator

from textual.binding import Binding
from textual.widget import Widget

import cs336_tui.tui
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.keys import MEANINGS
from cs336_tui.tui.tab_list import TABS

MOVES = {"up", "down", "left", "right", "home", "end", "pageup", "pagedown", "tab", "enter", "space", "escape"}
"""Keys that move, choose or leave in any widget; with Shift too."""
ANSWERS = {"confirm.yes": {"y"}, "confirm.no": {"n"}}
"""Initials that answer a question, printed on its buttons."""


def every_binding() -> Iterator[tuple[type, Binding]]:
    """The bindings of every widget, screen and app of this package."""
    for module in pkgutil.walk_packages(cs336_tui.tui.__path__, "cs336_tui.tui."):
        for found in vars(importlib.import_module(module.name)).values():
            if isinstance(found, type) and issubclass(found, (Widget, Cs336App)) and found.__module__ == module.name:
                for each in found.__dict__.get("BINDINGS", ()):
                    assert isinstance(each, Binding), f"{found.__name__}: {each}"
                    yield found, each


def keys_of(binding: Binding) -> set[str]:
    """The keys that mean something: none that moves or chooses."""
    keys = {key for key in binding.key.split(",") if key.removeprefix("shift+") not in MOVES}
    return keys - ANSWERS.get(binding.id or "", set())


def test_no_key_is_declared_with_two_meanings() -> None:
    keys = [key for meaning in MEANINGS.values() for key in meaning.keys.split(",")]
    assert sorted(set(keys)) == sorted(keys)
    abouts = [meaning.about for meaning in MEANINGS.values()]
    assert sorted(set(abouts)) == sorted(abouts), "a meaning with two keys"
    assert not {tab.key for tab in TABS.values()} & set(keys)


def test_each_binding_has_the_keys_of_one_meaning() -> None:
    declared = {frozenset(meaning.keys.split(",")): meaning.about for meaning in MEANINGS.values()}
    tabs = {f"app.open_{tab.id}": frozenset({tab.key}) for tab in TABS.values()}
    wrong = []
    for cls, binding in every_binding():
        keys = frozenset(keys_of(binding))
        if not keys or tabs.get(binding.id or "") == keys:
            continue
        if declared.get(keys) is None or binding.tooltip not in ("", declared[keys]):
            wrong.append(f"{cls.__name__} {binding.id}: {sorted(keys)} is no meaning of cs336_tui/tui/keys.py")
    assert not wrong, "\n".join(wrong)


def test_no_two_bindings_share_an_id() -> None:
    ids = [binding.id for _, binding in every_binding()]
    assert None not in ids
    assert len(set(ids)) == len(ids)


def test_the_keys_of_tabs_are_in_the_order_of_the_screen() -> None:
    keys = [tab.key for tab in TABS.values()]
    assert keys[:10] == list("1234567890")
    letters = keys[10:]
    assert letters == sorted(letters, key=lambda key: (key.isupper(), key))
    assert set(letters) <= set(string.ascii_letters)
    places = [tab.place for tab in TABS.values()]
    assert places == sorted(places), "the panes of a large screen come first"
