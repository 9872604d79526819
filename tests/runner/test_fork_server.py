"""A fork server that is stopped, hangs or outlives its app: nobody waits for it for long, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cs336_tui.config.processes import lives
from cs336_tui.runner import launcher, processes
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.launcher import STOPPED_BY_USER, Launcher, StartError
from cs336_tui.runner.processes import server_pid
from cs336_tui.session.state import SessionState
from tests.watching import PATIENCE_S, Watch, endless_spec, small_spec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="children are spawned there")
SOON_S = 15.0
"""No wait for a server is longer."""


def stop(pid: int) -> psutil.Process:
    """Stop the process, and return it once it stands."""
    process = psutil.Process(pid)
    process.suspend()
    while process.status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    return process


class Running:
    """A bench that runs an endless cell and then a short one, on a thread of its own."""

    def __init__(self, directory: Path) -> None:
        self.watch = Watch()
        self.bench = Bench(self.watch, session_dir=directory, device_interval_s=0)
        self.bench.prepare()
        self.bench.start()
        cells = [endless_spec(), small_spec()]
        self.thread = threading.Thread(target=self.bench.run, args=(cells, "a command"))
        self.thread.start()
        self.watch.until(lambda state: 0 in state.cells and len(state.cells[0].step_times_s) > 3)
        child, server = self.watch.state.cells[0].pid, server_pid()
        assert child
        assert server
        self.child, self.server = child, server

    def finish(self, within_s: float = PATIENCE_S) -> SessionState:
        self.thread.join(within_s)
        assert not self.thread.is_alive()
        return self.watch.state


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    stopped = psutil.Process(made.server) if psutil.pid_exists(made.server) else None
    if stopped and stopped.status() == psutil.STATUS_STOPPED:  # of a test that failed
        stopped.kill()
    made.bench.close()


def test_a_stop_ends_a_run_whose_server_is_stopped(running: Running) -> None:
    stop(running.server)
    assert running.bench.cancel()
    state = running.finish(SOON_S)
    assert [cell.status for cell in state.cells.values()] == ["cancelled", "cancelled"]
    assert not lives(running.child)


@pytest.mark.parametrize("by", ["stop", "death"])
def test_a_cell_ends_and_the_next_one_runs_though_their_server_is_stopped(tmp_path: Path, by: str) -> None:
    running = Running(tmp_path)
    stop(running.server)
    if by == "death":
        os.kill(running.child, signal.SIGKILL)
    else:
        running.bench.stop_running()
    state = running.finish()
    assert [cell.status for cell in state.cells.values()] == ["killed" if by == "death" else "cancelled", "ok"]
    assert not lives(running.server)
    running.bench.close()


def test_a_process_starts_though_the_server_was_stopped(tmp_path: Path, torch: Path) -> None:
    torch.write_text("import os, signal; open(__file__, 'w').close(); os.kill(os.getpid(), signal.SIGSTOP)")
    made = Launcher(tmp_path)
    made.prepare()
    made.start()
    before = server_pid()
    began = time.monotonic()
    made.start_answers("nothing", tuple).close()
    assert server_pid() != before
    assert time.monotonic() - began < SOON_S


@pytest.mark.usefixtures("torch")
def test_a_stop_ends_the_wait_for_a_server_that_imports(tmp_path: Path) -> None:
    made = Launcher(tmp_path, lambda: True)
    made.start()
    with pytest.raises(StartError, match=STOPPED_BY_USER):
        made.start_answers("nothing", tuple)


@pytest.mark.usefixtures("torch")
def test_a_server_that_never_loads_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LOADS_WITHIN_S", 1.0)
    made = Launcher(tmp_path)
    made.start()
    with pytest.raises(StartError, match="the fork server did not answer within 1 s"):
        made.start_answers("nothing", tuple)


@pytest.mark.usefixtures("torch")
def test_a_cells_timeout_limits_the_wait_for_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_LOADS_AT_LEAST_S", 0.0)
    made = Launcher(tmp_path, timeout_s=lambda: 1.0)
    made.start()
    with pytest.raises(StartError, match="the fork server did not answer within 1 s"):
        made.start_answers("nothing", tuple)


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The code of another torch, which the next server imports. It hangs."""
    end_server()
    path = tmp_path / "torch.py"
    path.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    yield path
    end_server()


def end_server() -> None:
    if (pid := server_pid()) is not None:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


APP = """
import sys
from pathlib import Path
from cs336_tui.runner.processes import server_pid
from cs336_tui.runner.launcher import Launcher
from tests.runner.test_fork_server import answers
launcher = Launcher(Path(sys.argv[1]))
launcher.prepare()
launcher.start()
child = launcher.start_answers("waits", answers).process.pid if sys.argv[2] != "importing" else 0
print(server_pid(), child, flush=True)
sys.stdin.read()
"""


def answers() -> Iterator[None]:
    threading.Event().wait()
    yield


@pytest.mark.parametrize("state", ["importing", "stopped", "child stopped", "both stopped", "idle"])
def test_a_killed_app_leaves_no_server_whatever_that_is_at(tmp_path: Path, torch: Path, state: str) -> None:
    if state != "importing":
        torch.write_text("")
    app = subprocess.Popen(
        [sys.executable, "-c", APP, str(tmp_path), state], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert app.stdout
    server, child = map(int, app.stdout.readline().split())
    for pid, name in ((server, "stopped"), (child, "child stopped")):
        if state in (name, "both stopped"):
            stop(pid)
    app.kill()
    app.communicate()
    give_up_at = time.monotonic() + 10.0
    while (left := [pid for pid in (server, child) if pid and lives(pid)]) and time.monotonic() < give_up_at:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
