import os
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Iterator

import psutil
import pytest

from cs336_tui.runner.device.host import HostReader

WINDOW_S = 0.15
TICKS_S = 0.04
"""Rounding: a tick of 10 ms for user and system time, own and children's."""


def spin(seconds: float) -> None:
    """Take this much CPU time, however long that lasts."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing until its input ends."""
    child = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    child.stdout.readline()
    yield child
    child.communicate(b"\n")


def test_memory_load_and_cpus_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> tuple[float, float, float]:
        raise OSError

    sample = HostReader().sample()
    assert 0 < sample.memory_used_bytes < sample.memory_total_bytes
    assert (sample.cpu_count, sample.child_rss_bytes) == (os.cpu_count(), None)
    assert sample.load_1m >= 0
    monkeypatch.setattr(psutil, "getloadavg", refuse)
    sample = HostReader().sample()
    assert sample.load_1m is None
    assert sample.memory_used_bytes


def test_cpu_share_is_unknown_at_first_and_then_the_share_since_the_last_sample() -> None:
    host = HostReader()
    assert host.sample().cpu is None
    until = time.monotonic() + 0.15
    while time.monotonic() < until:
        pass
    busy = host.sample().cpu
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
    child.stdout.readline()
    rss = host.sample(child.pid).child_rss_bytes
    assert 102_400_000 < rss < 250_000_000

    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, not yet reaped
    assert host.sample(child.pid).child_rss_bytes is None
    child.communicate()
    assert host.sample(child.pid).child_rss_bytes is None
    assert host.sample(None).child_rss_bytes is None


@pytest.mark.parametrize("whose", ["its own", "of its children that have ended"])
def test_cores_of_the_child_are_its_cpu_time_over_the_time_between(whose: str) -> None:
    """Held between what was used, and how long it took, inside and outside of the two samples."""
    host = HostReader()
    before = time.monotonic(), sum(os.times()[:4])
    assert host.sample(os.getpid()).child_cores is None
    began = time.monotonic(), sum(os.times()[:4])
    if whose == "its own":
        spin(0.3)
    else:
        subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.4: pass"], check=True)
    ended = time.monotonic(), sum(os.times()[:4])
    cores = host.sample(os.getpid()).child_cores
    after = time.monotonic(), sum(os.times()[:4])
    assert (ended[1] - began[1] - TICKS_S) / (after[0] - before[0]) <= cores
    assert cores <= (after[1] - before[1] + TICKS_S) / (ended[0] - began[0])


def test_another_child_begins_anew_and_cores_are_not_counted_over_too_short_a_time(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = HostReader()
    host.sample(os.getpid())
    spin(WINDOW_S)
    cores = host.sample(os.getpid()).child_cores
    assert cores
    with monkeypatch.context() as patch:
        patch.setattr("cs336_tui.runner.device.host._SHORTEST_CPU_WINDOW_S", 3600)  # however slow
        assert host.sample(os.getpid()).child_cores == cores
    assert host.sample(sleeper.pid).child_cores is None
    spin(WINDOW_S)
    assert host.sample(None).child_cores is None


def test_steal_is_its_share_of_all_cores_time_where_the_system_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda: 50.0)
    times = namedtuple("times", "user nice system idle iowait irq softirq steal guest guest_nice")
    monkeypatch.setattr(psutil, "cpu_times", lambda: times(100, 0, 10, 500, 0, 0, 0, 5, 50, 0))
    host = HostReader()
    assert host.sample().steal is None
    spin(WINDOW_S)
    monkeypatch.setattr(psutil, "cpu_times", lambda: times(150, 0, 10, 530, 0, 0, 0, 25, 90, 0))
    assert host.sample().steal == pytest.approx(20 / 100)  # a guest's time is the user's, not counted twice
    macos = namedtuple("macos", "user nice system idle")
    monkeypatch.setattr(psutil, "cpu_times", lambda: macos(time.monotonic(), 0, 10, 500))
    host = HostReader()
    spin(WINDOW_S)
    assert host.sample().steal is None


def test_each_rank_has_its_process_and_the_cell_the_cores_of_those_that_are_there(
    sleeper: subprocess.Popen[bytes],
) -> None:
    host = HostReader()
    pids = (os.getpid(), sleeper.pid)
    assert [rank.cores for rank in host.sample(*pids).ranks] == [None, None]
    spin(0.3)
    sample = host.sample(*pids)
    ours, idle = sample.ranks
    assert (ours.pid, idle.pid) == pids
    assert ours.cores > 0
    assert idle.cores == pytest.approx(0, abs=0.1)
    assert sample.child_cores == ours.cores + idle.cores
    assert sample.child_rss_bytes == max(ours.rss_bytes or 0, idle.rss_bytes or 0)
    assert ours.rss_bytes != idle.rss_bytes
    sleeper.kill()
    sleeper.wait()
    spin(WINDOW_S)
    sample = host.sample(*pids)
    assert (sample.ranks[1].rss_bytes, sample.ranks[1].cores) == (None, None)
    assert sample.child_cores == sample.ranks[0].cores
    assert sample.child_rss_bytes == sample.ranks[0].rss_bytes
    assert host.sample(os.getpid()).ranks == (), "one process is no rank"


def test_a_process_is_followed_on_while_another_is_sampled() -> None:
    host = HostReader()
    cells = [(os.getpid(),), (os.getppid(),)]
    assert [each.child_cores for each in host.sample_each(cells)] == [None, None]
    spin(WINDOW_S)
    host.sample_each(cells[1:], cells)
    began = time.monotonic()
    spin(WINDOW_S)
    own, parent = host.sample_each(cells)
    assert own.child_cores == pytest.approx(WINDOW_S / (time.monotonic() - began), rel=0.5)
    assert parent.child_cores is not None
    assert own.cpu == parent.cpu
    assert (own.beside_cores, parent.beside_cores) == (parent.child_cores, own.child_cores)
    assert host.sample_each(cells[:1])[0].beside_cores is None
