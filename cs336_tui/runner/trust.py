"""The code of users that may be imported. A log can name any code, and is no reason to run it: code is imported if the
user's own choices name it, and for a session that goes on if it is the current folder's own, or the user says so."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import NamedTuple

from cs336_tui.config.axis import UserError
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.sweep import Sweep
from cs336_tui.config.tuning import Tuning
from cs336_tui.config.values import sharing_of
from cs336_tui.config.variants import found_along, is_imported
from cs336_tui.stats.quantities import named

NOT_THE_USERS = frozenset({"site-packages", "dist-packages", "node_modules", "__pycache__"})
"""Folders whose files are not of the user's own folder that has them."""
_MOST_LINKS = 8
"""The most modules through which one passes a name on."""


class Import(NamedTuple):
    """Code that a cell would import: ``package.module:name``, and the file or the folder in which it is looked for."""

    name: str
    place: str
    here: bool
    """True if it is the current folder's own: its files lie there, and it is defined there."""

    def __str__(self) -> str:
        return " ".join(f"{self.name} from {self.place}".splitlines())


class Untrusted(UserError):
    """A session's log, or what lies beside it, names what would be run, and the user has not; `what` in a few words."""

    def __init__(self, session: str, what: str) -> None:
        super().__init__(f"session {session} {what}; if you trust it, say --trust")
        self.what = what


HasCode = CellSpec | Sweep | Tuning
"""Choices that may name code."""


class Trust:
    """The code that may be imported: nothing, until `name` is told what the user names."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._folders: set[str] = set()

    def name(self, *choices: HasCode) -> None:
        """Allow the code of these, which the user chose."""
        for each in choices:
            if names := names_of(each):
                self._names.update(names)
                self._folders.update(each.model_path)

    def name_log(self, specs: Iterable[CellSpec], *, trusted: bool) -> None:
        """Allow the code of a log's cells that is the current folder's own, or all of it if it is `trusted`."""
        for spec in {(names_of(spec), spec.model_path): spec for spec in specs}.values():
            if trusted or all(each.here for each in imports_of([spec])):
                self.name(spec)

    def refusal(self, spec: CellSpec) -> str:
        """Why the cell's code is not imported, in one line; empty if it may be, or there is none."""
        unnamed = [
            name for name in names_of(spec) if name not in self._names or not self._folders >= {*spec.model_path}
        ]
        return f"{unnamed[0]} is named by a log alone, so it is not imported" if unnamed else ""


def names_of(choices: HasCode) -> tuple[str, ...]:
    """The names of all code that is imported for these choices, without sizes of buckets."""
    names = (*choices.own_code, *(name for _, name in choices.annotations))
    return tuple(dict.fromkeys(sharing_of(name).name for name in names if is_imported(name)))


def imports_of(specs: Iterable[CellSpec]) -> tuple[Import, ...]:
    """All that these cells would import, each once. Imports nothing."""
    asked = dict.fromkeys((name, spec.model_path) for spec in specs for name in names_of(spec))
    return tuple(_import(name, folders) for name, folders in asked)


def files_of(specs: Iterable[CellSpec]) -> dict[str, bytes]:
    """The sources of the users' packages and modules that these cells import, and of those that these import from
    beside them, by their paths below the folder that has them. Imports nothing."""
    sources: dict[str, bytes] = {}
    for name, folders in dict.fromkeys((name, spec.model_path) for spec in specs for name in names_of(spec)):
        roots, tops = [str(Path(folder).resolve()) for folder in folders], [re.split("[.:]", name)[0]]
        for top in tops:
            for place in _chain(top, roots):
                home = place.parent if place.is_dir() or place.stem != "__init__" else place.parent.parent
                for file in filter(Path.is_file, place.rglob("*.py") if place.is_dir() else [place]):
                    with suppress(OSError):
                        data = sources[str(file.relative_to(home))] = file.read_bytes()
                        tops += {top for top in _imported(data) if not _installed(top)}.difference(tops)
    return sources


def _imported(source: bytes) -> Iterator[str]:
    """The top-level modules that a module's text imports by their full names."""
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        for statement in ast.walk(ast.parse(source)):
            match statement:
                case ast.Import(names=names):
                    yield from (each.name.partition(".")[0] for each in names)
                case ast.ImportFrom(module=str(module), level=0):
                    yield module.partition(".")[0]


def check_log(session: str, specs: Iterable[CellSpec], *, trusted: bool) -> tuple[Import, ...]:
    """All that these cells of a session's log would import. Unless `trusted`, raises `Untrusted` for what is not the
    current folder's own."""
    found = imports_of(specs)
    away = [str(each) for each in found if not each.here]
    if away and not trusted:
        what = f"would import {named(away, between=', ')}, which is not the current folder's own code"
        raise Untrusted(session, what)
    return found


def _import(name: str, folders: Sequence[str]) -> Import:
    """The code of this name, as a child would find it in these folders."""
    module, _, attribute = name.partition(":")
    roots, top = [str(Path(folder).resolve()) for folder in folders], module.partition(".")[0]
    # Of the current folder, as every log of ours has it: by an absolute path.
    inside = bool(folders) and all(Path(folder).is_absolute() and _is_here(Path(folder)) for folder in folders)
    if elsewhere := _installed(top):
        return Import(name, elsewhere, here=False)
    if chain := _chain(module, roots):
        return Import(name, str(chain[-1].resolve()), inside and _is_defined(module, attribute, roots))
    return Import(name, ", ".join(roots) or "what is installed", inside)


def _installed(top: str) -> str:
    """The place of a top-level module that is found without the user's folders, and not in the current one; empty if
    there is none."""
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # a module that was made by hand
        return "what is installed"
    if found is None:
        return ""
    places = _places(found)
    return "" if places and all(map(_is_here, places)) else str(places[-1]) if places else "Python itself"


def _places(spec: ModuleSpec) -> list[Path]:
    """The folders of a package, and the file of a module."""
    files = [Path(spec.origin or "")] if spec.has_location else []
    return [*map(Path, spec.submodule_search_locations or ()), *files]


def _chain(module: str, roots: Sequence[str]) -> list[Path]:
    """The files and folders of a module below these folders, and of the packages round it; none if it is not there."""
    PathFinder.invalidate_caches()
    specs = [spec for _, spec in found_along(module, roots)]
    return [] if None in specs else [place for spec in specs if spec for place in _places(spec)]


def _is_here(place: Path) -> bool:
    """True of a file or a folder of the current folder, which is not of something that was installed in it."""
    here, resolved = Path.cwd().resolve(), place.resolve()
    return resolved.is_relative_to(here) and NOT_THE_USERS.isdisjoint(resolved.relative_to(here).parts)


def _is_defined(module: str, attribute: str, roots: Sequence[str], most: int = _MOST_LINKS) -> bool:
    """True if a module of the current folder defines what a dotted path names, by its text, or takes it from another
    one of them: ``train:os.system`` is defined elsewhere. A text that Python cannot read runs nothing."""
    chain = _chain(module, roots)
    if not most or not chain or not all(map(_is_here, chain)) or _installed(module.partition(".")[0]):
        return False
    file = chain[-1]
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return file.suffix == ".py"
    except OSError:  # a folder
        return False
    first, dot, rest = attribute.partition(".")
    found: list[bool] = []
    for statement in _statements(tree):
        match statement:
            case ast.ClassDef(name=name) if name == first:
                inner = (getattr(each, "name", "") for each in statement.body)
                found.append(not rest or rest in inner)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name == first:
                found.append(not rest)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == first:
                made = isinstance(value, ast.Call | ast.Lambda) and not rest
                alias = f"{value.id}{dot}{rest}" if isinstance(value, ast.Name) else ""
                found.append(made or (bool(alias) and _is_defined(module, alias, roots, most - 1)))
            case ast.ImportFrom(names=names, level=level):
                above = module.split(".")[: (file.stem == "__init__") - level or None] if level else []
                home = ".".join([*above, *filter(None, [statement.module])])
                taken = [each.name for each in names if (each.asname or each.name) == first]
                found += [_is_defined(home, f"{name}{dot}{rest}", roots, most - 1) for name in taken]
            case ast.Import(names=names):
                found += [False for each in names if (each.asname or each.name.partition(".")[0]) == first]
    return bool(found) and all(found)


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """The statements that a module runs when it is imported, without those inside of functions and classes."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _statements(child)
