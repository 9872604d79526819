"""A model whose forward takes the targets and returns the loss, head and loss fused."""

from pathlib import Path
from typing import Any

import pytest

from cs336_tui.config.spec import CellSpec, SpecError
from cs336_tui.config.sweep import Sweep
from cs336_tui.events.audit import Results
from cs336_tui.events.events import CellFinished, StepsTimed
from cs336_tui.worker.measure import cell as measuring
from tests.referee.corpus import BASE

MODELS = """
import torch.nn.functional as F
from torch import nn


class Logits(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        return self.head(self.embedding(tokens).sin())


class Fused(Logits):
    factor = 1.0

    def forward(self, tokens, targets):
        logits = super().forward(tokens)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) * self.factor


class Wrong(Fused):
    factor = 1.5


class Summed(Fused):
    def forward(self, tokens, targets):
        return super().forward(tokens, targets) * targets.numel()


class Vector(Logits):
    def forward(self, tokens, targets):
        return super().forward(tokens).sum(dim=-1)
"""


def ended(folder: Path, model: str, **changes: Any) -> CellFinished:
    (folder / "fused_models.py").write_text(MODELS)
    events: list[Any] = []
    given = {"model": f"fused_models:{model}", "check": "fused_models:Logits", "model_path": (str(folder),)}
    given |= {"loss": "in-model", "measure_steps": 4, "warmup_steps": 1, "pass_": "train-step"}
    measuring.run_cell(CellSpec(**{**BASE, **given, **changes}), 0, events.append, lambda: False)
    end = events[-1]
    assert isinstance(end, CellFinished)
    assert end.status != "ok" or sum(len(each.times_s) for each in events if isinstance(each, StepsTimed)) == 5
    return end


def results(end: CellFinished) -> Results:
    assert end.status == "ok", end.error
    assert end.audit is not None
    assert end.audit.results is not None
    return end.audit.results


@pytest.mark.parametrize(
    "changes",
    [{}, {"pass_": "forward+backward"}, {"timer": "do_bench"}, {"accumulate": 2, "batch_size": 2}],
    ids=["train-step", "forward+backward", "do_bench", "micro-batches"],
)
def test_loss_and_gradients_are_those_of_the_model_with_logits(changes: dict[str, Any], tmp_path: Path) -> None:
    found = results(ended(tmp_path, "Fused", **changes))
    assert found.unchecked == ""
    compared = {each.quantity: each.worst_error for each in found.differences}
    assert {"gradients", *(() if "accumulate" in changes else ("loss",))} <= compared.keys()
    assert "logits" not in compared
    assert max(compared.values()) < 1e-3


def test_another_loss_is_found(tmp_path: Path) -> None:
    compared = {each.quantity: each.worst_error for each in results(ended(tmp_path, "Wrong")).differences}
    assert compared["loss"] == pytest.approx(0.5, rel=1e-3)
    assert compared["gradients"] == pytest.approx(0.5, rel=1e-2)


@pytest.mark.parametrize("timer", ["step", "do_bench"])
def test_a_summed_loss_is_compared_as_a_sum(timer: str, tmp_path: Path) -> None:
    found = results(ended(tmp_path, "Summed", batch_size=2, timer=timer))
    compared = {each.quantity: each.worst_error for each in found.differences}
    assert {"gradients", "loss", "moves"} <= compared.keys()
    assert max(compared.values()) < 1e-3
    assert found.reference.endswith(", its loss summed")


def test_without_a_model_to_compare_with_the_reference_model_has_to_have_the_same_parameters(tmp_path: Path) -> None:
    assert "other parameters" in results(ended(tmp_path, "Fused", check="auto")).unchecked


def test_more_than_one_number_is_no_loss(tmp_path: Path) -> None:
    end = ended(tmp_path, "Vector")
    assert end.status == "failed"
    assert "loss" in (end.error or "") or "scalar" in (end.error or "")


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"model": "reference"}, "returns logits"), ({"pass_": "forward"}, "choose forward")],
)
def test_what_cannot_have_its_loss_in_the_model(changes: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        CellSpec(**{**BASE, "loss": "in-model", "model": "a:B", **changes})


def test_a_sweep_takes_it() -> None:
    assert Sweep(loss="in-model", models=("a:B",), passes=("train-step",)).loss == "in-model"
