"""A person's settings in the app: themes from TOML files, bundled and their own, which of them is on, keys moved; all
checked against what there is. `themes/README.md` has the format of themes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
from textual.app import App
from textual.binding import Binding
from textual.color import Color, ColorParseError
from textual.keys import _character_to_key
from textual.theme import BUILTIN_THEMES, Theme

from cs336_tui.config.reading import TomlError, parse_toml, read_text
from cs336_tui.config.settings import Found
from cs336_tui.config.variants import did_you_mean, expected

DEFAULT_THEME = "cs336-dark"

_VARIABLES = {
    "warmup": ("#7d8794", "secondary"),
    "measured": ("#2f86c9", "primary"),
    "phase-1": ("#2f86c9", "primary"),
    "phase-2": ("#b8762a", "accent"),
    "phase-3": ("#3d9459", "success"),
    "phase-4": ("#9b6fd0", "secondary"),
    "phase-5": ("#c2608f", "warning"),
    "sync": ("#1f8f8a", "error"),
    "memory": ("#2f86c9", "primary"),
    "utilisation": ("#3d9459", "success"),
    "axis": ("#7d8794", "secondary"),
    "ok": ("#3d9459", "success"),
    "caution": ("#a8801f", "warning"),
    "bad": ("#d5534e", "error"),
}
"""Variables beyond Textual's own: a mid-tone, readable on dark and light, and the theme's colour used in its place."""
VARIABLE_DEFAULTS = {name: default for name, (default, _) in _VARIABLES.items()}
"""The result of `App.get_theme_variable_defaults`, so that Textual's built-in themes work too."""

_ANSI_VARIABLES = dict.fromkeys(
    ("ansi-background", "ansi-foreground", "surface-active", "foreground-disabled"), "ansi_default"
)
"""Variables that Textual's styles may use and that it does not generate for an ANSI theme."""

_COLORS = (
    "background", "surface", "panel", "foreground", "primary", "secondary", "accent", "success", "warning", "error",
)  # fmt: skip
_TOP_LEVEL = ("name", "dark", "ansi", "colors", "variables")
_STYLE_WORDS = frozenset(["none", "not", "bold", "b", "dim", "italic", "i", "underline", "u", "reverse", "r", "strike"])


class ThemeSet(msgspec.Struct, frozen=True):
    """Themes that loaded, and one line ``file.toml: what is wrong`` for each that did not and was left out."""

    themes: tuple[Theme, ...]
    problems: tuple[str, ...] = ()


class ThemeError(ValueError):
    """A theme file that cannot be used; the text says why in one line."""


@cache
def load_bundled() -> ThemeSet:
    return _load(shipped("themes", "themes"), taken=BUILTIN_THEMES)


def bundled(name: str) -> Theme | None:
    """One of the app's own themes, without loading the others; None when there is none of this name."""
    path = shipped("themes", "themes") / f"{name}.toml"
    return parse_theme(path.read_text(encoding="utf-8"), name) if path.is_file() else None


def load_user(directory: Path) -> ThemeSet:
    """The themes of `directory`; none when it does not exist. A name already in use counts as a problem."""
    return _load(directory, taken={*BUILTIN_THEMES, *(theme.name for theme in load_bundled().themes)})


def parse_theme(text: str, default_name: str) -> Theme:
    """The theme that a TOML document describes. Raises `ThemeError`."""
    try:
        document = parse_toml(text)
    except TomlError as error:
        raise ThemeError(str(error)) from None
    _known_keys("key", document, _TOP_LEVEL)
    name = _typed(document, "name", str, default_name)
    if not re.fullmatch(r"[\w.-]{1,40}", name):
        raise ThemeError(f"name {name!r}: expected 1 to 40 letters, digits, dots, dashes or underscores")
    ansi = _typed(document, "ansi", bool, False)
    colors = _typed(document, "colors", dict, {})
    _known_keys("colour", colors, _COLORS)
    for color in _COLORS:
        if color not in colors:
            raise ThemeError(f"colors.{color} is missing; all of {', '.join(_COLORS)} are needed")
        _check_color(f"colors.{color}", colors[color], ansi)
    theme = Theme(name=name, dark=_typed(document, "dark", bool, True), ansi=ansi, **colors)
    given = _typed(document, "variables", dict, {})
    if others := given.keys() - VARIABLE_DEFAULTS.keys() - _ANSI_VARIABLES.keys():
        _known_keys("variable", others, theme.to_color_system().generate(), listed=VARIABLE_DEFAULTS)
    for variable, value in given.items():
        _check_variable(variable, value, ansi)
    derived = {variable: colors[color] for variable, (_, color) in _VARIABLES.items()}
    theme.variables = (_ANSI_VARIABLES if ansi else {}) | derived | given
    return theme


def shipped(installed: str, kept: str) -> Path:
    """A file or folder by its path inside the installed package, or by that in a checkout."""
    package = Path(__file__).resolve().parents[1]
    found = package / installed
    return found if found.exists() else package.parent / kept


def _load(directory: Path, taken: Collection[str]) -> ThemeSet:
    themes: dict[str, Theme] = {}
    problems: list[str] = []
    for path in sorted(directory.glob("*.toml")):
        try:
            theme = parse_theme(read_text(path), path.stem)
            if theme.name in taken or theme.name in themes:
                raise ThemeError(f"name {theme.name!r} is taken by another theme")
            themes[theme.name] = theme
        except ThemeError as error:
            problems.append(f"{path.name}: {error}")
        except OSError as error:
            problems.append(f"{path.name}: cannot be read: {error.strerror}")
    return ThemeSet(tuple(themes.values()), tuple(problems))


def _typed(table: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = table.get(key, default)
    if not isinstance(value, kind):
        expected = {str: "text in quotes", bool: "true or false", dict: "a table"}[kind]
        raise ThemeError(f"{key} {value!r}: expected {expected}")
    return value


def _known_keys(what: str, table: Iterable[str], known: Collection[str], listed: Iterable[str] = ()) -> None:
    for key in table:
        if key not in known:
            names = ", ".join(listed or known)
            raise ThemeError(f"unknown {what} {key!r}: expected {names}" + (" or one of Textual's" if listed else ""))


def _check_color(key: str, value: object, ansi: bool) -> None:
    allowed = "ansi_default, ansi_red, ansi_bright_red, ... (ansi = true)" if ansi else '"#rrggbb" or a CSS colour name'
    try:
        color = Color.parse(value) if isinstance(value, str) else None
    except ColorParseError:
        color = None
    if color is None or (color.ansi is not None) != ansi:
        raise ThemeError(f"{key} {value!r}: expected {allowed}")


def _check_variable(variable: str, value: object, ansi: bool) -> None:
    """Textual's ``*-style`` variables hold words such as ``bold``; all others a colour, Textual's with an opacity."""
    key = f"variables.{variable}"
    if variable.endswith("-style"):
        if not (isinstance(value, str) and value and _STYLE_WORDS.issuperset(value.split())):
            raise ThemeError(f"{key} {value!r}: expected words of {', '.join(sorted(_STYLE_WORDS))}")
        return
    if variable not in VARIABLE_DEFAULTS and isinstance(value, str):
        if value == "transparent" or re.fullmatch(r"auto \d{1,2}%", value):
            return
        value = re.sub(r" \d{1,2}%$", "", value)
    _check_color(key, value, ansi)


class ThemeChoice:
    """The themes of `app`: `wanted`, else `kept`, ours or one in `user_directory`, is on from the start; the others
    load later."""

    def __init__(self, app: App[Any], wanted: str | None, kept: str, user_directory: Path | None) -> None:
        self._app, self._wanted, self._kept, self._user_directory = app, wanted, kept, user_directory
        self.names: tuple[str, ...] = ()
        """Our own, then the person's."""
        first = bundled(wanted or kept) or bundled(DEFAULT_THEME)
        assert first is not None
        app.register_theme(first)
        app.theme = first.name

    def load(self) -> tuple[str, ...]:
        """Load all themes and turn the wanted one on; lines that say what is wrong with any."""
        found = [load_bundled(), *([load_user(self._user_directory)] if self._user_directory else [])]
        for theme in (theme for group in found for theme in group.themes):
            self._app.register_theme(theme)
            self.names = (*self.names, theme.name)
        problems = tuple(problem for group in found for problem in group.problems)
        if self._wanted and self._wanted not in self._app.available_themes:
            return (*problems, f"theme {self._wanted}: {expected(self._wanted, self.names)}")
        if (on := self._wanted or self._kept) in self._app.available_themes:
            self._app.theme = on
        return problems


def checked(found: Found, themes: Collection[str]) -> Found:
    """The settings without those whose values there are not, each with a line that says so."""
    settings = found.settings
    if settings.theme not in themes:
        found = found.without("theme", f"{settings.theme}: {expected(settings.theme, themes)}")
    from cs336_tui.export.writing.files import FORMATS, canonical

    if canonical(settings.export_format) not in FORMATS:
        found = found.without("export_format", f"{settings.export_format}: {expected(settings.export_format, FORMATS)}")
    if settings.columns:
        from cs336_tui.export.subjects.results_columns import COLUMNS

        if unknown := next((each for each in settings.columns if each not in COLUMNS), None):
            found = found.without("columns", f"{unknown}: {expected(unknown, COLUMNS)}")
    if not settings.keymap:
        return found
    from cs336_tui.tui.help import bindings_by_id, printed

    known = bindings_by_id()
    for id, keys in settings.keymap.items():
        wrong = [key for key in keys.split(",") if not _is_key(key.strip())]
        if id not in known:
            found = found.without(f"keymap.{id}", f"no such action; {did_you_mean(id, known) or 'help lists them'}")
        elif wrong:
            found = found.without(f"keymap.{id}", f"{wrong[0]!r} is no key; expected such as f5, ctrl+r, x or slash")
    for id, (key, other) in _clashes(found.settings.keymap, known).items():
        text = f"{key} is taken by {other} ({known[other].description}, {printed(known[other])}); move that too"
        found = found.without(f"keymap.{id}", text)
    return found


def _is_key(key: str) -> bool:
    *modifiers, last = key.split("+") if key not in ("", "+") else [key]
    named = len(last) > 1 and all(part.isalnum() for part in last.split("_"))
    return set(modifiers) <= {"ctrl", "shift", "alt"} and (named or (len(last) == 1 and last.isprintable()))


def normal(keys: str) -> list[str]:
    """The keys of a list with commas, as bindings name them: ``slash`` for ``/``."""
    return [_character_to_key(key) if len(key) == 1 else key for key in (each.strip() for each in keys.split(","))]


def _clashes(keymap: Mapping[str, str], known: Mapping[str, Binding]) -> Mapping[str, tuple[str, str]]:
    """The moved actions that would get a key of another one in force with it: the key, and the other's id."""
    moved = _with_alike(keymap, known)
    keys = {id: normal(moved.get(id, binding.key)) for id, binding in known.items()}
    holders: dict[str, list[str]] = defaultdict(list)
    for id, each in keys.items():
        for key in each:
            holders[key].append(id)
    found: dict[str, tuple[str, str]] = {}
    for key, ids in holders.items():
        for id, other in permutations(ids, 2):
            scopes = {each.split(".")[0] for each in (id, other)}
            are_together = len(scopes) == 1 or scopes & {"app", "replay", "rows", "table"}
            mean_the_same = known[id].tooltip and known[id].tooltip == known[other].tooltip
            if id in keymap and id != other and are_together and not mean_the_same:
                found.setdefault(id, (key, other))
    return found


def _with_alike(moved: Mapping[str, str], known: Mapping[str, Binding]) -> dict[str, str]:
    """The keymap with the actions that mean the same in the same place as a moved one, such as Run and Add."""
    keymap = {id: ",".join(normal(keys)) for id, keys in moved.items()}
    for id in moved:
        scope = id.split(".")[0]
        for other, binding in known.items():
            if other.split(".")[0] == scope and binding.key == known[id].key and binding.tooltip == known[id].tooltip:
                keymap.setdefault(other, keymap[id])
    return keymap


def keymap_of(moved: Mapping[str, str]) -> dict[str, str]:
    """The keymap for Textual. It names the keys of all others, too, that have one in common with what was moved:
    Textual takes a key away from all that have it."""
    from cs336_tui.tui.help import bindings_by_id

    known = bindings_by_id()
    keymap = _with_alike(moved, known)
    taken = {key for id in keymap for key in (*normal(known[id].key), *normal(keymap[id]))}
    for id, binding in known.items():
        if taken & set(normal(binding.key)):
            keymap.setdefault(id, ",".join(normal(binding.key)))
    return keymap
