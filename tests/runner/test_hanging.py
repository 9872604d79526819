"""Ranks that hang are told from those that wait for them, by the stacks that they write."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cs336_tui.events.events import StageChanged, StepsTimed
from cs336_tui.runner import hanging
from cs336_tui.runner.hanging import Pulse, ask_for_stacks, crashed_in, stuck_ranks, told
from cs336_tui.runner.launcher import Rank

TORCH = "/usr/lib/python3/site-packages/torch"
IN_BACKWARD = (
    (f"{TORCH}/autograd/graph.py", 979, "_engine_run_backward"),
    (f"{TORCH}/autograd/__init__.py", 381, "backward"),
    (f"{TORCH}/_tensor.py", 630, "backward"),
    ("/home/user/passes.py", 20, "run"),
)
IN_BARRIER = (
    (f"{TORCH}/distributed/distributed_c10d.py", 5000, "barrier"),
    (f"{TORCH}/distributed/c10d_logger.py", 81, "wrapper"),
    ("/home/user/group.py", 54, "barrier"),
)
ASLEEP = (
    ("/usr/lib/python3.11/threading.py", 327, "wait"),
    ("/home/user/adapters.py", 78, "forward"),
    (f"{TORCH}/nn/modules/module.py", 1789, "_call_impl"),
)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Callable[..., list[Rank]]]:
    """Ranks that have written these stacks, each in a process that takes the signal for it."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

    def made(*stacks: tuple[tuple[str, int, str], ...]) -> list[Rank]:
        child: Any = SimpleNamespace(process=process)
        found = [Rank(child, tmp_path / str(number), tmp_path / "meeting") for number in range(len(stacks))]
        for rank, stack in zip(found, stacks, strict=True):
            lines = "".join(f'  File "{file}", line {line} in {function}\n' for file, line, function in stack)
            rank.stacks.write_text(f"Current thread 0x1 (most recent call first):\n{lines}" if stack else "")
        return found

    yield made
    process.kill()
    process.wait()


def where(ranks: list[Rank]) -> list[str]:
    ask_for_stacks(ranks)
    return told(stuck_ranks(dict(enumerate(ranks)), time.monotonic() + 0.05), "rank {}".format)


def test_one_that_sleeps_hangs_and_the_others_wait(ranks: Callable[..., list[Rank]]) -> None:
    assert where(ranks(IN_BACKWARD, ASLEEP, IN_BARRIER)) == [
        "rank 1 hangs in forward (adapters.py:78)",
        "rank 0 waits in backward (_tensor.py:630)",
        "rank 2 waits in barrier",
    ]


def test_one_that_answers_nothing_hangs(ranks: Callable[..., list[Rank]]) -> None:
    assert where(ranks((), IN_BARRIER)) == ["rank 0 hangs and does not answer", "rank 1 waits in barrier"]


def test_ranks_that_wait_in_different_operations_are_all_told(ranks: Callable[..., list[Rank]]) -> None:
    assert where(ranks(IN_BARRIER, IN_BACKWARD)) == [
        "rank 0 waits in barrier",
        "rank 1 waits in backward (_tensor.py:630)",
    ]


def test_a_pause_as_long_as_usual_between_steps_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    step = StepsTimed(at=1.0, cell=0, kind="measured", first=0, times_s=(1.0,), phases_s={})
    pulse = Pulse()
    pulse.feel([StageChanged(at=1.0, cell=0, stage="measuring")])
    now[0] += 0.6
    assert not pulse.beats()
    for _ in range(2):
        pulse.feel([step])
        now[0] += 5.0
    assert pulse.beats()
    now[0] += 5.1
    assert not pulse.beats()


def test_a_crash_is_told_with_the_line_of_ones_own_code() -> None:
    def stack(*frames: tuple[str, int, str]) -> str:
        return "".join(f'  File "{file}", line {line} in {function}\n' for file, line, function in frames)

    ours = (str(Path(hanging.__file__)), 9, "run")
    told = (
        "printed before\nFatal Python error: Segmentation fault\n\n"
        f"Thread 0x7f01 (most recent call first):\n{stack(ASLEEP[0], ('/home/user/data.py', 3, 'load'))}\n"
        f"Current thread 0x7f02 (most recent call first):\n{stack(*IN_BARRIER[:2], *ASLEEP[1:], ours)}\n"
        "Extension modules: numpy\n"
    )
    assert crashed_in(told) == " in forward (adapters.py:78)"
    assert crashed_in(told.replace("Current thread", "Thread")) == " in load (data.py:3)"
    assert crashed_in("Killed") == ""
    assert crashed_in(f"Thread 0x1 (most recent call first):\n{stack(ours)}") == ""
