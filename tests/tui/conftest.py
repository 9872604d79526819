"""Keys of all tests of the screen wait for their effects in `watched.idle`; all apps of a process parse a style sheet
once."""

from __future__ import annotations

from typing import Any

import textual.app
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

from tests.tui.watched import idle

textual.app.wait_for_idle = idle  # type: ignore[attr-defined]

_parse_rules = Stylesheet._parse_rules
_parsed: dict[object, list[RuleSet]] = {}


def _parse_rules_once(sheet: Stylesheet, css: str, read_from: Any, **more: Any) -> list[RuleSet]:
    """As Textual's, which parses the sheets of all widgets for each app: a twentieth of the time of these tests."""
    key = (css, read_from, *sorted(more.items()), frozenset(sheet._variables.items()))
    if key not in _parsed:
        _parsed[key] = _parse_rules(sheet, css, read_from, **more)
    return _parsed[key]


Stylesheet._parse_rules = _parse_rules_once  # type: ignore[method-assign]
