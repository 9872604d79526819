"""torch.compile in children: one that is ended leaves no compiler behind; each cell starts with empty caches, or uses
the folder that the user names."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cs336_tui.config.processes import CACHE_FOLDER
from cs336_tui.runner.launcher import Launcher
from cs336_tui.worker.workload.compile_and_capture import why_cannot_compile
from tests.runner.running import Running
from tests.watching import PATIENCE_S, is_gone, small_spec

WHY = why_cannot_compile("cpu")
pytestmark = [
    pytest.mark.skipif(WHY is not None, reason=WHY or ""),
    pytest.mark.timeout(300),  # a C++ compiler is waited for, on a busy machine for minutes
]


class Compiling(Running):
    """A bench whose only cell is being compiled."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.begin(small_spec(compile="default", pass_="forward+backward"))

    def compilers(self) -> tuple[int, list[psutil.Process]]:
        """The child's pid, and the processes that it has started, once it compiles C++."""
        self.watch.until(lambda state: state.cells and state.cells[0].stage == "compiling")
        pid = self.watch.state.cells[0].pid
        give_up_at = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up_at:
            with contextlib.suppress(psutil.NoSuchProcess):  # of a compiler that ended meanwhile
                found = psutil.Process(pid).children(recursive=True)
                if any("cc1plus" in each.name() for each in found):
                    return pid, found
            time.sleep(0.02)
        pytest.fail("no compiler was started for a minute")


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


TELLING = """
import json, os, sys
from pathlib import Path
from torch import nn
from torch._inductor import codecache

told = Path(__file__).with_name("told.jsonl")


class Telling(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        caches = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])  # importing codecache sets it where nobody else has
        headers = getattr(codecache, "_HEADER_DIR", None)  # torch 2.6 keeps no precompiled headers
        found = {"caches": str(caches), "files": [each.name for each in caches.rglob("*")], "headers": headers}
        with told.open("a") as file:
            file.write(json.dumps(found) + "\\n")
        (caches / "left").touch()
        sys.exit(0)  # compiling itself takes long
"""


def found_by_cells(folder: Path, *options: str, users: Path | None = None) -> list[dict[str, Any]]:
    """Caches that each cell of one run found when its model was made: two eager cells and two compiled ones.

    The environment holds no setting of torch.compile but the folder that the user names.
    """
    (folder / "telling_model.py").write_text(TELLING)
    kept = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    with tempfile.TemporaryDirectory() as short:  # the path of a socket in it may have 107 bytes
        subprocess.run(
            [sys.executable, "-m", "cs336_tui", "bench", "--model", "telling_model:Telling",
             "--model-path", str(folder), "--compile", "off,default", "--repeats", "2", "--pass", "forward",
             "--context", "8", "--device", "cpu", "--session-dir", str(folder / "sessions"), *options],
            env=kept | {"TMPDIR": short} | ({CACHE_FOLDER: str(users)} if users else {}),
            capture_output=True,
            check=False,  # the cells fail
        )  # fmt: skip
    return [json.loads(line) for line in (folder / "told.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("options", [(), ("--in-process",)])
def test_every_compiled_cell_finds_empty_caches_of_its_own(tmp_path: Path, options: tuple[str, ...]) -> None:
    found = [each for each in found_by_cells(tmp_path, *options) if "compile-" in each["caches"]]
    assert len({each["caches"] for each in found}) == len(found) == 2
    assert [each["files"] for each in found] == [[], []]
    assert all(each["headers"].startswith(each["caches"]) for each in found if each["headers"])
    assert not any(Path(each["caches"]).exists() for each in found)


@pytest.mark.parametrize("options", [(), ("--in-process",)])
def test_a_folder_that_the_user_names_is_used_as_it_is(tmp_path: Path, options: tuple[str, ...]) -> None:
    users = tmp_path / "mine"
    users.mkdir()
    (users / "kept").touch()
    found = found_by_cells(tmp_path, *options, users=users)
    assert {each["caches"] for each in found} == {str(users)}
    assert all("kept" in each["files"] for each in found)
    headers = [each["headers"] for each in found if each["headers"]]
    assert not headers or sum(each.startswith(str(users)) for each in headers) == 2, "those of the compiled cells"
    assert (users / "left").exists()
