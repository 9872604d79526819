"""A cache folder for torch.compile that cannot be made, as on a full disk, ends only its cell."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from cs336_tui.config import processes
from cs336_tui.events.events import CellFinished, Event
from cs336_tui.worker.measure.ab import run_round
from cs336_tui.worker.workload.compile_and_capture import why_cannot_compile
from tests.worker.measure.cells import run, small_spec

WHY = why_cannot_compile("cpu")
pytestmark = pytest.mark.skipif(WHY is not None, reason=WHY or "")


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "USERS_CACHE_FOLDER", None)
    monkeypatch.delenv(processes.CACHE_FOLDER, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))


def test_a_cell_fails_in_one_line() -> None:
    finished = run(small_spec(compile="default")).finished
    assert (finished.status, finished.stage) == ("failed", "building")
    assert finished.error is not None
    assert "No such file or directory" in finished.error


def test_a_round_fails_with_both_sides_told() -> None:
    events: list[Event] = []
    run_round((small_spec(), small_spec(compile="default")), (0, 1), events.append, lambda: False)
    a, b = (event for event in events if isinstance(event, CellFinished))
    assert (a.status, b.status) == ("failed", "failed")
    assert a.error is not None
    assert "No such file or directory" in a.error
