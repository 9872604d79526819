"""Run-queue delay counted by the kernel, while real processes compete for a core."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cs336_tui.worker.measure import process
from cs336_tui.worker.measure.process import RunQueueMeter, usable_cores
from tests.worker.measure.cells import run, small_spec


def seconds(wait: RunQueueMeter) -> float | None:
    waited = wait.read()
    return None if waited is None else waited.sum_s


counted = pytest.mark.skipif(seconds(RunQueueMeter()) is None, reason="this system does not count waiting for a core")

CONTEST = """
import os, subprocess, sys, threading, time
from cs336_tui.worker.measure.process import RunQueueMeter

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
# It inherits the core, and ends by itself should nobody end it.
code = "import time\\nprint(flush=True)\\nwhile time.process_time() < 20: pass"
rival = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
try:
    rival.stdout.readline()
    waited, began, used = RunQueueMeter(), time.perf_counter(), time.process_time()

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
    found_s = waited.read().sum_s
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
    first = RunQueueMeter()
    second = RunQueueMeter()
    assert 0 <= seconds(second) <= seconds(first)


@counted
def test_a_thread_that_ends_while_it_is_read_costs_itself_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1/schedstat").write_text("500 2000000000 3\n")
    (tmp_path / "2").mkdir()  # its files have gone
    monkeypatch.setattr(process, "_TASKS", tmp_path)
    wait = RunQueueMeter()
    (tmp_path / "1/schedstat").write_text("900 3500000000 4\n")
    assert seconds(wait) == pytest.approx(1.5)


def test_the_thread_that_waited_longest_is_told_beside_the_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of a thread begun since count; waits before the meter was made do not."""

    def waits(**seconds: float) -> None:
        for thread, waited_s in seconds.items():
            (tmp_path / thread).mkdir(exist_ok=True)
            (tmp_path / thread / "schedstat").write_text(f"1 {int(waited_s * 1e9)} 1\n")

    monkeypatch.setattr(process, "_TASKS", tmp_path)
    waits(a=1.0, b=50.0)
    wait = RunQueueMeter()
    waits(a=1.25, b=50.5, c=0.75)
    assert wait.read() == pytest.approx((1.5, 0.75))


AFFINITY = """
import os, sys, threading
from cs336_tui.worker.measure.process import usable_cores

cores = sorted(os.sched_getaffinity(0))
print(len(cores), usable_cores())
os.sched_setaffinity(0, cores[:1])
print(usable_cores())
if len(cores) > 1:  # as OpenMP may tie each thread to a core of its own
    tied, over = threading.Event(), threading.Event()
    def tie():
        os.sched_setaffinity(0, cores[1:2])
        tied.set()
        over.wait()
    threading.Thread(target=tie).start()
    tied.wait()
    print(usable_cores())
    over.set()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which cores a process may use")
def test_cores_that_any_thread_may_use_are_usable() -> None:
    run = subprocess.run([sys.executable, "-c", AFFINITY], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    (allowed, found), one, *two = (list(map(int, line.split())) for line in run.stdout.splitlines())
    assert (found, one) == (allowed, [1])
    assert two in ([], [[2]])


def test_a_cell_tells_who_waited_longest_and_its_cores() -> None:
    finished = run(small_spec()).finished
    assert finished.usable_cores == usable_cores()
    if finished.cpu_wait_s is None:
        assert finished.longest_cpu_wait_s is None
    else:
        assert 0 <= finished.longest_cpu_wait_s <= finished.cpu_wait_s


@pytest.mark.parametrize("text", ["0 0 0\n", "", None])
def test_a_system_that_does_not_count_says_so(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel without the counters gives zeros, which are not a waiting time of 0."""
    monkeypatch.setattr(process, "_TASKS", tmp_path)
    if text is not None:
        (tmp_path / str(os.getpid())).mkdir()
        (tmp_path / str(os.getpid()) / "schedstat").write_text(text)
    assert seconds(RunQueueMeter()) is None
