"""One round of two small cells in turns: the order of steps, the settings of each side, how it ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.codec import from_line, to_line
from cs336_tui.events.events import CellFinished, Event, ModelBuilt, StageChanged, StepsTimed
from cs336_tui.worker.measure.ab import run_round
from cs336_tui.worker.workload.precision import RECIPES
from tests.worker.measure.cells import Report, small_spec

A, B = 4, 5


class Rounded:
    """The events of a round here; `watch` sees each as it is emitted."""

    def __init__(
        self,
        a: CellSpec,
        b: CellSpec,
        *,
        b_first: bool = False,
        cancelled: Callable[[], bool] = lambda: False,
        watch: Callable[[Event], None] = lambda _event: None,
    ) -> None:
        self.events: list[Event] = []

        def emit(event: Event) -> None:
            self.events.append(event)
            watch(event)

        run_round((a, b), (A, B), emit, cancelled, b_first=b_first)

    def of(self, cell: int) -> Report:
        return Report([event for event in self.events if getattr(event, "cell", None) == cell])

    def order(self, kind: str = "measured") -> str:
        steps = [event for event in self.events if isinstance(event, StepsTimed) and event.kind == kind]
        return "".join("AB"[event.cell - A] for event in steps)


def test_steps_alternate_in_pairs_and_so_does_who_is_first_in_them() -> None:
    done = Rounded(small_spec(measure_steps=4, warmup_steps=1), small_spec(measure_steps=4, warmup_steps=3))
    assert done.order("warm-up") == "AB" + "B" + "B"
    assert done.order() == "ABBAABBA"
    assert Rounded(small_spec(measure_steps=3), small_spec(measure_steps=3), b_first=True).order() == "BAABBA"


def test_each_side_tells_what_a_cell_alone_tells() -> None:
    done = Rounded(small_spec(pass_="train-step"), small_spec(pass_="forward", precision="bf16"))
    steps = ["warm-up", "StepsTimed", "StepsTimed", "measuring", "StepsTimed", "StepsTimed", "StepsTimed"]
    for cell, phases in ((A, 5), (B, 1)):
        side = done.of(cell)
        assert side.outline == ["building", "ModelBuilt", *steps, "finishing", "CellFinished"]
        assert [event.first for event in side.steps("measured")] == [0, 1, 2]
        assert all(len(event.phases_s) == phases and len(event.host_s) == 1 for event in side.steps("measured"))
        assert side.finished.status == "ok"
        assert side.finished.warmup_steps_done == 2
        assert side.finished.summary is not None
        assert side.finished.summary.mean_s == pytest.approx(sum(side.times_s()) / 3)
        measured_for_s = side.finished.measured_for_s
        assert measured_for_s is not None
        assert measured_for_s > sum(done.of(A).times_s()) + sum(done.of(B).times_s()), "the time of both"
    assert [type(event) for event in done.events[-2:]] == [CellFinished, CellFinished]
    assert all(from_line(to_line(event)) == event for event in done.events)


def test_each_side_is_built_and_run_in_its_own_precision() -> None:
    done = Rounded(small_spec(precision="bf16"), small_spec(precision="bf16-mixed"))
    a, b = done.of(A), done.of(B)
    assert (a.built.in_force.parameter_dtype, a.built.in_force.autocast_dtype) == ("bfloat16", None)
    assert (b.built.in_force.parameter_dtype, b.built.in_force.autocast_dtype) == ("float32", "bfloat16")
    assert (a.finished.logits_dtype, b.finished.logits_dtype) == ("bfloat16", "bfloat16")


def test_settings_of_all_torch_are_those_of_the_side_whose_turn_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # No two precisions of a CPU differ in them; on CUDA fp32 and tf32 do.
    monkeypatch.setitem(RECIPES, "bf16", RECIPES["bf16"]._replace(matmul="medium"))
    before = torch.get_float32_matmul_precision()
    seen = set()

    def watch(event: Event) -> None:
        if isinstance(event, StepsTimed | ModelBuilt):
            seen.add((event.cell, torch.get_float32_matmul_precision()))

    done = Rounded(small_spec(precision="bf16"), small_spec(precision="fp32"), watch=watch)
    assert seen == {(A, "medium"), (B, "highest")}
    assert done.of(A).built.in_force.matmul_precision == "medium"
    assert done.of(B).built.in_force.matmul_precision == "highest"
    assert torch.get_float32_matmul_precision() == before


def test_peaks_of_memory_are_not_told_as_they_would_be_of_both() -> None:
    done = Rounded(small_spec(), small_spec())
    for cell in (A, B):
        finished = done.of(cell).finished
        assert (finished.peak_rss_bytes, finished.peak_allocated_bytes, finished.peak_reserved_bytes) == (None,) * 3


@pytest.mark.parametrize(("a_vocab", "b_vocab", "named"), [(2**30, 40, "A"), (40, 2**30, "B")])
def test_a_side_without_memory_ends_the_round_and_is_named(a_vocab: int, b_vocab: int, named: str) -> None:
    done = Rounded(small_spec(d_model=1024, vocab_size=a_vocab), small_spec(d_model=1024, vocab_size=b_vocab))
    guilty, other = (A, B) if named == "A" else (B, A)
    finished = done.of(guilty).finished
    assert (finished.status, finished.stage, finished.step) == ("oom", "building", None)
    assert finished.failed_allocation_bytes == 4 * 1024 * 2**30
    assert done.of(other).finished.status == "failed"
    assert done.of(other).finished.error == f"{named} ran out of memory, which ended the round"
    assert done.order() == ""


def test_a_side_that_fails_in_a_step_says_where_and_the_other_keeps_its_steps(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def watch(event: Event) -> None:
        if isinstance(event, StageChanged) and (event.cell, event.stage) == (B, "measuring"):
            monkey.setattr(torch.Tensor, "backward", lambda *_, **__: 1 / 0)

    with pytest.MonkeyPatch.context() as monkey:
        done = Rounded(small_spec(pass_="forward"), small_spec(pass_="forward+backward"), watch=watch)
    a, b = done.of(A).finished, done.of(B).finished
    assert (b.status, b.stage, b.step, b.phase) == ("failed", "measuring", 0, "backward")
    assert b.error == "ZeroDivisionError: division by zero"
    assert (a.status, a.error, a.stage, a.step) == ("failed", "B failed, which ended the round", "measuring", 1)
    assert done.order() == "A"
    assert "Traceback" in capfd.readouterr().err


def test_a_stop_between_two_steps_keeps_what_was_timed_of_both() -> None:
    timed = []

    def watch(event: Event) -> None:
        if isinstance(event, StepsTimed) and event.kind == "measured":
            timed.append(event)

    done = Rounded(small_spec(), small_spec(), cancelled=lambda: len(timed) == 3, watch=watch)
    assert done.order() == "ABB"
    ends = [done.of(cell).finished for cell in (A, B)]
    assert [(end.status, end.stage, end.step) for end in ends] == [
        ("cancelled", "measuring", 1),
        ("cancelled", "measuring", 2),
    ]


def test_an_optimizer_step_that_the_scaler_skipped_stands_beside_its_side() -> None:
    # One token: the loss's gradient, scaled by 65536 as at first, is more than float16 can hold.
    both = {"pass_": "train-step", "context_length": 1, "batch_size": 1, "warmup_steps": 0}
    done = Rounded(small_spec(precision="fp16-mixed", **both), small_spec(**both))
    (remark,) = done.of(A).finished.remarks
    assert "of 3 optimizer steps were skipped" in remark
    assert done.of(B).finished.remarks == ()
