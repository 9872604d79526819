"""Fixtures of the tests of the worker."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from cs336_tui.config import processes
from cs336_tui.config.spec import CellSpec
from cs336_tui.worker.estimate import predict
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


@pytest.fixture(scope="module")
def no_prediction() -> Iterator[None]:
    """Leave the prediction out of reports, which takes a second."""

    def predict_nothing(spec: CellSpec, **_: object) -> NoReturn:
        raise NotImplementedError(f"no prediction of {spec.size}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predict, "rehearse", predict_nothing)
        yield
