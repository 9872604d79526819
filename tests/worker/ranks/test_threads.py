"""The threads of ranks that run on a CPU."""

from __future__ import annotations

import pytest

from cs336_tui.worker.workload import building
from tests.watching import small_spec


def test_ranks_share_the_threads_of_their_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "_own_threads", lambda: 16)
    spec = small_spec(threads=None, ranks=4)
    assert (building.threads_of(spec), building.threads_of(spec, 2)) == (4, 8)  # of four over two nodes two are here
    assert building.threads_of(small_spec(threads=None)) is None
