"""NVTX ranges of a cell, as NVIDIA's library would receive them; none unless asked for."""

import pytest
import torch

from cs336_tui.events.events import Notice
from tests.worker.measure.cells import run, small_spec


class Library:
    """Takes the calls that torch makes to NVTX, and keeps each range's path from the outermost on."""

    def __init__(self) -> None:
        self.ranges: list[tuple[str, ...]] = []
        self.open: list[str] = []

    def rangePushA(self, name: str) -> int:
        self.open.append(name)
        self.ranges.append(tuple(self.open))
        return len(self.open) - 1

    def rangePop(self) -> int:
        self.open.pop()
        return len(self.open)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """A torch with NVTX."""
    found = Library()
    monkeypatch.setattr(torch.cuda.nvtx, "_nvtx", found)
    return found


@pytest.fixture(autouse=True)
def not_under_nsys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NSYS_PROFILING_SESSION_ID", raising=False)


def test_warm_up_steps_and_phases_are_ranges(library: Library) -> None:
    spec, open_at = small_spec(pass_="train-step", warmup_steps=2, measure_steps=2), set[int]()
    report = run(spec, nvtx=True, watch=lambda _event: open_at.add(len(library.open)))
    assert open_at == {0}, "no step is reported while a range is open"
    assert report.finished.status == "ok"
    outermost = [path[0] for path in library.ranges if len(path) == 1]
    assert outermost == ["check", "warm-up", "warm-up", "step 1", "step 2"]
    phases = [path[1] for path in library.ranges if len(path) == 2 and path[0] == "step 2"]
    assert phases == ["zero_grad", "forward", "loss", "backward", "optimizer"]
    assert library.open == []


def test_parts_of_the_model_are_ranges_inside_forward(library: Library) -> None:
    run(small_spec(pass_="forward", warmup_steps=0, measure_steps=1, num_layers=1), nvtx=True)
    inside = {path[-1] for path in library.ranges if path[:2] == ("step 1", "forward")}
    assert inside == {
        "forward", "embedding", "residual", "norms", "attention rest", "QKV projections", "rotary", "attention scores",
        "softmax", "final matmul", "output projection", "feed-forward", "head",
    }  # fmt: skip


def test_a_window_of_steps_is_one_range(library: Library) -> None:
    run(small_spec(pass_="forward", sync="pipelined", warmup_steps=1, measure_steps=3), nvtx=True)
    assert [path[0] for path in library.ranges if len(path) == 1] == ["check", "warm-up", "steps 1 to 3"]


def test_a_step_that_fails_closes_its_ranges(library: Library) -> None:
    # Its logits are 2 TiB, all else is next to nothing.
    logits = small_spec(d_model=2, d_ff=2, num_heads=1, num_layers=1, vocab_size=2**20, batch_size=2**16)
    finished = run(logits, nvtx=True).finished
    assert (finished.status, finished.phase) == ("oom", "forward")
    assert ("warm-up", "forward", "embedding", "head") in library.ranges
    assert library.open == []


def test_nothing_is_emitted_unless_asked_for_or_under_nsys(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    run(small_spec())
    assert library.ranges == []
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "4711")
    run(small_spec())
    assert ("step 1", "forward") in library.ranges


@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a torch without CUDA")
def test_a_torch_without_nvtx_says_so_and_runs_the_cell() -> None:
    report = run(small_spec(), nvtx=True)
    (notice,) = (event for event in report.events if isinstance(event, Notice))
    assert "NVTX" in notice.text
    assert "without CUDA" in notice.text
    assert report.finished.status == "ok"
    assert len(report.times_s()) == 3
