from __future__ import annotations

import os
import subprocess
import sys
import time

from cs336_tui.device.host import HostReader


def test_memory_load_and_cpus_of_this_machine() -> None:
    sample = HostReader().sample()
    assert sample.memory_total_bytes is not None
    assert sample.memory_used_bytes is not None
    assert 0 < sample.memory_used_bytes < sample.memory_total_bytes
    assert sample.cpu_count == os.cpu_count()
    assert sample.load_1m is not None
    assert sample.load_1m >= 0
    assert sample.child_rss_bytes is None


def test_cpu_share_is_unknown_at_first_and_then_the_share_since_the_last_sample() -> None:
    host = HostReader()
    assert host.sample().cpu is None
    until = time.monotonic() + 0.15
    while time.monotonic() < until:
        pass
    busy = host.sample().cpu
    assert busy is not None
    assert 0 < busy <= 1
    assert host.sample().cpu == busy  # too soon for another


def test_resident_memory_of_the_child_until_it_has_gone() -> None:
    host = HostReader()
    child = subprocess.Popen(
        [sys.executable, "-c", "held = bytes(range(256)) * 400_000; print('ready', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    rss = host.sample(child.pid).child_rss_bytes
    assert rss is not None
    assert 102_400_000 < rss < 250_000_000

    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, not yet reaped
    assert host.sample(child.pid).child_rss_bytes is None
    child.communicate()
    assert host.sample(child.pid).child_rss_bytes is None
    assert host.sample(None).child_rss_bytes is None


def test_another_child_is_another_process() -> None:
    host = HostReader()
    assert host.sample(os.getpid()).child_rss_bytes != host.sample(os.getppid()).child_rss_bytes
