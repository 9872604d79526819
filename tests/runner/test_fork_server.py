"""A fork server that is stopped, hangs or outlives its app: nobody waits for it for long, and nothing of it is left,
nor of the scratch folders of processes that were killed."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from cs336_tui.config.processes import lives
from cs336_tui.runner import launcher as launcher_module
from cs336_tui.runner import processes
from cs336_tui.runner.launcher import STOPPED_BY_USER, Launcher, StartError
from cs336_tui.runner.processes import end_scratch, make_scratch, server_pid
from tests.runner.running import Running
from tests.watching import PATIENCE_S, endless_spec, small_spec

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


class Server(Running):
    """A bench that runs an endless cell and then a short one, and the fork server of its child."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.begin(endless_spec(), small_spec())
        self.child, server = self.once_measuring(), server_pid()
        assert server
        self.server = server


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    stopped = psutil.Process(made.server) if psutil.pid_exists(made.server) else None
    if stopped and stopped.status() == psutil.STATUS_STOPPED:  # of a test that failed
        stopped.kill()
    made.bench.close()


@pytest.mark.parametrize(
    ("end", "statuses"),
    [
        (lambda running: running.bench.cancel(), ["cancelled", "cancelled"]),
        (lambda running: running.bench.stop_running(), ["cancelled", "ok"]),
        (lambda running: os.kill(running.child, signal.SIGKILL), ["killed", "ok"]),
    ],
    ids=["all is stopped", "the cell is stopped", "it dies"],
)
def test_a_run_or_a_cell_ends_and_the_next_one_runs_though_their_server_is_stopped(
    running: Server, end: Callable[[Server], object], statuses: list[str]
) -> None:
    stop(running.server)
    end(running)
    state = running.finish(PATIENCE_S if "ok" in statuses else SOON_S)
    assert [cell.status for cell in state.cells.values()] == statuses
    assert not lives(running.child)
    assert "ok" not in statuses or not lives(running.server)


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
@pytest.mark.parametrize("of_cell", [False, True], ids=["at last", "at the timeout of a cell"])
def test_a_server_that_never_loads_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_cell: bool) -> None:
    of, name = (launcher_module, "_LOADS_AT_LEAST_S") if of_cell else (processes, "LOADS_WITHIN_S")
    monkeypatch.setattr(of, name, 0.0 if of_cell else 1.0)
    made = Launcher(tmp_path, timeout_s=lambda: 1.0 if of_cell else None)
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


MAKE = "from cs336_tui.runner.processes import make_scratch; print(make_scratch(), flush=True); input()"


def test_a_scratch_folder_goes_with_its_process_and_what_a_killed_one_left_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    other = subprocess.Popen([sys.executable, "-c", MAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout
    left = Path(other.stdout.readline().strip())
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
