"""A person's lasting settings, in ``cs336-tui/config.toml`` of the config folder: read, written with comments, changed.

Options of the command line win over them. What is wrong in the file is told by line and key, and has its default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import msgspec
import platformdirs

from cs336_tui.config.axis import UserError, names_of
from cs336_tui.config.variants import expected


class SettingError(UserError):
    """A setting that there is none of, a value that it does not take, or a file that cannot be written: one line."""


class Of(msgspec.Struct, frozen=True):
    """Description of a setting: its comment in the file, and the lowest and highest of a number."""

    about: str
    least: float | None = None
    most: float | None = None


class Settings(msgspec.Struct, frozen=True):
    """Each with its default, which means "as without a file"."""

    theme: Annotated[str, Of("The theme from the start; t in the app lists the themes and keeps one here.")] = (
        "cs336-dark"
    )
    preset: Annotated[str, Of("The preset that fills the form; cs336-tui presets lists them.")] = "quick"
    refresh: Annotated[float, Of("Screen updates a second during a run.", 0.2, 30)] = 2.0
    low_bandwidth: Annotated[bool, Of("Write less to the terminal, for slow connections.")] = False
    columns: Annotated[tuple[str, ...], Of(
        "Columns of Results, in this order, by their names in cs336-tui export --columns; empty: those that fit."
    )] = ()  # fmt: skip
    export_format: Annotated[str, Of("The format that Export in the app offers first.")] = "markdown"
    keymap: Annotated[dict[str, str], Of(
        'Keys, by the names of actions; help in the app (?) lists these. Several with commas: "app.run" = "f5,r"'
    )] = {}  # fmt: skip


_DEFAULTS = Settings()
KEYS = Settings.__struct_fields__
_KINDS = {
    str: "a text in quotes",
    float: "a number",
    bool: "true or false",
    tuple: 'a list as ["size", "mean"]',
    dict: 'a table: [keymap], then lines as "app.run" = "f5"',
}
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@cache
def described() -> Mapping[str, Of]:
    """The purpose of each setting, by its key."""
    return {name: get_args(hint)[1] for name, hint in get_type_hints(Settings, include_extras=True).items()}


class Found(NamedTuple):
    """Settings, a line for each that the file has wrong, and the line number of each key in the file."""

    settings: Settings = _DEFAULTS
    problems: tuple[str, ...] = ()
    lines: Mapping[str, int] = {}
    path: Path | None = None

    def problem(self, key: str, text: str) -> str:
        """One line that names the file, the line of the key, if it has one, and the key."""
        where = self.path or settings_path()
        at = f" line {self.lines[key]}" if key in self.lines else ""
        return f"{where.name}{at}, {key}: {text}"

    def without(self, key: str, text: str) -> Found:
        """The same with the default of a key, or without a key of the keymap, and with a line that says why."""
        outer, _, inner = key.partition(".")
        value = getattr(_DEFAULTS, outer)
        if inner:
            value = {id: keys for id, keys in self.settings.keymap.items() if id != inner}
        settings = msgspec.structs.replace(self.settings, **{outer: value})
        return self._replace(settings=settings, problems=(*self.problems, self.problem(key, text)))


NO_FILE = Found()


def settings_path() -> Path:
    """The file; it need not be there."""
    return platformdirs.user_config_path("cs336-tui", appauthor=False) / "config.toml"


def read_settings(path: Path | None = None) -> Found:
    """The settings of the file; the defaults where there is none."""
    path = path or settings_path()
    if not path.exists():
        return Found(path=path)
    from cs336_tui.config.reading import TomlError, parse_toml, read_text

    try:
        text = read_text(path)
        document = parse_toml(text)
    except OSError as error:
        return Found(path=path, problems=(f"{path.name}: cannot be read: {error.strerror}",))
    except TomlError as error:
        return Found(path=path, problems=(_placed(path, str(error), text),))
    found = Found(path=path, lines=_lines(text))
    for key, value in document.items():
        try:
            settings = msgspec.structs.replace(found.settings, **{key: checked(key, value)})
        except SettingError as error:
            found = found._replace(problems=(*found.problems, found.problem(key, str(error))))
        else:
            found = found._replace(settings=settings)
    return found


def _placed(path: Path, error: str, text: str) -> str:
    """An error of TOML, which ends with its place, with the line first and the key that stands there."""
    place = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", error)
    if place is None:
        return f"{path.name}: {error}"
    number = int(place[1] or len(text.splitlines()))
    key = next(iter(_lines(text.splitlines()[number - 1])), "") if number <= len(text.splitlines()) else ""
    return f"{path.name} line {number}{f', {key}' if key else ''}: {error[: place.start()]}"


def checked(key: str, value: Any) -> Any:
    """The value of a key, as `Settings` has it. Raises `SettingError`, whose text does not name the key."""
    if key not in KEYS:
        raise SettingError(f"no such setting; {expected(key, KEYS)}")
    kind = type(getattr(_DEFAULTS, key))
    if kind is float and type(value) is int:
        value = float(value)
    if kind is tuple and isinstance(value, list):
        value = tuple(value)
    texts = value if kind is tuple else value.values() if isinstance(value, dict) else ()
    if type(value) is not kind or not all(isinstance(each, str) for each in texts):
        raise SettingError(f"{value!r}: expected {_KINDS[kind]}")
    of = described()[key]
    if of.least is not None and of.most is not None and not of.least <= value <= of.most:
        raise SettingError(f"{value:g}: expected {of.least:g} to {of.most:g}")
    return value


def from_words(key: str, words: str) -> Any:
    """The value that is typed for a key. Raises `SettingError`."""
    kind: Any = str if key.startswith("keymap.") else type(getattr(_DEFAULTS, key, None))
    if kind is bool:
        if words.lower() not in (*_TRUE, *_FALSE):
            raise SettingError(f"{key} {words}: expected true or false")
        return words.lower() in _TRUE
    if kind is float:
        try:
            return checked(key, float(words))
        except ValueError:
            raise SettingError(f"{key} {words}: expected a number") from None
        except SettingError as error:
            raise SettingError(f"{key} {error}") from None
    if kind is tuple:
        return names_of(words)
    if kind is not str:
        raise SettingError(f"{key}: {expected(key, [*KEYS[:-1], 'keymap.ACTION'])}")
    return words


def template() -> str:
    """The file with every setting: what it is for, and its default as a comment."""
    lines = ["# Settings of cs336-tui. Take the # away to change one; options of the command line win.", ""]
    for key, of in described().items():
        default = getattr(_DEFAULTS, key)
        lines += [f"# {of.about}"]
        lines += ["[keymap]", '# "app.run" = "r"'] if isinstance(default, dict) else [f"# {_line(key, default)}", ""]
    return "\n".join(lines) + "\n"


def write_template(path: Path | None = None) -> Path:
    """Write the file with its comments. Raises `SettingError` if it is there."""
    path = path or settings_path()
    if path.exists():
        raise SettingError(f"{path} is there already; cs336-tui config set KEY VALUE changes it")
    _write(path, template())
    return path


def save_setting(key: str, value: Any, path: Path | None = None) -> Path:
    """Change one setting in the file, which keeps its comments; without a file, begin one. A key of the keymap is
    ``keymap.app.run``. Raises `SettingError`."""
    from cs336_tui.config.reading import TomlError, parse_toml, read_text

    path = path or settings_path()
    try:
        text = read_text(path) if path.exists() else template()
        parse_toml(text)
        text = changed(text, key, value)
        parse_toml(text)
    except OSError as error:
        raise SettingError(f"{path}: cannot be read: {error.strerror}") from None
    except TomlError as error:
        raise SettingError(f"not changed: {_placed(path, str(error), text)}") from None
    _write(path, text)
    return path


def changed(text: str, key: str, value: Any) -> str:
    """The text with a key's value in place of its old one or of its commented default, or in a new line."""
    import tomlkit

    outer, _, inner = key.partition(".")
    name, new = inner or outer, list(value) if isinstance(value, tuple) else value
    document = tomlkit.parse(text)
    table: Any = document.setdefault(outer, tomlkit.table()) if inner else document
    if name not in table:
        commented = re.compile(rf"^\s*#\s*(\"?){re.escape(name)}\1\s*=.*$", re.MULTILINE)
        uncommented = commented.sub(lambda _: _line(name, new), text, count=1)
        found: Any = tomlkit.parse(uncommented)
        if name in (found.get(outer, ()) if inner else found):
            return uncommented
    table[name] = new
    return tomlkit.dumps(document)


def _line(key: str, value: Any) -> str:
    import tomlkit

    return tomlkit.dumps({key: list(value) if isinstance(value, tuple) else value}).strip()


def _lines(text: str) -> dict[str, int]:
    """The line of each key, from 1; keys of tables as ``keymap.app.run``."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if head := re.match(r"\s*\[\s*([\w-]+)\s*\]", line):
            table = f"{head[1]}."
            found[head[1]] = number
        elif key := re.match(r"\s*(?:\"([^\"]+)\"|'([^']+)'|([\w.-]+))\s*=", line):
            found[table + next(filter(None, key.groups()))] = number
    return found


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.resolve()  # of dotfiles that are kept elsewhere
        draft = target.with_name(f"{target.name}.new")
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)
    except OSError as error:
        raise SettingError(f"{path}: cannot be written: {error.strerror}") from None
