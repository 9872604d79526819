"""Dtypes read otherwise than by the tool: hooks on the course's toy model, written once more, and torch's own autocast
of CUDA, without a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class OtherToy(nn.Module):
    """The assignment's toy model once more, independent of the tool's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 10, bias=False)
        self.norm = nn.LayerNorm(10)
        self.last = nn.Linear(10, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.norm(torch.relu(self.first(x))))
        return out


NAMES = {"first.weight": "fc1.weight", "norm.weight": "ln.weight", "norm.bias": "ln.bias", "last.weight": "fc2.weight"}
"""The names of its parameters in the assignment."""


def by_hand(autocast: torch.dtype, device: torch.device) -> dict[str, object]:
    """The dtypes of `OtherToy`, read by hooks of its own."""
    model, seen = OtherToy().to(device), {}
    for part in ("first", "norm", "last"):
        module = model.get_submodule(part)
        module.register_forward_hook(lambda _module, _inputs, out, part=part: seen.update({part: name(out.dtype)}))
    with torch.autocast(device.type, dtype=autocast):
        parameters = {name(p.dtype) for p in model.parameters()}
        loss = F.mse_loss(model(torch.randn(7, 6, device=device)), torch.zeros(7, 3, device=device))
    loss.backward()
    gradients = {NAMES[each]: name(p.grad.dtype) for each, p in model.named_parameters() if p.grad is not None}
    return {
        "autocast": name(autocast),
        "parameters": "+".join(parameters),
        "first_layer_output": seen["first"],
        "layer_norm_output": seen["norm"],
        "logits": seen["last"],
        "loss": name(loss.dtype),
        "gradients": "+".join(set(gradients.values())),
        "loss_function": "mean squared error",
        "gradient_of": gradients,
    }


@contextmanager
def cuda_autocast(dtype: torch.dtype) -> Iterator[None]:
    """Within it, tensors made on ``cuda`` have no data, and torch dispatches them through its real autocast.

    Without gradients: a build of torch without CUDA ends the process when it makes a node for such a tensor.
    """
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    with FakeTensorMode(), torch.no_grad():
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", dtype)
        try:
            yield
        finally:
            torch.set_autocast_enabled("cuda", before[0])
            torch.set_autocast_dtype("cuda", before[1])
            torch.clear_autocast_cache()
