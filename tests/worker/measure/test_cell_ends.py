"""Ends of a cell that fails or is stopped, what any cell leaves behind, and clocks that a user's code replaces."""

import gc
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cs336_tui.config.spec import SYNCS, Sync
from cs336_tui.events.events import CellFinished, Event, StepsTimed
from cs336_tui.worker.measure.settings import freeze_existing_objects, no_garbage_collection
from tests.loading import python
from tests.worker.measure.cells import Rounded, at_most, linux_only, of_user, run, small_spec


def after(calls: int) -> Callable[[], bool]:
    """False for the first `calls` calls, then True."""
    count = itertools.count()
    return lambda: next(count) >= calls


@pytest.mark.parametrize(
    ("calls", "stage", "step", "warmup", "measured"),
    [
        (0, "building", None, 0, 0),
        (1, "warm-up", 0, 0, 0),
        (2, "warm-up", 1, 1, 0),
        (3, "measuring", 0, 2, 0),
        (5, "measuring", 2, 2, 2),
    ],
)
@pytest.mark.parametrize("sync", SYNCS)
def test_cancelling_between_steps(
    sync: Sync, calls: int, stage: str, step: int | None, warmup: int, measured: int
) -> None:
    report = run(small_spec(sync=sync), cancelled=after(calls))
    finished = report.finished
    assert (finished.status, finished.error, finished.stage, finished.step) == ("cancelled", None, stage, step)
    assert (len(report.times_s("warm-up")), len(report.times_s())) == (warmup, measured)
    assert report.outline[-2:] == ["finishing", "CellFinished"]


@linux_only
def test_out_of_memory_while_building_is_a_result() -> None:
    with at_most(2 * 1024**3):
        report = run(small_spec(d_model=1024, vocab_size=2**30))
    assert report.outline == ["building", "finishing", "CellFinished"]
    finished = report.finished
    assert (finished.status, finished.stage, finished.step) == ("oom", "building", None)
    assert finished.error.startswith(
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4398046511104 b"
    )
    assert "\n" not in finished.error
    assert finished.peak_rss_bytes


@linux_only
@pytest.mark.parametrize("warmup_steps", [0, 1])
def test_out_of_memory_in_a_step_says_which_and_the_next_cell_runs(warmup_steps: int) -> None:
    # Scores of 16 x 16 x 2048 x 2048 floats are 4 GiB; the parameters are next to nothing.
    with at_most(2 * 1024**3):
        report = run(
            small_spec(arch="gelu-learned", num_heads=16, context_length=2048, batch_size=16, warmup_steps=warmup_steps)
        )
    finished = report.finished
    assert finished.status == "oom"
    assert (finished.stage, finished.step) == ("warm-up" if warmup_steps else "measuring", 0)
    assert finished.logits_dtype is None
    assert report.built.num_params > 0
    assert run(small_spec()).finished.status == "ok"


def test_a_failure_is_one_line_and_its_traceback_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    report = run(small_spec(device="cuda:99"))
    finished = report.finished
    assert (finished.status, finished.stage, finished.step) == ("failed", "building", None)
    assert len(finished.error.splitlines()) == 1
    assert "Traceback (most recent call last)" in capfd.readouterr().err
    assert report.outline == ["building", "finishing", "CellFinished"]
    finished = run(small_spec(precision="tf32")).finished
    assert finished.status == "failed"
    assert finished.error == "ValueError: precision tf32: cpu cannot do it, only cuda can"


@pytest.mark.parametrize("changes", [{}, {"device": "cuda:99"}, {"precision": "bf16", "pass_": "inference"}])
def test_settings_are_given_back(changes: dict[str, str]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.set_float32_matmul_precision("high")
    try:
        threads: list[int] = []
        report = run(small_spec(**changes), watch=lambda _event: threads.append(torch.get_num_threads()))
        if report.finished.status == "ok":
            assert set(threads[1:-1]) == {1}
            assert report.built.in_force.threads == 1
            assert report.built.in_force.interop_threads == torch.get_num_interop_threads()
            assert report.built.in_force.matmul_precision == "highest"
        assert torch.get_num_threads() == 2
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        assert torch.get_default_dtype() == torch.float32
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.set_num_threads(before)


def test_the_garbage_collector_sleeps_through_the_steps_only() -> None:
    """In a process without all tests, which each collection would look at."""
    source = """
import gc
from cs336_tui.events.events import StepsTimed
from tests.worker.measure.cells import run, small_spec
for device in ("cpu", "cuda:99"):
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        awake = []
        run(small_spec(device=device), watch=lambda e: isinstance(e, StepsTimed) and awake.append(gc.isenabled()))
        print(device, enabled, any(awake), gc.isenabled(), gc.get_freeze_count())
"""
    assert python(source).stdout.splitlines() == [
        "cpu True False True 0",
        "cpu False False False 0",
        "cuda:99 True False True 0",
        "cuda:99 False False False 0",
    ]


def _is_step(event: Event) -> bool:
    return isinstance(event, StepsTimed)


def test_an_interruption_goes_on_to_the_caller_and_everything_is_restored() -> None:
    def interrupt(event: Event) -> None:
        if _is_step(event):
            raise KeyboardInterrupt

    threads = torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt):
        run(small_spec(threads=threads + 1), watch=interrupt)
    assert torch.get_num_threads() == threads
    assert gc.isenabled()


def test_no_memory_stays_behind() -> None:
    """A cell has freed its memory when it reports its end."""
    tensors: list[int] = []

    def count(event: Event) -> None:
        if isinstance(event, CellFinished):
            gc.collect()
            tensors.append(sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects()))

    run(small_spec(pass_="train-step"), watch=count)
    run(small_spec(pass_="train-step", num_layers=20), watch=count)
    assert tensors[1] <= tensors[0]


@pytest.mark.parametrize("pass_", ["forward", "backward", "train-step"])
def test_a_cell_holds_no_activations_of_earlier_steps(folder: Path, pass_: str) -> None:
    finished = run(small_spec(**of_user(folder, "Recursive"), pass_=pass_, measure_steps=5)).finished
    assert (finished.status, finished.error) == ("ok", None)


def test_nor_does_a_side_of_a_round(folder: Path) -> None:
    done = Rounded(small_spec(), small_spec(**of_user(folder, "Recursive"), pass_="forward"))
    assert [(side.finished.status, side.finished.error) for side in (done.a, done.b)] == [("ok", None)] * 2


def garbage_of_garbage() -> StorageWeakRef:
    """A tensor that one collection does not free."""
    held: Any = torch.ones(2, requires_grad=True) * 1
    held.itself = held
    holder: Any = held * held  # keeps what backward needs, out of the collector's sight
    holder.itself = holder
    return StorageWeakRef(held.untyped_storage())


def test_garbage_that_other_garbage_holds_is_freed_before_the_rest_is_kept() -> None:
    gc.disable()
    try:
        before = garbage_of_garbage()
        with no_garbage_collection():
            assert before.expired()
            garbage = garbage_of_garbage()
            freeze_existing_objects()
            assert garbage.expired()
    finally:
        gc.enable()


CLOCKS = ("perf_counter", "monotonic", "process_time", "thread_time", "time")
REPLACES = f"""
import time

for name in {CLOCKS}:
    setattr(time, name, lambda real=getattr(time, name): real() / 1000)
torch.cuda.synchronize = torch.cuda.Event = torch.cuda.current_stream = None
"""
PACKAGE = Path(__file__).parents[3] / "cs336_tui"


def test_a_model_that_replaces_every_clock_is_timed_as_any_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wall, exact = time.time, time.perf_counter
    for name in CLOCKS:
        monkeypatch.setattr(time, name, getattr(time, name))  # to be put back
    for name in ("synchronize", "Event", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(torch.cuda, name))
    began_at, began = wall(), exact()
    report = run(small_spec(**of_user(folder, "Plain", REPLACES), measure_steps=20))
    ended_at, took_s = wall(), exact() - began
    assert time.perf_counter is not exact
    finished = report.finished
    assert (finished.status, finished.error) == ("ok", None)
    assert sum(report.times_s()) <= finished.measured_for_s <= took_s
    assert [event.at for event in report.events if not began_at <= event.at <= ended_at] == []


@pytest.mark.parametrize("inner", ["worker/measure", "worker/ranks", "worker/workload", "runner/device"])
def test_clocks_are_bound_before_a_users_code_is_imported(inner: str) -> None:
    late = [path.name for path in (PACKAGE / inner).rglob("*.py") if "\nimport time\n" in path.read_text()]
    assert late == []
