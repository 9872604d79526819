"""Fixtures of the tests of the workload."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.workload.own_code import Folder


@pytest.fixture
def folder(folder: Path) -> Folder:
    """A user's folder, in which tests write modules."""
    return Folder(folder)
