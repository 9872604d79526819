"""Time on a run queue, as the kernel counts it, against processes that really compete for a core."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cs336_tui.measure import waiting
from cs336_tui.measure.waiting import CpuWait

counted = pytest.mark.skipif(CpuWait().seconds() is None, reason="this system does not count waiting for a core")

CONTEST = """
import os, subprocess, sys, threading, time
from cs336_tui.measure.waiting import CpuWait

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
# It inherits the core, and ends by itself should nobody end it.
code = "import time\\nprint(flush=True)\\nwhile time.process_time() < 20: pass"
rival = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
try:
    rival.stdout.readline()
    waited, began, used = CpuWait(), time.perf_counter(), time.process_time()

    def spin():
        while time.process_time() - used < 0.3:
            pass

    if sys.argv[1] == "here":
        spin()
    else:
        told = threading.Event()
        def spin_and_tell():
            spin()
            told.set()
            held.wait()
        held = threading.Event()
        threading.Thread(target=spin_and_tell).start()
        told.wait()
    found_s = waited.seconds()
    print(found_s, time.perf_counter() - began - (time.process_time() - used))
    if sys.argv[1] != "here":
        held.set()
finally:
    rival.kill()
    rival.wait()
"""


@counted
@pytest.mark.parametrize("where", ["here", "in a thread begun since"])
def test_a_rival_on_the_same_core_makes_a_busy_process_wait(where: str) -> None:
    """Two equals share a core: to have it for 0.3 s takes about as long again."""
    run = subprocess.run([sys.executable, "-c", CONTEST, where], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    found_s, not_running_s = map(float, run.stdout.split())
    assert found_s > 0.1
    # Of a process with one busy thread the clock tells as much: what it did not run, it waited, save for what a
    # hypervisor took.
    assert 0.5 * not_running_s < found_s < 1.2 * not_running_s + 0.05


@counted
def test_nothing_has_been_waited_for_before_it_was_made() -> None:
    first = CpuWait()
    second = CpuWait()
    assert 0 <= second.seconds() <= first.seconds()


@counted
def test_a_thread_that_ends_while_it_is_read_costs_itself_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1/schedstat").write_text("500 2000000000 3\n")
    (tmp_path / "2").mkdir()  # its files have gone
    monkeypatch.setattr(waiting, "_TASKS", tmp_path)
    wait = CpuWait()
    (tmp_path / "1/schedstat").write_text("900 3500000000 4\n")
    assert wait.seconds() == pytest.approx(1.5)


@pytest.mark.parametrize("text", ["0 0 0\n", "", None])
def test_a_system_that_does_not_count_says_so(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel without the counters gives zeros, which are not a waiting time of 0."""
    monkeypatch.setattr(waiting, "_TASKS", tmp_path)
    if text is not None:
        (tmp_path / str(os.getpid())).mkdir()
        (tmp_path / str(os.getpid()) / "schedstat").write_text(text)
    assert CpuWait().seconds() is None
