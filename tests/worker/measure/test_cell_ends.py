"""Ends of a cell that fails or is stopped, and what any cell leaves behind."""

import gc
import itertools
from collections.abc import Callable

import pytest
import torch

from cs336_tui.config.spec import SYNCS, Sync
from cs336_tui.events.events import CellFinished, Event, StepsTimed
from tests.conftest import THAW
from tests.worker.measure.cells import run, small_spec
from tests.worker.measure.little_memory import at_most, linux_only


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
    assert finished.error
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
    assert finished.error
    assert len(finished.error.splitlines()) == 1
    assert "Traceback (most recent call last)" in capfd.readouterr().err
    assert report.outline == ["building", "finishing", "CellFinished"]


def test_tf32_is_refused_where_it_would_be_a_lie() -> None:
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
            assert report.built.in_force.matmul_precision == "highest"
        assert torch.get_num_threads() == 2
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        assert torch.get_default_dtype() == torch.float32
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.set_num_threads(before)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("device", ["cpu", "cuda:99"])
def test_the_garbage_collector_sleeps_through_the_steps_only(
    device: str, enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "unfreeze", THAW)
    THAW()
    (gc.enable if enabled else gc.disable)()
    try:
        awake: list[bool] = []
        run(small_spec(device=device), watch=lambda e: awake.append(gc.isenabled()) if _is_step(e) else None)
        assert not any(awake)
        assert gc.isenabled() == enabled
        assert gc.get_freeze_count() == 0
    finally:
        gc.enable()
        gc.freeze()


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
