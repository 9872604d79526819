"""Launching children: spawned ones, as on macOS, run cells like forked ones."""

import errno
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from itertools import count
from multiprocessing import Pipe, forkserver
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import pytest

from cs336_tui.events.events import CellFinished
from cs336_tui.runner import launcher as launcher_module
from cs336_tui.runner.child import probe
from cs336_tui.runner.launcher import PRELOADED, Child, Launcher, StartError
from cs336_tui.runner.pipes import StopSignal, write_frame
from cs336_tui.runner.supervise import Supervisor
from tests.commands import SMALL, run
from tests.watching import Watch, small_spec


def test_a_cell_runs_in_a_spawned_child(tmp_path: Path):
    launcher = Launcher(tmp_path)
    launcher.prepare()
    launcher.method = "spawn"
    launcher.start()
    child = launcher.start_cell(0, small_spec())[0].child
    watch = Watch()
    Supervisor(child, [0], watch, StopSignal()).run()
    (finished,) = watch.of(CellFinished)
    assert finished.status == "ok"
    child.close()


@pytest.mark.parametrize("spawn", [False, True])
def test_only_a_fork_server_is_started_and_told_what_to_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spawn: bool
):
    told: list[object] = []
    monkeypatch.setattr(forkserver, "set_forkserver_preload", told.append)
    monkeypatch.setattr(forkserver, "ensure_running", lambda: told.append("started"))
    launcher = Launcher(tmp_path)
    if spawn:
        launcher.method = "spawn"
    launcher.start()
    assert told == ([] if spawn else [list(PRELOADED), "started"])
    # It ignores a module that does not exist, and then every child imports torch by itself.
    assert all(Path(importlib.util.find_spec(name).origin).is_file() for name in PRELOADED)


def test_a_machine_without_room_for_a_process_is_said_to_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def no_room(_process: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(launcher_module, "SERVER_DYING_S", 0)
    monkeypatch.setattr(BaseProcess, "start", no_room)
    with pytest.raises(StartError, match="no child process can be started: Resource temporarily unavailable"):
        Launcher(tmp_path).start_answers("probe", probe)


@pytest.mark.parametrize(
    ("limits", "waited_s"),
    [({"within_s": 25}, [15, 15, 15]), ({"within_s": 5, "first_within_s": 25}, [15, 0, 0]), ({}, [None, None, None])],
)
def test_a_limit_is_that_of_each_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, float], waited_s: list[float | None]
):
    """On a clock that goes on by ten seconds whenever it is looked at; a message comes as soon as it is awaited."""
    clock, timeouts = count(0, 10), []

    def watched(ready: list[object], timeout: float | None) -> list[object]:
        write_frame(writer.fileno(), b"%d" % len(timeouts))
        timeouts.append(timeout)
        return wait(ready, 60)

    monkeypatch.setattr(launcher_module, "wait", watched)
    monkeypatch.setattr(launcher_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    reader, writer = Pipe(duplex=False)
    never, still_open = Pipe(duplex=False)
    process = SimpleNamespace(sentinel=never.fileno())
    with reader, writer, never, still_open:
        child = Child(process, reader, writer, tmp_path, "forkserver")  # type: ignore[arg-type]
        for message in child.messages(**limits):
            if message == b"2":
                break
    assert timeouts == waited_s


def test_a_server_whose_imports_woke_the_cuda_driver_is_not_forked_from(tmp_path: Path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source = tmp_path / "driver.c"
    # Awake in the process that loaded it and asleep, as the real one then says, in those forked from it.
    source.write_text(
        "#include <unistd.h>\nstatic int loader;\n"
        "__attribute__((constructor)) static void load(void) { loader = getpid(); }\n"
        "int cuDeviceGetCount(int *count) { *count = 0; return getpid() == loader ? 0 : 3; }\n"
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(source)], check=True)
    told = run("doctor", cwd=tmp_path, LD_LIBRARY_PATH=str(tmp_path)).stdout
    assert "started by spawn" in told
    assert "CUDA driver was initialised" in told
    assert "cpu " in told


SHADOWING = "json _json queue profile multiprocessing pickle platform runpy selectors signal site subprocess threading"


@pytest.mark.parametrize("method", ["forkserver", "spawn", "as a module"])
def test_no_process_imports_files_of_the_users_folder_in_place_of_pythons_own(tmp_path: Path, method: str):
    """Neither the app, the fork server, its resource tracker, the children nor their child processes."""
    for name in [*SHADOWING.split(), "click", "torch", "psutil", "sitecustomize"]:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r} + '\\n')\n")
    started = [sys.executable, "-m", "cs336_tui"] if method == "as a module" else [sys.executable, "-c", BENCH, method]
    words = [*SMALL, "--pass", "forward", "--session-dir", "s", "--format", "json"]
    done = subprocess.run([*started, "bench", *words], cwd=tmp_path, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["runs"]
    assert result["status"] == "ok"
    assert not (tmp_path / "imported").exists(), (tmp_path / "imported").read_text()


BENCH = """
import sys
del sys.path[0]  # as of an installed script, whose own folder is not the user's
from cs336_tui.cli.main import main
from cs336_tui.runner.launcher import PRELOADED, Launcher
if __name__ == "__main__":
    method = sys.argv.pop(1)
    if method == "spawn":
        made = Launcher.__init__
        Launcher.__init__ = lambda self, *own, **named: (made(self, *own, **named), setattr(self, "method", "spawn"))[0]
    main()
"""
