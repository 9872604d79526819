"""A Slurm cluster on this machine, started once for these tests."""

from collections.abc import Iterator

import pytest

from tests.cluster.slurm import INSTALL, Slurm, missing, started


@pytest.fixture(scope="package")  # Other tests look at all children of their process
def _slurm() -> Iterator[Slurm]:
    if lacking := missing():
        pytest.skip(f"no {lacking[0]} here: {INSTALL}")
    with started() as slurm:
        yield slurm


@pytest.fixture
def slurm(_slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """Slurm as a user sees it: its commands find it. Jobs and drained nodes of a test do not outlive the test."""
    for name, value in _slurm.environment.items():
        monkeypatch.setenv(name, value)
    yield _slurm
    _slurm.reset()
