"""The installed command, as scripts call it, and flags of cells that take next to no time."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from cs336_tui.cli.main import main
from tests.watching import PATIENCE_S

COMMAND = str(Path(sys.executable).with_name("cs336-tui"))
DIMS = "--d-model 32 --d-ff 64 --num-layers 1 --num-heads 2 --vocab-size 64".split()
SMALL = [*DIMS, *"--context 8 --batch 1 --warmup 1 --steps 3 --device cpu --threads 1".split()]


def run(*words: str, cwd: Path, program: str = COMMAND, **environment: str) -> subprocess.CompletedProcess[str]:
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    env = os.environ | environment
    return subprocess.run([program, *words], cwd=cwd, env=env, text=True, timeout=PATIENCE_S, **streams)


def bench(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run("bench", "--session-dir", str(cwd / "sessions"), *words, cwd=cwd)


def call(
    *words: str, cwd: Path | None = None, answer: str = "", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, whose fork server is warm: for what is not about the process itself."""
    streams = {
        "stdin": io.TextIOWrapper(io.BytesIO(answer.encode())),
        "stdout": io.TextIOWrapper(io.BytesIO(), write_through=True),
        "stderr": io.TextIOWrapper(io.BytesIO(), write_through=True),
    }
    with contextlib.ExitStack() as kept:
        kept.enter_context(contextlib.chdir(cwd or Path.cwd()))
        kept.enter_context(mock.patch.dict(os.environ, environment or {}))
        kept.enter_context(mock.patch.multiple(sys, **streams))
        with pytest.raises(SystemExit) as ended:
            main(words)
    out, err = (streams[name].buffer.getvalue().decode() for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess(words, int(ended.value.code or 0), out, err)


def call_bench(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return call("bench", "--session-dir", str(cwd / "sessions"), *words, cwd=cwd)


@contextlib.contextmanager
def running(*words: str, cwd: Path, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """The command as a process that leads a group, all of which is ended after the block."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([COMMAND, *words], cwd=cwd, text=True, start_new_session=True, **(streams | more))
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def stopped(process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT) -> str:
    """The output of a command that a terminal's signal ends, with 130 and no traceback."""
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    return out


def once_measuring(process: subprocess.Popen[str], sessions: Path) -> Path:
    """The log of the session, once it holds measured steps."""
    give_up_at = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < give_up_at:
        for log in sessions.glob("*.jsonl"):
            if b'"kind":"measured"' in log.read_bytes():
                return log
        time.sleep(0.02)  # nothing announces that a file has grown
    raise AssertionError(process.stderr and process.stderr.read())
