"""The settings in force in a cell's process, not those asked for; and its run-queue delay as the kernel counts it,
while real processes compete for a core."""

import os
import platform
import sys
from pathlib import Path

import pytest
import torch

from cs336_tui.runner.bench import Bench
from cs336_tui.worker.measure import process
from cs336_tui.worker.measure.process import RunQueueMeter, usable_cores
from cs336_tui.worker.measure.reporter import effective_allocator, read_effective_settings
from cs336_tui.worker.workload.building import build, facts_of
from cs336_tui.worker.workload.transformer import Attention
from tests.loading import python
from tests.watching import Watch
from tests.watching import small_spec as bench_spec
from tests.worker.measure.cells import c_library, run, small_spec

CPU = torch.device("cpu")
on_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or effective_allocator(CPU) is None,
    reason="only glibc's malloc is told what to keep",
)


def test_attention_is_told_by_the_layers_that_are_there() -> None:
    class Other(Attention):
        METHOD = "another"

    workload = build(spec := small_spec(num_layers=2), CPU)
    workload.model.layers[1].attention.__class__ = Other
    in_force = read_effective_settings(workload._replace(facts=facts_of(workload.model, spec)))
    assert in_force.attention == "another + naive (scores materialised)"


@on_glibc
@pytest.mark.parametrize(("in_process", "setting"), [(False, "keeps freed memory"), (True, "default settings")])
def test_a_cell_in_the_apps_own_process_does_not_claim_what_only_a_child_sets(
    tmp_path: Path, setting: str, *, in_process: bool
) -> None:
    watch = Watch()
    bench = Bench(watch, session_dir=tmp_path, device_interval_s=0, in_process=in_process)
    try:
        bench.prepare()
        bench.run([bench_spec()], "a command")
    finally:
        bench.close()
    assert watch.state.cells[0].in_force.allocator == f"malloc of {' '.join(platform.libc_ver())}, {setting}"


@on_glibc
def test_memory_that_is_said_to_be_kept_is_not_faulted_in_again() -> None:
    """Runs in a separate process, as the setting cannot be undone."""
    code = """
import ctypes, resource
from cs336_tui.worker.measure.process import keep_freed_memory, effective_malloc
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = libc.malloc(20 * 2**20)
    ctypes.memset(held, 1, 20 * 2**20)
    libc.free(held)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
print(effective_malloc(), faults(), faults(), sep="|")
"""
    said, first, again = python(code).stdout.split("|")
    assert said.endswith(", keeps freed memory")
    assert int(again) < int(first) / 2


@on_glibc
def test_what_the_environment_sets_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    said = effective_allocator(CPU)
    assert said.endswith(", MALLOC_TRIM_THRESHOLD_=65536")


def test_a_malloc_loaded_in_place_of_the_c_librarys_is_named(tmp_path: Path) -> None:
    if sys.platform != "linux" or platform.machine() == "aarch64":
        pytest.skip("needs Linux")
    source = "#include <stddef.h>\nvoid *__libc_malloc(size_t);\nvoid *malloc(size_t n) { return __libc_malloc(n); }\n"
    library = c_library(tmp_path / "libother.so", source)
    code = "from cs336_tui.worker.measure.process import *; keep_freed_memory(); print(effective_malloc())"
    assert python(code, env={"LD_PRELOAD": library}).stdout == "malloc of libother.so, default settings\n"


def test_the_cuda_allocator_and_its_settings_and_one_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    cuda = torch.device("cuda:0")
    assert effective_allocator(cuda) == "native, default settings"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    assert effective_allocator(cuda) == (
        "native, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, PYTORCH_NO_CUDA_MEMORY_CACHING=1"
    )
    assert effective_allocator(torch.device("meta")) is None


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
    found_s, not_running_s = map(float, python(CONTEST, where).stdout.split())
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
def test_the_thread_that_waited_longest_is_told_beside_the_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of a thread begun since count; waits before the meter was made do not, nor one that ends while read."""

    def waits(**seconds: float) -> None:
        for thread, waited_s in seconds.items():
            (tmp_path / thread).mkdir(exist_ok=True)
            (tmp_path / thread / "schedstat").write_text(f"1 {int(waited_s * 1e9)} 1\n")

    monkeypatch.setattr(process, "_TASKS", tmp_path)
    waits(a=1.0, b=50.0)
    (tmp_path / "ends").mkdir()  # its files have gone
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
    lines = python(AFFINITY).stdout.splitlines()
    (allowed, found), one, *two = (list(map(int, line.split())) for line in lines)
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
