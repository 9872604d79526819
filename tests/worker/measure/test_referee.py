"""The referee in a cell: honest cells are checked, what is wrong is found, figures are as without it."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.audit import Audit
from cs336_tui.events.events import CellFinished, StepsTimed
from cs336_tui.worker.measure import cell as measuring
from cs336_tui.worker.measure import timing
from cs336_tui.worker.measure.referee import audit as auditing
from cs336_tui.worker.measure.referee.books import replaced
from cs336_tui.worker.measure.referee.reference import DEPARTS, EXACT, departure
from cs336_tui.worker.workload.imported_components import imported_loss
from cs336_tui.worker.workload.transformer import FreshTokens, random_batch
from tests.referee.corpus import BASE, USERS


def ended(**changes: Any) -> CellFinished:
    """The end of a small cell that ran here."""
    events: list[Any] = []
    spec = CellSpec(
        **{**BASE, "check": "auto", "measure_steps": 4, "warmup_steps": 1, "model_path": (str(USERS),), **changes}
    )
    measuring.run_cell(spec, 0, events.append, lambda: False)
    assert sum(len(event.times_s) for event in events if isinstance(event, StepsTimed)) == 5, "none of the checks'"
    end = events[-1]
    assert isinstance(end, CellFinished)
    assert end.status == "ok", end.error
    return end


def audit(**changes: Any) -> Audit:
    found = ended(**changes).audit
    assert found is not None
    return found


def errors(found: Audit) -> list[tuple[str, float]]:
    assert found.results is not None
    return [(each.quantity, each.worst_error) for each in found.results.differences]


def test_a_training_step_is_compared_in_all_its_results() -> None:
    found = audit(pass_="train-step")
    every = ("logits", "loss", "gradients", "moves", "moments")
    quantities, found_errors = zip(*errors(found), strict=True)
    assert quantities == every
    assert [name for name, _ in errors(audit(pass_="train-step", inputs="fixed"))] == ["logits", *every], "of the timed"
    assert max(found_errors) < 1e-3
    assert found.results is not None
    assert (found.results.unchecked, found.results.unmoved) == ("", ())


@pytest.mark.parametrize(
    "changes",
    [
        {"pass_": "inference"},
        {"pass_": "backward"},
        {"pass_": "forward", "attention": "sdpa"},
        {"pass_": "train-step", "accumulate": 2},
        {"pass_": "train-step", "checkpoint": 1},
        {"pass_": "train-step", "optimizer": "adamw-fused"},
        {"pass_": "train-step", "dropout": 0.1},
        {"pass_": "forward+backward", "arch": "gelu-learned", "norm": "layernorm", "weight_tying": "on", "bias": "on"},
        {"workload": "attention", "pass_": "forward+backward", "attention": "sdpa", "num_layers": 1, "d_ff": 64},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_honest_cells_are_right(changes: dict[str, Any]) -> None:
    found = audit(**changes)
    assert found.results is not None
    assert found.results.unchecked == ""
    assert 0 <= max(error for _, error in errors(found)) < 1e-3


def test_with_checks_off_there_are_none() -> None:
    assert ended(check="off").audit is None


def test_a_check_that_fails_costs_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no such thing")

    for name in ("reference_of", "device_speed", "count_work"):
        monkeypatch.setattr(auditing, name, fails)
    found = audit()
    assert found.results is not None
    assert found.results.unchecked == "the check failed: RuntimeError: no such thing"
    assert (found.speed, found.work) == (None, None)


def test_a_clock_that_is_replaced_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert replaced() == ()
    clock: Callable[[], float] = timing.perf_counter
    monkeypatch.setattr(timing, "perf_counter", lambda: clock() / 2)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    assert replaced() == ("torch.cuda.synchronize", "the timer's perf_counter")


def test_tokens_change_in_place_and_every_fourth_time_not() -> None:
    batch = random_batch(2, 8, 100, device="cpu", seed=0)
    fresh, seen = FreshTokens(batch, 100, 1), [batch.inputs.clone()]
    fresh.repeat()
    for _ in range(8):
        fresh()
        seen.append(batch.inputs.clone())
        assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    same = [step for step in range(8) if torch.equal(seen[step], seen[step + 1])]
    assert tuple(same) == FreshTokens.repeated(8) == (3, 7)


def test_tokens_stay_where_they_are_to_be_fixed_or_steps_are_back_to_back() -> None:
    fixed, pipelined = (audit(**changes).inputs for changes in ({"inputs": "fixed"}, {"sync": "pipelined"}))
    assert fixed is not None
    assert pipelined is not None
    assert (fixed.fresh, fixed.why_fixed) == (False, "--inputs fixed")
    assert (pipelined.fresh, pipelined.why_fixed) == (False, "steps are enqueued back to back")


def test_a_forward_is_counted_on_the_whole_batch_too() -> None:
    work = audit(model="cheating_models:HonestAlone").work
    assert work is not None
    done, asked = work.parts["batch"]
    assert done * BASE["batch_size"] == asked


def test_a_step_that_draws_numbers_is_compared_in_evaluation() -> None:
    drops, skips = (
        audit(model=model, check=check, pass_="train-step").results
        for model, check in (("honest_models:Drops", "auto"), ("cheating_models:DrawsAndSkips", "lm:LM"))
    )
    assert drops is not None
    assert skips is not None
    assert drops.unchecked == "its step draws random numbers"
    assert max(each.worst_error for each in drops.differences) < 1e-3
    assert (skips.unchecked, max(each.worst_error for each in skips.differences) > 0.1) == ("", True)


@pytest.mark.parametrize(
    ("loss", "least", "most"),
    [
        ("honest:logsumexp_loss", 0.0, EXACT),
        ("honest:chunked_loss", 0.0, EXACT),
        ("honest:label_smoothing", 0.05, 0.2),
        ("honest:z_loss", EXACT, 0.1),
        ("honest:focal", EXACT, 0.2),
        ("cheating_losses:of_no_value", DEPARTS, 1.01),
        ("cheating_losses:constant", DEPARTS, math.inf),
        ("cheating_losses:every_second_token", DEPARTS, math.inf),
        ("cheating_losses:smoothed_every_second_token", DEPARTS, math.inf),
        ("cheating_losses:z_loss_of_half", DEPARTS, math.inf),
        ("cheating_losses:without_normaliser", DEPARTS, math.inf),
        ("cheating_losses:of_sums", DEPARTS, math.inf),
        ("cheating_losses:in_bfloat16", math.inf, math.inf),
        ("cheating_losses:most_of_vocabulary", math.inf, math.inf),
        ("cheating_losses:backward_inside", math.inf, math.inf),
    ],
)
@pytest.mark.parametrize("spread", [0.1, 1.0])
def test_a_loss_departs_from_cross_entropy_by_what_it_smooths_and_leaves_out(
    loss: str, least: float, most: float, spread: float
) -> None:
    logits = spread * torch.randn(4, 16, 64, generator=torch.Generator().manual_seed(0))
    batch = random_batch(4, 16, 64, device="cpu", seed=0)
    assert least <= departure(imported_loss(loss, (str(USERS),)), logits, batch.targets)[0] <= most
