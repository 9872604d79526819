"""Judges the cells that another process sends, so that it need not have numpy in its own memory.

Reads pickled pairs (a cell, the share of its profiled step in which the GPU was idle) from standard input, and writes
for each a pickled pair: the judgement, and the error if there is none.
"""

from __future__ import annotations

import os
import pickle
import select
import sys
from typing import BinaryIO

from cs336_tui.analysis.judgement import Judgement

KEPT_S = 300.0
"""The process ends when it has been asked nothing for so many seconds."""


def serve(asked: BinaryIO, answers: BinaryIO, kept_s: float = KEPT_S) -> None:
    """Judge until the other side closes its end, or asks nothing for `kept_s`."""
    from cs336_tui.analysis.verdicts import judge

    while select.select([asked], [], [], kept_s)[0]:
        try:
            cell, idle = pickle.load(asked)
        except EOFError:
            return
        answer: tuple[Judgement | None, Exception | None]
        try:
            answer = judge(cell, idle), None
        except Exception as error:
            answer = None, error
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    os.nice(19)  # a cell may be measured
    serve(sys.stdin.buffer, sys.stdout.buffer)
