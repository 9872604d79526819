"""The installed command, as scripts call it, and flags of cells that take next to no time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
