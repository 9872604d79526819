"""Letting a user's package that lies in a folder, not installed, ask which version of itself it is."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from typing import Any


class _Source(Distribution):
    """What a folder's ``pyproject.toml`` says of the package there: its name and version."""

    def __init__(self, folder: str, name: str, version: str) -> None:
        self._folder = folder
        self._text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return Path(self._folder) / path


class SourceFinder(DistributionFinder):
    """Comes last: a package that is installed is asked itself. Finds no modules, only what is said of packages."""

    def __init__(self, folders: Iterable[str]) -> None:
        self._folders = tuple(folders)

    def find_spec(self, *_: object) -> None:
        return None

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        wanted = context.name if context is not None else None
        for folder in self._folders:
            for place in (Path(folder), Path(folder).parent):  # beside the package, or above its src folder
                name, version = _project(place / "pyproject.toml")
                if name and (wanted is None or _canonical(name) == _canonical(wanted)):
                    yield _Source(folder, name, version)
                    break


def offer_metadata(folders: Iterable[str]) -> None:
    """Have ``importlib.metadata`` find what lies in these folders, in place of those of an earlier call."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, SourceFinder)]
    sys.meta_path.append(SourceFinder(folders))


def _project(file: Path) -> tuple[str, str]:
    """Name and version, empty where they are not told."""
    try:
        project = tomllib.loads(file.read_text()).get("project", {})
    except (OSError, ValueError):
        return "", ""
    name, version = project.get("name"), project.get("version", "0")
    return (name, str(version)) if isinstance(name, str) else ("", "")


def _canonical(name: str) -> str:
    """As PEP 503 compares names of packages."""
    return re.sub(r"[-_.]+", "-", name).lower()
