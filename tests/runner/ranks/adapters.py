"""A student's containers of several ranks, right ones and wrong ones, under the names of the course's adapters."""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist
from torch import nn


class Individual(nn.Module):
    """Sends each gradient as soon as it is there."""

    starts_equal = True
    averages = True
    leaves_out = ""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.works: list[tuple[dist.Work, torch.Tensor]] = []
        for name, parameter in module.named_parameters():
            if self.starts_equal:
                dist.broadcast(parameter.data, src=0)
            if parameter.requires_grad and name != self.leaves_out:
                parameter.register_post_accumulate_grad_hook(self._send)

    def _send(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        work = dist.all_reduce(parameter.grad, async_op=True)
        assert work is not None
        self.works.append((work, parameter.grad))

    def forward(self, *arguments):
        return self.module(*arguments)

    def finish_gradient_synchronization(self) -> None:
        for work, gradient in self.works:
            work.wait()
            if self.averages:
                gradient /= dist.get_world_size()
        self.works.clear()


class Sums(Individual):
    averages = False


class Forgets(Individual):
    leaves_out = "layers.0.attention_norm.weight"


class StartsUnequal(Individual):
    starts_equal = False


def get_ddp(module: nn.Module) -> nn.Module:
    return Individual(module)


def ddp_on_after_backward(ddp_model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    ddp_model.finish_gradient_synchronization()


def get_ddp_individual_parameters(module: nn.Module) -> nn.Module:
    """Of 2024 and 2025; nothing beside it, so that the container's own method is called."""
    return Individual(module)


class Hangs(Individual):
    """The last rank never ends its third forward."""

    forwards = 0

    def forward(self, *arguments):
        self.forwards += 1
        if dist.get_rank() == dist.get_world_size() - 1 and self.forwards == 3:
            threading.Event().wait()
        return super().forward(*arguments)


class RunsOut(Individual):
    """The first rank runs out of memory in its third forward."""

    forwards = 0

    def forward(self, *arguments):
        self.forwards += 1
        if dist.get_rank() == 0 and self.forwards == 3:
            raise MemoryError("no memory for it")
        return super().forward(*arguments)
