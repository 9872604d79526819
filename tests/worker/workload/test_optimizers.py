"""Optimizers by name: all make the same update, each by its own implementation."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cs336_tui.config.values import OPTIMIZERS
from cs336_tui.worker.workload.building import make_optimizer


def a_model(device: str = "cpu", dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)).to(device=device, dtype=dtype)


def updated(choice: str, steps: int = 3) -> list[Tensor]:
    model = a_model()
    optimizer = make_optimizer(choice, model, "cpu").optimizer
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((2, 5), 1.0 + step)).square().sum().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("choice", OPTIMIZERS)
def test_all_implementations_make_the_same_update(choice: str) -> None:
    """The update equals plain arithmetic over one tensor after another: Loshchilov and Hutter 2019, algorithm 2."""
    rate, beta1, beta2, eps, decay = 1e-3, 0.9, 0.999, 1e-8, 1e-2
    model = a_model().double()
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
    for step in range(1, 4):
        model.zero_grad()
        model(torch.full((2, 5), float(step), dtype=torch.float64)).square().sum().backward()
        with torch.no_grad():
            for parameter, (first, second) in zip(model.parameters(), moments, strict=True):
                parameter -= rate * decay * parameter
                first += (1 - beta1) * (parameter.grad - first)
                second += (1 - beta2) * (parameter.grad.square() - second)
                unbiased = first / (1 - beta1**step), second / (1 - beta2**step)
                parameter -= rate * unbiased[0] / (unbiased[1].sqrt() + eps)
    for found, expected in zip(updated(choice), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected.detach().float(), rtol=1e-5, atol=1e-6)


def test_what_torch_chooses_by_itself_is_what_is_said() -> None:
    """The rule comes from torch: on devices of this list it runs over lists of tensors, on others one after another."""
    from torch.utils._foreach_utils import _get_foreach_kernels_supported_devices, _get_fused_kernels_supported_devices

    foreach = _get_foreach_kernels_supported_devices()
    for device_type in ("cpu", "mps", "cuda"):
        name = make_optimizer("adamw", a_model(), device_type).name
        assert (name == "AdamW (foreach)") == (device_type in foreach)
        assert device_type in _get_fused_kernels_supported_devices()


def test_fused_is_refused_in_one_line_where_there_is_none() -> None:
    with pytest.raises(
        ValueError, match=r"^optimizer adamw-fused: torch has no fused AdamW on xla; use adamw-foreach$"
    ):
        make_optimizer("adamw-fused", a_model(), "xla")
    complex_ = nn.Module()
    complex_.weight = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"^optimizer adamw-fused: torch has no fused AdamW for complex64 parameters"):
        make_optimizer("adamw-fused", complex_, "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("choice", OPTIMIZERS)
def test_without_data_it_keeps_what_it_keeps_with_data(choice: str, dtype: torch.dtype) -> None:
    def kept(device: str) -> dict[str, list[tuple[Any, ...]]]:
        model = a_model(device, dtype)
        optimizer = make_optimizer(choice, model, "cpu").optimizer
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        names = ("step", "exp_avg", "exp_avg_sq")
        states = list(optimizer.state.values())
        assert all(state.keys() == set(names) for state in states)
        return {name: [(state[name].shape, state[name].dtype) for state in states] for name in names}

    assert kept("meta") == kept("cpu")


@pytest.mark.parametrize(
    ("choice", "device_type", "name", "in_a_graph"),
    [
        ("adamw", "cpu", "AdamW (for-loop)", "AdamW (for-loop)"),
        ("adamw", "mps", "AdamW (for-loop)", "AdamW (for-loop)"),
        ("adamw", "cuda", "AdamW (foreach)", "AdamW (foreach, capturable)"),
        ("adamw-fused", "cpu", "AdamW (fused)", "AdamW (fused)"),
        ("adamw-fused", "cuda", "AdamW (fused)", "AdamW (fused)"),  # its one kernel is the same
        ("adamw-foreach", "cpu", "AdamW (foreach)", "AdamW (foreach)"),
        ("adamw-for-loop", "cuda", "AdamW (for-loop)", "AdamW (for-loop, capturable)"),
    ],
)
def test_each_says_what_it_is_and_a_graph_can_hold_the_step_only_on_cuda(
    choice: str, device_type: str, name: str, in_a_graph: str
) -> None:
    """What takes more kernels in a graph says so."""
    assert make_optimizer(choice, a_model(), device_type).name == name
    made = make_optimizer(choice, a_model(), device_type, capturable=True)
    assert (made.optimizer.defaults["capturable"], made.name) == (device_type == "cuda", in_a_graph)
