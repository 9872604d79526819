"""The installed command, as scripts call it, and flags of cells that take next to no time."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import pytest

from cs336_tui.cli.main import main
from tests.watching import PATIENCE_S

COMMAND = str(Path(sys.executable).with_name("cs336-tui"))
DIMS = "--d-model 32 --d-ff 64 --num-layers 1 --num-heads 2 --vocab-size 64".split()
SMALL = [*DIMS, *"--context 8 --batch 1 --warmup 1 --steps 3 --device cpu --threads 1".split()]


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *words], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL
    )


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
