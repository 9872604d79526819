"""A step with a user's own optimizer: dropped gradients and predictions."""

from __future__ import annotations

import pytest
import torch

from cs336_tui.config.spec import CellSpec
from cs336_tui.worker.estimate.predict import predict
from cs336_tui.worker.workload.building import build
from tests.worker.measure.cells import small_spec
from tests.worker.workload.own_code import Folder

OPTIMIZERS = """
import torch

class Plain(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    def zero_grad(self):
        super().zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["kept"] = torch.zeros_like(parameter)
            parameter.add_(parameter.grad, alpha=-self.param_groups[0]["lr"])

class Asks(Plain):
    def step(self, closure=None):
        norm = sum(float(each.grad.square().sum()) for each in self.param_groups[0]["params"])
        if norm < 1e9:
            super().step(closure)
"""


def with_optimizer(own: Folder, name: str) -> CellSpec:
    optimizer = f"{own.write(OPTIMIZERS)}:{name}"
    return small_spec(pass_="train-step", optimizer=optimizer, model_path=own.paths)


def test_an_optimizer_drops_gradients_as_it_does_itself(folder: Folder) -> None:
    spec = with_optimizer(folder, "Plain")
    workload = build(spec, torch.device("cpu"))
    step = workload.step(spec)
    for _ in range(2):
        step.prepare()
        step.run("zero_grad")
        assert all(parameter.grad is None for parameter in workload.model.parameters())
        for phase in step.phases[1:]:
            step.run(phase)
        step.clear()


@pytest.mark.parametrize("name", ["Plain", "Asks"])
def test_an_optimizer_that_asks_for_values_is_predicted_too(folder: Folder, name: str) -> None:
    found = predict(with_optimizer(folder, name))
    assert found.by_category["optimizer_state"] == 4 * found.num_params
    assert found.flops == predict(small_spec(pass_="train-step")).flops
