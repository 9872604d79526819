"""Keeps predictions in memory and on disk until a user's own files change, which are looked at, never imported."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import msgspec
import platformdirs

import cs336_tui
from cs336_tui.config.processes import segments_expand
from cs336_tui.config.reading import UNREADABLE, exists, file_named_by, is_folder, read_small, write_quietly
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.prediction import Prediction, predicted_for, prediction_key
from cs336_tui.runner.trust import NOT_THE_USERS, names_of

Capability = tuple[int, int]
"""Of a CUDA device, as (9, 0)."""
Fingerprint = tuple[tuple[str, int, int], ...]
"""Of each file its path, its time of change and its size in bytes."""

SOURCES = (
    "worker/estimate/**/*.py", "worker/workload/**/*.py", "events/prediction.py", "config/flops.py",
)  # fmt: skip
"""Patterns of the package's files that a prediction depends on: a file of the cache holds for one content of them."""
KEPT_S = 1.0
"""Seconds for which a fingerprint is not taken again, so that a sweep of many cells looks once."""
_MOST_FILES = 1000  # Python files of a folder that count; of more, the first
_MOST_ENTRIES = 20_000  # entries of a folder that are gone through: it may be somebody's home


class _Entry(msgspec.Struct, frozen=True):
    """One file of the cache."""

    key: msgspec.Raw
    prediction: Prediction


class PredictionCache:
    """Predictions in memory and as small files, valid for one torch and one content of the `SOURCES` files; those of a
    user's own code in memory alone, until its files change. A folder that cannot be used holds none."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or platformdirs.user_cache_path("cs336-tui", appauthor=False) / "predictions"
        self._known: dict[tuple[CellSpec, Capability | None, Fingerprint], Prediction] = {}
        self._sources: tuple[int, ...] = ()
        """Checksums of the files that every prediction depends on."""

    def get(self, spec: CellSpec, capability: Capability | None = None) -> Prediction | None:
        """The prediction of a spec that needs the same, as one of this spec."""
        key, files = prediction_key(spec), fingerprint(spec)
        found = self._known.get((key, capability, files))
        if found is None and not spec.brings_own_code:
            asked = self._asked(key, capability)
            with contextlib.suppress(*UNREADABLE):
                entry = msgspec.json.decode(read_small(self._folder / file_named_by(asked), 1 << 24), type=_Entry)
                if bytes(entry.key) == asked:
                    self._known[key, capability, files] = found = entry.prediction
        return predicted_for(spec, found) if found else None

    def put(
        self, prediction: Prediction, capability: Capability | None = None, files: Fingerprint | None = None
    ) -> None:
        """Keep it. `files` are the user's as they were when the prediction began; None: as they are now."""
        key = prediction_key(prediction.spec)
        self._known[key, capability, fingerprint(prediction.spec) if files is None else files] = prediction
        if prediction.spec.brings_own_code:
            return
        asked = self._asked(key, capability)
        entry = _Entry(msgspec.Raw(asked), prediction)
        write_quietly(self._folder / file_named_by(asked), msgspec.json.encode(entry))

    def _asked(self, spec: CellSpec, capability: Capability | None) -> bytes:
        """The key of a file: all that its prediction depends on."""
        self._sources = self._sources or tuple(zlib.crc32(file.read_bytes()) for file in source_files())
        return msgspec.json.encode((self._sources, spec, capability, segments_expand(os.environ)))


def source_files() -> tuple[Path, ...]:
    """The files that a prediction depends on, in a fixed order: torch's version, and `SOURCES` of the package."""
    package, torch = Path(cs336_tui.__file__).parent, importlib.util.find_spec("torch")
    version = Path(torch.origin).parent.glob("version.py") if torch and torch.origin else ()
    return (*version, *(file for pattern in SOURCES for file in sorted(package.glob(pattern))))


def fingerprint(spec: CellSpec) -> Fingerprint:
    """Of the Python files below the folders of a spec's own code and of installed packages that it names. Leaves out
    hidden folders, virtual environments, installed packages in them. Empty without own code."""
    names = dict.fromkeys(name.partition(":")[0].partition(".")[0] for name in names_of(spec))
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
            if exists(place):
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
    if not is_folder(place):
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
            elif not entry.name.startswith(".") and entry.name not in NOT_THE_USERS:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)


def _looked_at(path: Path) -> Iterator[tuple[str, int, int]]:
    with contextlib.suppress(OSError):
        seen = path.stat()
        yield str(path), seen.st_mtime_ns, seen.st_size
