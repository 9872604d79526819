"""A bench whose temporary folder is deleted, as systems do with old files, still runs cells."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from cs336_tui.runner.bench import Bench
from tests.watching import Watch, small_spec


def test_a_cell_runs_and_its_output_is_told_when_the_temporary_folder_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    watch = Watch()
    bench = Bench(watch, session_dir=tmp_path, device_interval_s=0)
    bench.prepare()
    try:
        bench.run([small_spec()], "a command")
        (scratch,) = temporary.glob("cs336-tui-*")
        shutil.rmtree(scratch)
        bench.run([small_spec()], "a command")
    finally:
        bench.close()
    assert [(cell.status, cell.finished.error) for cell in watch.state.cells.values()] == [("ok", None)] * 2
    assert list(temporary.glob("cs336-tui-*")) == []
