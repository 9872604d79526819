"""A shared cache of torch.compile, for tests that do not need empty caches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cs336_tui.config import processes


@pytest.fixture(scope="session")
def _warm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all processes of a run: pytest-xdist gives each a folder of its own beside those of the others."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "compiled"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def warm_cache(_warm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder that a user named for torch.compile's caches: one for all tests, so that vector instructions are tried
    and each graph is compiled once."""
    from torch._inductor import config

    monkeypatch.setattr(processes, "USERS_CACHE_FOLDER", str(_warm_folder))
    monkeypatch.setenv(processes.CACHE_FOLDER, str(_warm_folder))
    # More threads would be processes that each import torch. torch's own way of undoing restores a setting; pytest's
    # may delete it.
    with config.patch(compile_threads=1):
        yield
