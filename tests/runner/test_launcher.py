"""Children that are spawned, as on macOS and where a fork cannot be used, run cells like forked ones."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    finished = Supervisor(child, 0, watch, StopSignal()).run()
    assert launcher.method == ("spawn" if spawn else "forkserver")
    assert finished.status == "ok"
    assert watch.of(type(finished)) == [finished]
    child.close()
