from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cs336_tui.runner.device.gpu import OtherProcesses


def test_strangers_are_named_with_their_memory() -> None:
    others = OtherProcesses(namespaced=False).among({1: 7, os.getpid(): 5}, child=None)
    assert others is not None
    (stranger,) = others
    assert (stranger.pid, stranger.memory_bytes) == (1, 7)
    assert stranger.name


@pytest.mark.parametrize("unknown", [None, 0])
def test_memory_that_nvml_does_not_know_is_none(unknown: int | None) -> None:
    others = OtherProcesses(namespaced=False).among({1: unknown}, child=None)
    assert others is not None
    assert others[0].memory_bytes is None


def test_a_grandchild_is_own_even_after_its_parent_has_gone() -> None:
    waits = "import sys; sys.stdin.read()"
    starts_one = f"import subprocess; print(subprocess.Popen([sys.executable, '-c', {waits!r}]).pid, flush=True)"
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import sys; {starts_one}; {waits}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    grandchild = int(parent.stdout.readline())
    processes = OtherProcesses(namespaced=False)
    try:
        assert processes.among({grandchild: 1}, child=None) == ()
        parent.kill()
        parent.wait()
        assert processes.among({grandchild: 1}, child=None) == ()
    finally:
        parent.communicate()


def test_the_running_cell_is_own_whoever_its_parent() -> None:
    processes = OtherProcesses(namespaced=False)
    assert processes.among({1: 1}, child=1) == ()
    assert processes.among({1: 1}, child=None) == ()  # it may outlast its cell by a moment


def test_a_process_that_cannot_be_looked_up_is_a_stranger_without_a_name() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    others = OtherProcesses(namespaced=False).among({gone.pid: 3}, child=None)
    assert others is not None
    assert (others[0].pid, others[0].name) == (gone.pid, None)


def test_in_a_container_nobody_else_is_never_certain() -> None:
    processes = OtherProcesses(namespaced=True)
    assert processes.among({}, child=None) is None
    assert processes.among({1: 1}, child=None) is None  # may be our own child under the host's PID
    assert processes.among({os.getpid(): 1}, child=None) is None
    recognised = processes.among({os.getpid(): 1, 1: 2}, child=None)
    assert recognised is not None
    assert [p.pid for p in recognised] == [1]
