"""Fixtures of the tests of the workload."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cs336_tui.worker.workload.imported.finding import look_in
from tests.worker.workload.own_code import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """A user's folder; its modules are forgotten after the test."""
    path, meta_path = list(sys.path), list(sys.meta_path)
    yield Folder(tmp_path)
    look_in(())
    sys.path[:], sys.meta_path[:] = path, meta_path
