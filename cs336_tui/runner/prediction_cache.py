"""Whether the files of what a user brings are still the same: looked at, never imported."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import is_imported

Fingerprint = tuple[tuple[str, int, int], ...]
"""Of each file its path, when it was changed and its bytes."""

KEPT_S = 1.0
"""How long what was seen is taken for what is there, so that a sweep of many cells looks once."""
_MOST_FILES = 1000
"""Of a folder; one with more is told apart by the first of them."""
_MOST_ENTRIES = 20_000
"""Of a folder that are gone through, whatever they are: it may be somebody's home."""
_NOT_THE_USERS = frozenset({"site-packages", "dist-packages", "node_modules", "__pycache__"})


def fingerprint(spec: CellSpec) -> Fingerprint:
    """Of the Python files below the folders that a spec's own code is looked for in, and of the packages that it names
    where these are installed elsewhere.

    Hidden folders, virtual environments and installed packages below those folders are left out. Empty where the spec
    brings nothing of a user's own, or what it names is not to be found.
    """
    brought = (spec.model, spec.attention, spec.optimizer, spec.loss, *(name for _, name in spec.annotations))
    names = dict.fromkeys(name.partition(":")[0].partition(".")[0] for name in brought if is_imported(name))
    if not names:
        return ()
    return _seen(tuple(names), spec.model_path, int(time.monotonic() / KEPT_S) if KEPT_S else time.monotonic_ns())


@lru_cache(maxsize=16)
def _seen(names: tuple[str, ...], folders: tuple[str, ...], _at: int) -> Fingerprint:
    named = (place for name in names for place in _places(name, folders))
    places = dict.fromkeys((*named, *map(Path, folders)))  # so that what is named is among the first
    return tuple(dict.fromkeys(each for place in places for each in _files(place)))


def _places(name: str, folders: Iterable[str]) -> Iterable[Path]:
    """The folders of a package, or the file of a module; nothing of Python's own and torch's."""
    for folder in map(Path, folders):
        for place in (folder / name, folder / f"{name}.py"):
            if os.path.exists(place):  # noqa: PTH110  # False also for a name that no file can have
                return (place,)
    if name in sys.stdlib_module_names or name == "torch":
        return ()
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found and found.submodule_search_locations:
        return map(Path, found.submodule_search_locations)
    return (Path(found.origin),) if found and found.origin else ()


def _files(place: Path) -> Iterator[tuple[str, int, int]]:
    """A file, or the Python files below a folder: those near to it first, those of one folder by name."""
    if not place.is_dir():
        yield from _looked_at(place)
        return
    waiting, entries, files = deque([str(place)]), 0, 0
    while waiting and entries < _MOST_ENTRIES:
        folder = waiting.popleft()
        try:
            with os.scandir(folder) as found:
                inside = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue
        if folder != str(place) and any(entry.name == "pyvenv.cfg" for entry in inside):
            continue
        entries += len(inside)
        for entry in inside:
            if entry.name.endswith(".py") and files < _MOST_FILES:
                files += 1
                yield from _looked_at(Path(entry))
            elif not entry.name.startswith(".") and entry.name not in _NOT_THE_USERS and _is_folder(entry):
                waiting.append(entry.path)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _looked_at(path: Path) -> Iterator[tuple[str, int, int]]:
    try:
        seen = path.stat()
    except OSError:
        return
    yield str(path), seen.st_mtime_ns, seen.st_size
