"""Ranks that hang are told from those that wait for them, by the stacks that they write."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cs336_tui.events.events import CellFinished, Event, StageChanged, StepsTimed
from cs336_tui.runner import ranks as runner_of_ranks
from cs336_tui.runner import supervise
from cs336_tui.runner.launcher import Rank
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.runner.ranks import Note, RankFold, run_ranks
from cs336_tui.runner.supervise import ALIVE_S, Pulse, Stuck, ask_for_stacks, crashed_in, explain_exit, stuck_ranks
from tests.watching import PATIENCE_S

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


IN_COMPILING = (
    ("/usr/lib/python3.11/subprocess.py", 1209, "communicate"),
    (f"{TORCH}/_inductor/codecache.py", 2100, "load"),
    (f"{TORCH}/_inductor/graph.py", 2300, "compile_to_module"),
    (f"{TORCH}/_dynamo/convert_frame.py", 1300, "_compile"),
    (f"{TORCH}/nn/modules/module.py", 1789, "_call_impl"),
)
WAITS_FOR_COMPILERS = (
    (f"{TORCH}/_inductor/compile_worker/subproc_pool.py", 237, "_read_thread"),
    ("/usr/lib/python3.11/threading.py", 1045, "_bootstrap_inner"),
)
IN_COMPILED_CODE = (
    (f"{TORCH}/distributed/distributed_c10d.py", 3000, "all_reduce"),
    ("/tmp/cache/ab/cab.py", 40, "call"),
    (f"{TORCH}/_inductor/output_code.py", 600, "__call__"),
    (f"{TORCH}/_dynamo/eval_frame.py", 900, "compile_wrapper"),
)
WRITES = """
import pathlib, signal, sys, time
text, stacks, works = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "works"
signal.signal(signal.SIGUSR1, lambda *_: open(stacks, "a").write(text.read_text()))
print("ready", flush=True)
while True:
    works or signal.pause()
"""
"""A process that writes a stack when it is asked for it, and works or sleeps meanwhile."""


Stack = tuple[tuple[str, int, str], ...]


def thread_text(name: str, stack: Stack) -> str:
    """A thread's stack as `faulthandler` writes it."""
    lines = "".join(f'  File "{file}", line {line} in {function}\n' for file, line, function in stack)
    return f"{name} (most recent call first):\n{lines}"


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Callable[..., list[Rank]]]:
    """Ranks that write these stacks when they are asked."""
    processes: list[subprocess.Popen[str]] = []

    def made(*stacks: Stack, works: bool = False, beside: Stack = ()) -> list[Rank]:
        """Each has a thread of the stack `beside` it, if that has frames."""
        found = []
        for number, stack in enumerate(stacks):
            text, own = tmp_path / f"{number}.text", tmp_path / f"{number}.stacks"
            threads = (("Thread 0x2", beside), ("Current thread 0x1", stack))
            text.write_text("\n".join(thread_text(name, frames) for name, frames in threads if frames))
            command = [sys.executable, "-c", WRITES, str(text), str(own), "works" if works else "sleeps"]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            assert processes[-1].stdout.readline() == "ready\n"
            child: Any = SimpleNamespace(process=processes[-1])
            found.append(Rank(child, own, tmp_path / "meeting"))
        return found

    yield made
    for process in processes:
        process.kill()
        process.communicate()


def stuck(ranks: list[Rank]) -> list[Stuck]:
    ask_for_stacks(ranks)
    return stuck_ranks(dict(enumerate(ranks)), time.monotonic() + 1.0)


def where(ranks: list[Rank]) -> list[str]:
    return supervise.told(stuck(ranks), "rank {}".format)


IN_BACKWARD_OF_TENSOR = "waits in backward (_tensor.py:630)"


@pytest.mark.parametrize(
    ("stacks", "words"),
    [
        (
            (IN_BACKWARD, ASLEEP, IN_BARRIER),
            ["1 hangs in forward (adapters.py:78)", f"0 {IN_BACKWARD_OF_TENSOR}", "2 waits in barrier"],
        ),
        (((), IN_BARRIER), ["0 hangs and does not answer", "1 waits in barrier"]),
        ((IN_BARRIER, IN_BACKWARD), ["0 waits in barrier", f"1 {IN_BACKWARD_OF_TENSOR}"]),
    ],
    ids=["one sleeps", "one answers nothing", "they wait in different operations"],
)
def test_one_that_sleeps_or_is_silent_hangs_and_the_others_wait(
    ranks: Callable[..., list[Rank]], stacks: tuple[Stack, ...], words: list[str]
) -> None:
    assert where(ranks(*stacks)) == [f"rank {each}" for each in words]


def test_one_that_compiles_is_told_from_one_that_hangs_there(ranks: Callable[..., list[Rank]]) -> None:
    working, asleep = ranks(IN_COMPILING, IN_BARRIER, works=True), ranks(IN_COMPILING, IN_BARRIER)
    assert [each.compiles for each in stuck(working)] == [True, False]
    assert where(working) == ["rank 0 compiles", "rank 1 waits in barrier"]
    assert where(asleep)[0].startswith("rank 0 hangs in ")
    assert where(ranks(IN_COMPILED_CODE, works=True)) == ["rank 0 waits in all_reduce"]


def test_one_whose_backward_is_compiled_in_the_thread_of_its_gpu_compiles(ranks: Callable[..., list[Rank]]) -> None:
    assert where(ranks(IN_BACKWARD, works=True, beside=IN_COMPILING)) == ["rank 0 compiles"]
    waits = [f"rank 0 {IN_BACKWARD_OF_TENSOR}"]
    assert where(ranks(IN_BACKWARD, works=True, beside=WAITS_FOR_COMPILERS)) == waits
    assert where(ranks(IN_BACKWARD, works=True, beside=IN_COMPILED_CODE)) == waits


def test_one_that_was_asked_before_tells_where_it_is_now(ranks: Callable[..., list[Rank]]) -> None:
    (rank,) = ranks(IN_BARRIER)
    assert where([rank]) == ["rank 0 waits in barrier"]
    now = thread_text("Current thread 0x1", (("/home/user/adapters.py", 78, "forward"),))
    rank.stacks.with_suffix(".text").write_text(now)
    assert where([rank]) == ["rank 0 hangs in forward (adapters.py:78)"]


class SilentRank:
    """A rank that tells nothing, compiles at the first looks and hangs at the next."""

    def __init__(self, compiles: int) -> None:
        self.looks, self._compiles, self._ended = 0, compiles, threading.Event()

    def watch(self, note: Note, _stop: StopSignal, _pace_s: float) -> None:
        self._ended.wait(PATIENCE_S)
        note(0, [CellFinished(at=1.0, cell=0, status="killed", error="SIGKILL")])

    def kill(self) -> None:
        self._ended.set()

    def ask(self) -> None:
        self.looks += 1

    def stuck(self, _until: float) -> list[Stuck]:
        compiles = self.looks <= self._compiles
        return [Stuck(0, not compiles, "in forward (adapters.py:78)", compiles=compiles)]

    def clear(self) -> None:
        pass


def test_ranks_that_compile_in_silence_are_not_ended_before_one_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_of_ranks, "SILENCE_S", 2 * ALIVE_S)
    rank, told_events = SilentRank(compiles=2), list[Event]()
    run_ranks([rank], [RankFold(0, 1)], told_events.extend, StopSignal())
    end = told_events[-1]
    assert rank.looks == 3
    assert (end.status, (end.error or "").partition(";")[0]) == ("killed", "rank 0 hangs in forward (adapters.py:78)")


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
    ours = (str(Path(supervise.__file__)), 9, "run")
    other = thread_text("Thread 0x7f01", (ASLEEP[0], ("/home/user/data.py", 3, "load")))
    current = thread_text("Current thread 0x7f02", (*IN_BARRIER[:2], *ASLEEP[1:], ours))
    told = f"printed before\nFatal Python error: Segmentation fault\n\n{other}\n{current}\nExtension modules: numpy\n"
    assert crashed_in(told) == " in forward (adapters.py:78)"
    assert crashed_in(told.replace("Current thread", "Thread")) == " in load (data.py:3)"
    assert crashed_in("Killed") == ""
    server = thread_text("Thread 0x1", (ours, ("<string>", 1, "<module>")))
    assert crashed_in(server) == "", "the line that starts the fork server is nobody's own"
    assert crashed_in(thread_text("Thread 0x1", (ours,))) == ""


WATCHDOG = """\
[rank1]:[E1127 ProcessGroupNCCL.cpp:2119] [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7fcdd1f7305d in libc10.so)

terminate called after throwing an instance of '{kind}'
  what():  {what}
Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda/ for more information.
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7fcdd1f7305d in libc10.so)

Fatal Python error: Aborted
"""


TWICE = """\
Traceback (most recent call last):
RuntimeError: CUDA error: unspecified launch failure
CUDA kernel errors might be asynchronously reported
terminate called recursively
Fatal Python error: Aborted
"""
"""Of two threads that end the process at once."""
ACCESS = "CUDA error: an illegal memory access was encountered"
IN_WATCHDOG = "[PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: "


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (WATCHDOG.format(kind="c10::DistBackendError", what=f"{IN_WATCHDOG}{ACCESS}"), ACCESS),
        (WATCHDOG.format(kind="std::bad_array_new_length", what="std::bad_array"), "std::bad_array"),
        (TWICE, "CUDA error: unspecified launch failure"),
    ],
)
def test_a_crash_is_told_with_the_error_that_nobody_caught(output: str, why: str) -> None:
    """torch's watchdog of NCCL ends the process on an error of the device, which the steps may not have met yet."""
    status, error = explain_exit(-signal.SIGABRT, 0, output)
    assert (status, error) == ("failed", f"{why}; the process crashed with SIGABRT (Aborted); see its output")
