"""Scripts that run on a host of ``--launcher ssh``, run here by `sh`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cs336_tui.runner.jobs.ssh_scripts import FUNCTIONS


def test_a_job_does_not_wait_for_a_zombie(tmp_path: Path) -> None:
    """As on a host whose first process reaps nothing."""
    before = subprocess.Popen([sys.executable, "-c", "", str(tmp_path / "1.json")], stdin=subprocess.PIPE)
    os.waitid(os.P_PID, before.pid, os.WEXITED | os.WNOWAIT)
    (tmp_path / "1.pid").write_text(f"{before.pid} {before.pid}\n")
    waits = f'{FUNCTIONS}\ncd "$1"; eval "exec setsid sh -c \\"\\$supervisor\\" sh $1/2.json $1 true 1"'
    done = subprocess.run(["sh", "-c", waits, "sh", str(tmp_path)], timeout=20)
    assert done.returncode == -9, "it ends its own group last"
    assert (tmp_path / "2.end").read_text() == "0\n"
    before.communicate()
