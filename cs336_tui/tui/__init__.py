"""The screen. Textual is imported here only, and first of all without what the first frame does not need: a tenth
of the start.

Left out are its command palette, with the widgets that it imports, and rich's tables, until they are first used, and
the patterns of its markup until a text is held against each. TLS is left out of asyncio: the app does not speak it.
Rests on Textual's internals; hence its exact pin.
"""

from __future__ import annotations

import re
import sys
from functools import cached_property
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

_PALETTE = "textual.command"
_LEFT_OUT = (_PALETTE, "rich.table")
_stand_ins: dict[str, type] = {}
"""The entries of the palette, by name."""


class _Later(ModuleType):
    """Has whatever is imported from it: empty classes."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        found = type(name, (), {})
        return _stand_ins.setdefault(name, found) if self.__name__ == _PALETTE else found


class _LatePattern:
    """A pattern that is compiled when it is first used."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self._pattern)

    def match(self, text: str, position: int) -> re.Match[str] | None:
        return self._compiled.match(text, position)

    def search(self, text: str, position: int) -> re.Match[str] | None:
        return self._compiled.search(text, position)


def import_lean() -> None:
    """Import Textual's app, with stand-ins for what it takes from modules left out; nothing if it is there already."""
    if {"textual.app", *_LEFT_OUT} & sys.modules.keys():
        return
    if "ssl" not in sys.modules:
        sys.modules["ssl"] = None  # type: ignore[assignment]  # asyncio does without it then
        try:
            import_module("asyncio")
        finally:
            del sys.modules["ssl"]
    for name in _LEFT_OUT:
        sys.modules[name] = _Later(name)
    try:
        tokenizer: Any = import_module("textual.css.tokenizer")
        tokenizer.re = SimpleNamespace(compile=_LatePattern)
        import_module("textual.app")
    finally:
        for name in _LEFT_OUT:
            del sys.modules[name]


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
        found = type("ThemeProvider", (palette.Provider,), own)
        app.ThemeProvider = theme.ThemeProvider = found  # type: ignore[attr-defined]
    _stand_ins.clear()


import_lean()
