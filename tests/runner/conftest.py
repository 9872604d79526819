from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cs336_tui.config.spec import CellSpec
from cs336_tui.runner.launcher import Launcher
from tests.runner.running import Running, Start


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Benches whose sessions are in `tmp_path`, which run cells on a thread; closed at the end."""
    started: list[Running] = []

    def begin(*specs: CellSpec, **options: Any) -> Running:
        started.append(Running(tmp_path, **options))
        if specs:
            started[-1].begin(*specs)
        return started[-1]

    yield begin
    for running in started:
        running.bench.close()


@pytest.fixture
def running(start: Start) -> Running:
    return start()


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    """With its fork server started."""
    found = Launcher(tmp_path)
    found.prepare()
    found.start()
    return found
