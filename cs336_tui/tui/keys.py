"""The meaning of each key, declared once: a key means the same on every tab, and a meaning has the same key."""

from __future__ import annotations

from typing import Any, NamedTuple

from textual._context import active_app
from textual.binding import Binding
from textual.keys import format_key


class Meaning(NamedTuple):
    """Keys, as Textual names them, with commas; and what they do wherever they do something."""

    keys: str
    about: str


MEANINGS = {
    "run": Meaning("r", "run what is chosen, or add it"),
    "tune": Meaning("U", "race the combinations of what is chosen"),
    "stop": Meaning("s", "stop"),
    "resume": Meaning("u", "resume the session"),
    "back": Meaning("b", "back to the session of this app"),
    "next-cell": Meaning("right_square_bracket", "next cell"),
    "cell-before": Meaning("left_square_bracket", "previous cell"),
    "pause": Meaning("P", "pause, and go on"),
    "faster": Meaning("right_curly_bracket", "faster"),
    "slower": Meaning("left_curly_bracket", "slower"),
    "demo": Meaning("D", "watch a made-up run, to look around"),
    "export": Meaning("e", "export"),
    "copy": Meaning("c", "copy the table of the tab"),
    "save": Meaning("w", "save the choices as a preset"),
    "theme": Meaning("t", "theme"),
    "help": Meaning("question_mark,f1", "help"),
    "commands": Meaning("colon,ctrl+p", "every action by name"),
    "redraw": Meaning("ctrl+l", "draw the screen anew"),
    "quit": Meaning("q,ctrl+c", "leave"),
    "quit-now": Meaning("ctrl+q", "leave at once"),
    "mark": Meaning("m", "mark to compare"),
    "make": Meaning("n", "work it out now: a report, a measured peak, the largest batch"),
    "view": Meaning("v", "next view"),
    "view-before": Meaning("V", "previous view"),
    "sort": Meaning("greater_than_sign", "sort by the next column"),
    "sort-before": Meaning("less_than_sign", "sort by the previous column"),
    "order": Meaning("o", "turn the order of rows"),
    "screen": Meaning("asterisk", "give the pane the screen, or take it away again"),
    "axis": Meaning("z", "axis from zero, or zoomed to the data"),
    "closer": Meaning("plus,equals_sign", "zoom in"),
    "farther": Meaning("minus", "zoom out"),
    "further": Meaning("full_stop", "further to the right"),
    "further-back": Meaning("comma", "further to the left"),
    "gpu": Meaning("g", "another GPU"),
    "link": Meaning("L", "bandwidth of the links"),
    "search": Meaning("slash", "search"),
    "delete": Meaning("d,delete", "delete"),
    "open-file": Meaning("O", "open a file"),
    "name": Meaning("N", "name"),
    "note": Meaning("a", "annotate"),
    "up": Meaning("k", "up"),
    "down": Meaning("j", "down"),
    "earlier": Meaning("K", "a place earlier"),
    "later": Meaning("J", "a place later"),
    "first": Meaning("A", "first of all"),
    "last": Meaning("Z", "last of all"),
    "skip": Meaning("x", "skip, or run after all"),
    "retry": Meaning("R", "run again what failed"),
    "memory-rule": Meaning("M", "what follows a cell that ran out of memory"),
    "peak": Meaning("h", "highest point"),
    "phase": Meaning("f", "of the next phase"),
    "phase-before": Meaning("F", "of the previous phase"),
    "part": Meaning("y", "of the next part of the model"),
    "part-before": Meaning("Y", "of the previous part of the model"),
    "kind": Meaning("T", "of the next kind"),
    "within": Meaning("W", "within a range"),
    "baseline": Meaning("B", "next baseline"),
    "swap": Meaning("X", "exchange rows and columns"),
    "keep": Meaning("E", "keep as reference points"),
    "save-file": Meaning("ctrl+s", "save"),
}
"""Keys that move, choose or leave in any widget (arrows, Home, End, Page, Enter, Space, Esc, Tab) are none of these."""
_BOUND: dict[str, Binding] = {}
"""The bindings by their ids."""
_NAMED = {"space": "Space", "enter": "Enter", "delete": "Delete", "escape": "Esc", "home": "Home", "end": "End",
          "pageup": "PgUp", "pagedown": "PgDn"}  # fmt: skip


def bind(meaning: str, action: str, label: str, id: str, *, first: str = "", also: str = "", **shown: Any) -> Binding:
    """A binding with the keys of a meaning; before and behind them keys that move or choose in widgets."""
    keys, about = MEANINGS[meaning]
    return bind_keys(",".join(filter(None, (first, keys, also))), action, label, id, about=about, **shown)


def bind_keys(
    keys: str,
    action: str,
    label: str,
    id: str,
    *,
    show: bool = True,
    shown_as: str | None = None,
    priority: bool = False,
    about: str = "",
) -> Binding:
    """A binding with keys that move, choose or leave in any widget, or open a tab. `label` is in the footer; `shown_as`
    stands there for the key, where one entry tells of two. A keymap moves it by `id`."""
    _BOUND[id] = Binding(keys, action, label, show=show, key_display=shown_as, priority=priority, tooltip=about, id=id)
    return _BOUND[id]


def key_name(*ids: str) -> str:
    """The keys of bindings in a text, of each the first: ``r``, ``Esc``, ``←→``, ``[ ]``; of a moved one its new key
    in the app that runs."""
    app = active_app.get(None)
    moved = app._keymap if app else {}
    names = [printed_key((moved.get(id) or _BOUND[id].key).split(",")[0]) for id in ids]
    return ("" if {*names} <= {*"←→↑↓"} else " ").join(names)


def tab_name(id: str) -> str:
    """A tab in a text, with the key that opens it: ``Results (4)``."""
    opens = f"app.open_{id}"
    return f"{_BOUND[opens].description} ({key_name(opens)})"


def printed_key(key: str) -> str:
    """A key as it is printed, such as ``K``, ``Space``, ``Ctrl+C``, ``F5``."""
    *modifiers, last = key.split("+")
    shown = _NAMED.get(last) or format_key(last)
    shown = shown.upper() if (len(shown) == 1 and modifiers) or key[1:].isdigit() else shown
    return "+".join([*(each.title() for each in modifiers), shown])
