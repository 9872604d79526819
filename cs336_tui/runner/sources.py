"""Whether the files of what a user brings are still the same: looked at, never imported."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from cs336_tui.spec import RunSpec
from cs336_tui.variants import is_imported

Fingerprint = tuple[tuple[str, int, int], ...]
"""Of each file its path, when it was changed and its bytes."""

_MOST_FILES = 500
"""Of a package; one with more is told apart by the first of them."""


def fingerprint(spec: RunSpec) -> Fingerprint:
    """Of the Python files of the packages that a spec names, and of those beside a module that is in no package.

    Empty where it brings nothing of a user's own, or what it names is not to be found.
    """
    brought = (spec.model, spec.attention, spec.optimizer, spec.loss, *(name for _, name in spec.annotations))
    names = dict.fromkeys(name.partition(":")[0].partition(".")[0] for name in brought if is_imported(name))
    return tuple(itertools.chain.from_iterable(_looked_at(_files(name, spec.model_path)) for name in names))


def _files(name: str, folders: Iterable[str]) -> Iterator[Path]:
    for folder in map(Path, folders):
        if (folder / name).is_dir():
            return (folder / name).rglob("*.py")
        if (folder / f"{name}.py").is_file():
            return folder.glob("*.py")
    return _installed(name)


def _installed(name: str) -> Iterator[Path]:
    if name in sys.stdlib_module_names or name == "torch":
        return iter(())
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found and found.submodule_search_locations:
        return (path for folder in found.submodule_search_locations for path in Path(folder).rglob("*.py"))
    return iter([Path(found.origin)] if found and found.origin else ())


def _looked_at(files: Iterator[Path]) -> Iterator[tuple[str, int, int]]:
    for path in sorted(itertools.islice(files, _MOST_FILES)):
        try:
            seen = path.stat()
        except OSError:
            continue
        yield str(path), seen.st_mtime_ns, seen.st_size
