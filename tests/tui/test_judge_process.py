"""The process that judges for the app."""

from __future__ import annotations

import os
import subprocess
import sys
from io import BytesIO

import pytest

from cs336_tui.analysis.judge_server import serve
from cs336_tui.analysis.verdicts import judge
from cs336_tui.tui.judging import JudgeProcess
from tests.samples import a_spec
from tests.session.made import Cell, session_of

DRIFTING_S = [0.1 * (1 + 0.004 * step) for step in range(30)]
JUDGES = """
import sys
from cs336_tui.events.peaks import PeakCache
from cs336_tui.tui.judging import assess
from tests.samples import a_spec
from tests.session.made import Cell, session_of

state = session_of(Cell(a_spec(), [0.1] * 30))
assert assess(state, state.cells[0], PeakCache()).judgement.names == ("steady",)
print(*sorted({"numpy", "hashlib", "importlib.metadata"} & sys.modules.keys()))
"""


def test_a_process_that_died_is_started_anew_and_an_error_of_judging_is_told() -> None:
    cell, process = session_of(Cell(a_spec(), DRIFTING_S)).cells[0], JudgeProcess()
    assert process.judge(cell, None) == judge(cell)
    assert process._process is not None
    process._process.kill()
    process._process.wait()
    assert process.judge(cell, 0.9) == judge(cell, 0.9)
    cell.spec = None  # type: ignore[assignment]
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute"):
        process.judge(cell, None)
    process._process.kill()
    process._process.wait()


def test_the_app_judges_without_numpy_and_other_large_modules() -> None:
    found = subprocess.run([sys.executable, "-c", JUDGES], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


def test_it_ends_when_nothing_is_asked_and_when_nobody_is_left_to_ask() -> None:
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as asked:
        serve(asked, BytesIO(), kept_s=0.01)
        os.close(theirs)
        serve(asked, BytesIO())
