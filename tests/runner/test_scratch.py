"""Scratch folders of processes that were killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cs336_tui.runner.processes import end_scratch, make_scratch

MAKE = "from cs336_tui.runner.processes import make_scratch; print(make_scratch(), flush=True); input()"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def other_process() -> tuple[subprocess.Popen[str], Path]:
    """A process with a scratch folder, and its folder."""
    process = subprocess.Popen([sys.executable, "-c", MAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_goes_with_its_process_and_what_a_killed_one_left_with_the_next(tmp_path: Path):
    other, left = other_process()
    (left / "inductor").mkdir()
    (left / "inductor" / "kernel.so").write_bytes(b"")
    own, second = make_scratch(), make_scratch("nodes-")
    not_ours = tmp_path / "cs336-tui-session-x"
    not_ours.mkdir()
    end_scratch(second)
    assert own.is_dir()
    assert left.is_dir()
    other.kill()
    other.communicate()
    end_scratch(own)
    end_scratch(own)
    assert list(tmp_path.iterdir()) == [not_ours]
