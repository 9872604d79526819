"""The process that judges cells for the app: numpy, which that takes, is a fifth of an app's memory."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from cs336_tui.session.states import CellState

if TYPE_CHECKING:
    from cs336_tui.analysis.judgement import Judgement


class JudgeProcess:
    """Judges cells in a process of its own, which is started when it is needed and ends by itself when nothing was
    asked for a while, or when this process ends. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, unless it runs; returns at once."""
        with self._lock:
            self._running()

    def judge(self, cell: CellState, idle: float | None) -> Judgement | None:
        """As `verdicts.judge`, with its errors; OSError if there can be no such process, EOFError if it dies."""
        asked = pickle.dumps((_whole(cell), idle))
        with self._lock:
            try:
                answer = self._ask(asked)
            except (EOFError, BrokenPipeError):  # it had just ended
                answer = self._ask(asked)
        found, error = answer
        if error is not None:
            raise error
        return found

    def _ask(self, asked: bytes) -> tuple[Judgement | None, Exception | None]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(asked)
            process.stdin.flush()
            answer: tuple[Judgement | None, Exception | None] = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError):
            self._process = None
            raise
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "cs336_tui.analysis.judge_server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )
        return self._process


JUDGE = JudgeProcess()
"""The one of this process."""


def _whole(cell: CellState) -> CellState:
    """The cell with its steps and samples read, without its former attempts."""
    whole = copy.copy(cell)
    _ = whole.times, whole.surroundings
    whole.earlier, whole.unread = [], None
    return whole
