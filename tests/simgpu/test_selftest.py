"""The self-test on a simulated GPU: each program tells the device's step time."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from statistics import median

from tests.simgpu.cells import FEW, command, truth

PROGRAMS = {"bare", "control", "bench", "bench, no sampling", "app"}
PASS, CANNOT_TELL = 0, 3
LATE = 1.05
"""A busy machine lets a program wait for a core at the end of a step."""


def test_all_programs_of_a_selftest_tell_the_devices_step_time(tmp_path: Path) -> None:
    words = ["selftest", "--device", "cuda", "--quick", "--size", "tiny", "--session-dir", str(tmp_path)]
    done = command(tmp_path, *words, KERNEL_US=300, GEMM_US=300)
    assert done.returncode in (PASS, CANNOT_TELL), done.stderr[-4000:]  # the latter where the machine is busy
    windows = [each for found in truth(tmp_path / "truth").values() for each in found if len(each.work) > FEW]
    kinds = [tuple(work.name for work in each.work) for each in windows]
    ((usual, _),) = Counter(kinds).most_common(1)
    step_s = 1e-9 * median(
        max(work.end_ns for work in each.work) - each.after_ns
        for each, kind in zip(windows, kinds, strict=True)
        if kind == usual
    )
    (path,) = (tmp_path / "selftests").glob("*.json")
    turns = [turn for start in json.loads(path.read_text())["taken"]["starts"] for turn in start]
    assert {*turns[0]} == PROGRAMS
    for program in PROGRAMS:
        told = [time_s for turn in turns for time_s in turn[program]["counted"]]
        assert len(told) >= len(turns)
        assert 0.998 * step_s < median(told) < LATE * step_s, program
