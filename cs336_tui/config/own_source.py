"""Looks for a name of a user's own in the source of its module, without importing it."""

from __future__ import annotations

import ast
import difflib
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

_MAKING_NAMES = {"globals", "locals", "vars", "exec", "eval", "setattr", "modules", "__dict__", "__setattr__"}
"""Names that a module uses which binds names as it runs."""
_MOST_FILES = 500
"""Files of a package that are searched for a name in the wrong place."""


def why_not_there(name: str, folders: Sequence[str]) -> str:
    """Why ``package.module:attribute`` cannot be there, by the module's source in these folders; empty where it may be.

    Imports nothing. What a module makes as it runs, such as by ``globals()``, is not seen: then it may be there.
    """
    module, _, dotted = name.partition(":")
    part, file = dotted.partition(".")[0], _source_of(module, folders)
    names = _bound_in(file) if file else None
    if names is None or part in names:
        return ""
    package = [str(file.parent)] if file and file.stem == "__init__" else []
    if PathFinder.find_spec(f"{module}.{part}", package):
        return ""
    meant = did_you_mean(part, names)
    if there := defined_in(module, package, part):
        meant = f"; it is in {there}: write {there}:{part}"
    return f"{module} has no {part} ({file}){meant}"


def _source_of(module: str, folders: Sequence[str]) -> Path | None:
    """The source of a module in these folders."""
    path: Sequence[str] | None = folders
    whole, found = "", None
    for part in module.split("."):
        whole = f"{whole}.{part}".lstrip(".")
        found = PathFinder.find_spec(whole, path) if path and whole not in sys.stdlib_module_names else None
        path = found.submodule_search_locations if found else None
    return Path(found.origin) if found and found.origin and found.origin.endswith(".py") else None


def _bound_in(file: Path) -> set[str] | None:
    """All names that a source binds, at any depth; None if it cannot be read or makes some as it runs."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names = {name for node in nodes for name in _bound_by(node)}
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return None if names & {"*", "__getattr__"} or used & _MAKING_NAMES else names


def _bound_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.partition(".")[0]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name


def did_you_mean(part: str, names: Iterable[str]) -> str:
    """A hint at names that are spelled alike; empty without any."""
    names = sorted(names)
    lowered = [name for name in names if name.lower() == part.lower()]
    near = dict.fromkeys([*lowered, *difflib.get_close_matches(part, names, n=3)])
    return f"; did you mean {' or '.join(near)}?" if near else ""


def defined_in(package: str, folders: Iterable[str], name: str) -> str | None:
    """The module of a package in these folders whose source defines a class or a function of this name."""
    definition = re.compile(rf"^(?:class|def) {re.escape(name)}\b", re.MULTILINE)
    for folder in map(Path, folders):
        for file in itertools.islice(sorted(folder.rglob("*.py")), _MOST_FILES):
            with suppress(OSError, UnicodeDecodeError):
                if definition.search(file.read_text(encoding="utf-8")):
                    inside = file.relative_to(folder).with_suffix("").parts
                    return ".".join((package, *(part for part in inside if part != "__init__")))
    return None
