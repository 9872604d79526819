"""A child ended during torch.compile leaves no compiler process behind."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cs336_tui.runner.bench import Bench
from cs336_tui.runner.launcher import Launcher
from cs336_tui.session.state import SessionState
from cs336_tui.worker.workload.compile_and_capture import why_cannot_compile
from tests.watching import PATIENCE_S, Watch, is_gone, small_spec

WHY = why_cannot_compile("cpu")
pytestmark = [
    pytest.mark.skipif(WHY is not None, reason=WHY or ""),
    pytest.mark.timeout(300),  # a C++ compiler is waited for, on a busy machine for minutes
]


class Compiling:
    """A bench whose only cell is being compiled."""

    def __init__(self, directory: Path, timeout_s: float | None = None) -> None:
        self.watch = Watch()
        self.bench = Bench(self.watch, session_dir=directory, device_interval_s=0, timeout_s=timeout_s)
        self.bench.prepare()
        self.bench.start()
        specs = (small_spec(compile="default", pass_="forward+backward"),)
        self.thread = threading.Thread(target=self.bench.run, args=(specs, "a command"))
        self.thread.start()

    def compilers(self) -> tuple[int, list[psutil.Process]]:
        """The child's pid, and the processes that it has started, once it compiles C++."""
        self.watch.until(lambda state: state.cells and state.cells[0].stage == "compiling")
        pid = self.watch.state.cells[0].pid
        assert pid is not None
        give_up_at = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up_at:
            with contextlib.suppress(psutil.NoSuchProcess):  # of a compiler that ended meanwhile
                found = psutil.Process(pid).children(recursive=True)
                if any("cc1plus" in each.name() for each in found):
                    return pid, found
            time.sleep(0.02)
        pytest.fail("no compiler was started for a minute")

    def finish(self) -> SessionState:
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        return self.watch.state


@pytest.fixture
def compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiling]:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    Launcher(tmp_path).start()  # the path of the fork server's socket may have 107 bytes
    # What is found here afterwards was left behind.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    running = Compiling(tmp_path / "sessions")
    yield running
    running.bench.close()
    assert [each for each in (tmp_path / "temporary").iterdir() if not each.name.startswith("pymp-")] == []


def test_a_stop_while_compiling_takes_two_seconds_and_ends_the_compilers(compiling: Compiling) -> None:
    pid, started = compiling.compilers()
    asked_at = time.monotonic()
    assert compiling.bench.cancel()
    state = compiling.finish()
    assert time.monotonic() - asked_at < 2.0
    assert state.cells[0].status == "cancelled"
    assert (state.cells[0].finished.stage, state.cells[0].finished.step) == ("compiling", None)
    assert (state.steps_done, state.steps_total) == (0, 4)  # of those that were asked for
    assert is_gone(pid)
    assert psutil.wait_procs(started, timeout=5)[1] == []


def test_a_child_that_is_killed_while_compiling_leaves_no_process_for_long(compiling: Compiling) -> None:
    pid, started = compiling.compilers()
    os.kill(pid, signal.SIGKILL)
    assert compiling.finish().cells[0].status == "killed"
    # Nobody ends what a killed process has started. A compiler comes to its own end, a pool sees the pipe close.
    assert psutil.wait_procs(started, timeout=30)[1] == []
