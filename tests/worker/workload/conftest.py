"""Fixtures of the tests of the workload."""

from pathlib import Path

import pytest

from tests.worker.measure.cells import UsersFolder


@pytest.fixture
def folder(folder: Path) -> UsersFolder:
    """A user's folder, in which tests write modules."""
    return UsersFolder(folder)
