"""A watcher that fails, as one without its terminal or pipe: closing the bench still frees everything."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from cs336_tui.events.events import CellStarted, Event
from cs336_tui.runner.bench import Bench
from cs336_tui.session.lock import lock_path
from tests.watching import endless_spec, wait_gone


def test_closing_gives_back_the_log_the_child_and_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    pids: list[int] = []

    def gone(events: Sequence[Event]) -> None:
        pids.extend(event.pid for event in events if isinstance(event, CellStarted) and event.pid)
        if pids:
            raise BrokenPipeError

    bench = Bench(gone, session_dir=tmp_path, device_interval_s=0)
    bench.prepare()
    with pytest.raises(BrokenPipeError):
        bench.run([endless_spec(), endless_spec(batch_size=2)], "a command")
    with pytest.raises(BrokenPipeError):
        bench.close()
    for pid in pids:
        wait_gone(pid)
    assert len(pids) == 1
    assert bench.log_path.exists()
    assert not lock_path(bench.log_path).exists()
    assert list(temporary.glob("cs336-tui-*")) == []
