"""Finding what a user named: on Python's path, with the user's folders on it, imported in this process."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType
from typing import Any

from cs336_tui.workload.imported.metadata import offer_metadata
from cs336_tui.workload.imported.problems import SITES, ImportProblem, explained, remember_named, remember_searched

_entered: dict[str, frozenset[str]] = {}
"""Folders that were put on the path here, and the top-level modules that were loaded before."""


def find(name: str, paths: tuple[str, ...]) -> Any:
    """What ``package.module:attribute`` names. Raises `ImportProblem`, in one line, where it cannot be had."""
    module_name, _, attribute = name.partition(":")
    look_in(paths)
    _remember(module_name.partition(".")[0])
    found: Any = _import(module_name, paths)
    where, path = found, module_name
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ImportProblem(_missing(where, path, found, part)) from None
        path = f"{path}.{part}"
    return found


def look_in(paths: Iterable[str]) -> None:
    """Have Python look for modules in these folders, behind its own and before what is installed.

    Folders of an earlier call that are not among these are taken off again, and what was imported from them is
    forgotten, so that two versions of one module can follow one another in a process.
    """
    folders = [str(Path(path).resolve()) for path in paths]
    for folder in folders:
        if not Path(folder).is_dir():
            raise ImportProblem(f"model path {folder}: no such folder")
    for left in [folder for folder in _entered if folder not in folders]:
        _forget(left, _entered.pop(left))
    kept = [entry for entry in sys.path if str(Path(entry).resolve()) not in folders]
    at = next((number for number, entry in enumerate(kept) if Path(entry).name in SITES), len(kept))
    path = [*kept[:at], *dict.fromkeys(folders), *kept[at:]]
    if path != sys.path:
        sys.path[:] = path
    for folder in folders:
        _entered.setdefault(folder, frozenset(name.partition(".")[0] for name in sys.modules))
        remember_searched(folder)
    offer_metadata(folders)
    importlib.invalidate_caches()


def _forget(folder: str, loaded_before: frozenset[str]) -> None:
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    tops = {name.partition(".")[0] for name in sys.modules} - loaded_before
    gone = {top for top in tops if (module := sys.modules.get(top)) is not None and _home(module) == folder}
    for name in [name for name in sys.modules if name.partition(".")[0] in gone]:
        del sys.modules[name]


def _home(module: ModuleType) -> str | None:
    """The folder on the path in which a top-level module was found."""
    if locations := list(getattr(module, "__path__", ())):
        return str(Path(locations[0]).resolve().parent)
    file = getattr(module, "__file__", None)
    return str(Path(file).resolve().parent) if file else None


def _remember(top: str) -> None:
    """The files of what was named are the user's: its package where it is installed, else all of its folder."""
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # of a module that was made by hand
        return
    if spec is None or top in sys.stdlib_module_names:
        return
    packages = list(spec.submodule_search_locations or ())
    for place in packages or ([spec.origin] if spec.origin else []):
        home = Path(place).resolve().parent
        if not any(site in home.parts for site in SITES):
            remember_named(str(home))
        elif packages:
            remember_named(place)


def _import(name: str, paths: tuple[str, ...]) -> ModuleType:
    with explained(f"importing {name}", _hint):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            own = isinstance(error.name, str) and f"{name}.".startswith(f"{error.name}.")
            if own and not isinstance(error, PackageNotFoundError):
                raise ImportProblem(_not_found(name, str(error.name), paths)) from None
            raise


def _hint(error: BaseException) -> str:
    if isinstance(error, PackageNotFoundError):
        return "; install that package beside cs336-tui (pip install --no-deps -e FOLDER)"
    if isinstance(error, ModuleNotFoundError):
        return "; install it beside cs336-tui, or give the folder that has it with --model-path"
    return ""


def _not_found(name: str, missing: str, paths: tuple[str, ...]) -> str:
    top = name.partition(".")[0]
    if missing != top:
        parent = sys.modules.get(missing.rpartition(".")[0])
        return f"no module {missing} in {_home_of(parent)}" if parent else f"no module {missing}"
    if top in sys.stdlib_module_names:
        return f"no module {missing}: {top} is Python's own; give yours another name"
    looked = ", ".join(paths) or "no folder of yours"
    patterns = (f"*/{top}/__init__.py", f"*/{top}.py")
    nearby = [found for path in paths for pattern in patterns for found in sorted(Path(path).glob(pattern))]
    if nearby:
        folder = nearby[0].parent.parent if nearby[0].name == "__init__.py" else nearby[0].parent
        return f"no module {missing} in {looked}; there is one in {folder}: --model-path {folder}"
    return f"no module {missing}, looked in {looked} and among what is installed; add its folder with --model-path"


def _home_of(module: ModuleType) -> str:
    locations = list(getattr(module, "__path__", ()))
    return str(locations[0]) if locations else f"{module.__name__}, which is no package"


def _missing(where: ModuleType, path: str, found: object, part: str) -> str:
    names = [name for name in dir(found) if not name.startswith("__")]
    near = difflib.get_close_matches(part, names, n=3)
    lowered = [name for name in names if name.lower() == part.lower()]
    meant = f"; did you mean {' or '.join(dict.fromkeys(lowered + near))}?" if lowered or near else ""
    top = where.__name__.partition(".")[0]
    if top in sys.stdlib_module_names:
        return f"{path} has no {part}: {top} is Python's own module; give yours another name"
    return f"{path} has no {part} ({getattr(where, '__file__', None) or 'no file'}){meant}"
