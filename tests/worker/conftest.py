"""Fixtures of the tests of the worker."""

from __future__ import annotations

import pytest

from cs336_tui.worker.workload.imported import problems


@pytest.fixture(autouse=True)
def _no_folders_of_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell's process knows one user's folders; those of a test are forgotten after it."""
    monkeypatch.setattr(problems, "_FOLDERS", {True: set(), False: set()})
    problems.is_users_file.cache_clear()
