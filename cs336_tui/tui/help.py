"""The help text: what the keys do and what each number means."""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files

from textual.binding import Binding
from textual.keys import format_key

from cs336_tui.tui.tab_list import APP_KEYS, REPORT_TABS, TABS
from cs336_tui.tui.widgets.lines import Line, line

_TEXTS = tomllib.loads((files("cs336_tui") / "data" / "help.toml").read_text(encoding="utf-8"))
ACTIONS: dict[str, str] = _TEXTS["actions"]
"""The app's keys that have a name in the command palette, too."""
_NAMED = {"space": "Space", "enter": "Enter", "delete": "Delete", "escape": "Esc", "home": "Home", "end": "End"}
_IN_ORDER = "12345678"
"""Keys of tabs that one row of the help sums up."""
VERDICTS: dict[str, str] = _TEXTS["verdicts"]


def help_lines(width: int, *, replaying: bool, keymap: Mapping[str, str] | None = None) -> list[Line]:
    """The help text for a window of `width` columns; `keymap`: the keys of what was moved, by id."""
    from cs336_tui.tui.configure.entries import tips

    in_order, others = ([tab for tab in TABS.values() if (tab.key in _IN_ORDER) == first] for first in (True, False))
    tabs = (
        (f"{in_order[0].key} to {in_order[-1].key}", ", ".join(tab.label for tab in in_order)),
        ("  ".join(tab.key for tab in others), ", ".join(tab.label for tab in others)),
    )
    ours = [(id, about) for id, about in ACTIONS.items() if id not in ("app.help", "app.quit")]
    of_app = (*ours, *tabs, *_TEXTS["more"].items(), *(_TEXTS["replay"].items() if replaying else ()))
    sections: dict[str, Iterable[tuple[str, str]]] = {"Keys": of_app}
    for id, found in _TEXTS["tabs"].items():
        ids = REPORT_TABS if id == "reports" else (id,)
        of_form = tips() if id == "configure" else ()
        sections[", ".join(f"{TABS[each].label} ({TABS[each].key})" for each in ids)] = (*found.items(), *of_form)
    sections |= {"Verdicts on a cell": VERDICTS.items(), "What the numbers mean": _TEXTS["numbers"].items()}
    bindings = bindings_by_id(keymap)
    lines: list[Line] = []
    for title, entries in sections.items():
        lines += [*([()] if lines else []), line((title, "title"))]
        for name, about in entries:
            keys = "  ".join(printed(bindings[id]) for id in name.split()) if name.split()[0] in bindings else name
            lines += _entry(keys, about, width)
    return lines


def bindings_by_id(keymap: Mapping[str, str] | None = None) -> dict[str, Binding]:
    """The keys of the app and of every tab, those in the keymap as it says."""
    from cs336_tui.tui.tabs.estimate import EstimateList

    panes = (cls for tab in TABS.values() for cls in tab.pane().__mro__)
    of_panes = (each for cls in (*panes, EstimateList) for each in cls.__dict__.get("BINDINGS", ()))
    found = {each.id: each for each in (*APP_KEYS, *of_panes) if isinstance(each, Binding) and each.id}
    return found | {id: found[id].with_key(keys) for id, keys in (keymap or {}).items() if id in found}


def printed(binding: Binding) -> str:
    """The keys of a binding, such as ``K``, ``x Space``, ``Ctrl+C``; of keys that say the same the shorter ones."""
    keys = binding.key.split(",")
    return " ".join(_printed(key) for key in keys if not key.startswith("shift+") or keys == [key])


def _printed(key: str) -> str:
    *modifiers, last = key.split("+")
    shown = _NAMED.get(last) or format_key(last)
    shown = shown.upper() if (len(shown) == 1 and modifiers) or key[1:].isdigit() else shown
    return "+".join([*(each.title() for each in modifiers), shown])


def _entry(name: str, meaning: str, width: int) -> list[Line]:
    label = 19
    first, *rest = textwrap.wrap(meaning, max(width - label, 12))
    return [line((f"{name:<{label}}", "key"), first), *(line(" " * label + row) for row in rest)]
