"""Fixtures of the tests of the worker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cs336_tui.worker.workload import import_problems
from cs336_tui.worker.workload.imported_modules import look_in


@pytest.fixture(autouse=True)
def _no_folders_of_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell's process knows one user's folders; those of a test are forgotten after it."""
    monkeypatch.setattr(import_problems, "_FOLDERS", {True: set(), False: set()})
    import_problems.is_users_file.cache_clear()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A user's folder; its modules are forgotten after the test."""
    path, meta_path = list(sys.path), list(sys.meta_path)
    yield tmp_path
    look_in(())
    sys.path[:], sys.meta_path[:] = path, meta_path
