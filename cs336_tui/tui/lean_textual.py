"""Imports Textual's app without its command palette, which is loaded when it is first opened.

With the widgets that it imports the palette is a tenth of the start. Rests on Textual's internals; hence its exact pin.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_PALETTE = "textual.command"
_stand_ins: dict[str, type] = {}


class _Later(ModuleType):
    """Has whatever is imported from it: empty classes."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_ins.setdefault(name, type(name, (), {}))


def import_lean() -> None:
    """Import Textual's app, with stand-ins for what it takes from the palette; nothing if it is imported already."""
    if not {"textual.app", _PALETTE} & sys.modules.keys():
        sys.modules[_PALETTE] = _Later(_PALETTE)
        try:
            import_module("textual.app")
        finally:
            del sys.modules[_PALETTE]


def complete() -> None:
    """Load the palette, and put what it has in the places of its stand-ins."""
    palette, app, theme = map(import_module, (_PALETTE, "textual.app", "textual.theme"))
    for name in _stand_ins:
        for module in (app, theme):
            if hasattr(module, name):
                setattr(module, name, getattr(palette, name))
    if "Provider" in _stand_ins:
        members: dict[str, Any] = dict(vars(theme.ThemeProvider))
        own = {name: member for name, member in members.items() if name not in ("__dict__", "__weakref__")}
        app.ThemeProvider = theme.ThemeProvider = type("ThemeProvider", (palette.Provider,), own)  # type: ignore[attr-defined]
    _stand_ins.clear()
