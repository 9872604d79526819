"""Children that are spawned, as on macOS and where a fork cannot be used, run cells like forked ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cs336_tui.events import CellFinished
from cs336_tui.runner.launcher import Launcher
from cs336_tui.runner.stop import StopSignal
from cs336_tui.runner.supervise import Supervisor
from tests.watching import Watch, small_spec


@pytest.mark.parametrize("spawn", [False, True])
def test_a_cell_runs_in_a_child(tmp_path: Path, spawn: bool):
    launcher = Launcher(tmp_path)
    launcher.prepare()
    if spawn:
        launcher.use_spawn()
    launcher.start()
    child = launcher.start_cell(0, small_spec())
    watch = Watch()
    Supervisor(child, 0, watch, StopSignal()).run()
    (finished,) = watch.of(CellFinished)
    assert launcher.method == ("spawn" if spawn else "forkserver")
    assert finished.status == "ok"
    assert watch.of(type(finished)) == [finished]
    child.close()


def doctor(folder: Path, **env: str) -> str:
    command = Path(sys.executable).with_name("cs336-tui")
    done = subprocess.run(
        [command, "doctor"], cwd=folder, env=os.environ | env, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


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
    told = doctor(tmp_path, LD_LIBRARY_PATH=str(tmp_path))
    assert "started by spawn" in told
    assert "CUDA driver was initialised" in told
    assert "cpu " in told


@pytest.mark.parametrize("name", ["queue.py", "profile.py"])
def test_files_of_the_users_folder_are_not_taken_for_pythons_own(tmp_path: Path, name: str):
    (tmp_path / name).write_text("raise SystemExit('imported in place of the standard library')\n")
    told = doctor(tmp_path)
    assert "fp32" in told
    assert "imported in place" not in told
