"""Containers of a model on several ranks that average gradients wrongly, late, or only while they are looked at."""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

STEPS = [0]
CHECKED = 3
"""Synchronisations of a process in which those that begin honestly are honest: of the check before the times, and the
first of a cell."""


class DDP(nn.Module):
    """An honest one: sends all gradients after backward."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        for parameter in module.parameters():
            dist.broadcast(parameter.data, src=0)

    def forward(self, *arguments):
        return self.module(*arguments)

    def gradients(self):
        return [each.grad for each in self.module.parameters() if each.grad is not None]

    def average(self, gradients):
        for each in gradients:
            dist.all_reduce(each)
            each /= dist.get_world_size()

    def finish_gradient_synchronization(self):
        STEPS[0] += 1
        if STEPS[0] <= CHECKED:
            self.average(self.gradients())
        else:
            self.later(self.gradients())

    def later(self, gradients):
        """Average the gradients when nobody looks any more."""
        self.average(gradients)


class StopsLater(DDP):
    """Averages nothing after the first steps."""

    def later(self, gradients):
        pass


class FirstBucketLater(DDP):
    """Averages a few gradients after the first steps."""

    def later(self, gradients):
        self.average(gradients[:2])


class HalfOfEachLater(DDP):
    """Averages half of each gradient after the first steps."""

    def later(self, gradients):
        self.average([each[: len(each) // 2] for each in gradients])


class EverySecondStep(DDP):
    """Averages in every second step after the first ones."""

    def later(self, gradients):
        if STEPS[0] % 2:
            self.average(gradients)


class SumsLater(DDP):
    """Adds gradients up after the first steps, and does not divide."""

    def later(self, gradients):
        for each in gradients:
            dist.all_reduce(each)


class FirstRankLater(DDP):
    """Gives all ranks the gradients of the first one after the first steps."""

    def later(self, gradients):
        for each in gradients:
            dist.broadcast(each, src=0)


class LateLater(DDP):
    """Averages for the next step after the first ones, and uses what came of the step before."""

    kept = None

    def later(self, gradients):
        own = [each.clone() for each in gradients]
        for each, before in zip(gradients, self.kept or own, strict=True):
            each.copy_(before)
        self.average(own)
        self.kept = own


class Bfloat16Later(DDP):
    """Sends gradients in bfloat16 after the first steps."""

    def later(self, gradients):
        for each in gradients:
            short = each.bfloat16()
            dist.all_reduce(short)
            each.copy_(short / dist.get_world_size())


class ZeroesLater(DDP):
    """Sets gradients to zero after the first steps, so that ranks stay alike."""

    def later(self, gradients):
        torch._foreach_zero_(gradients)


class FirstBucket(DDP):
    """Averages a few gradients from the first step on."""

    def average(self, gradients):
        super().average(gradients[:2])


class Sums(DDP):
    """Adds gradients up from the first step on, and does not divide."""

    def average(self, gradients):
        for each in gradients:
            dist.all_reduce(each)


class LosesMicroBatches(DDP):
    """Drops the gradients of all micro-batches but the last."""

    @contextmanager
    def no_sync(self):
        yield
        self.zero_grad()


class HonestThrice(torch.optim.AdamW):
    """Takes the first steps of the process, on all ranks, and then none."""

    steps = [0]

    def step(self, closure=None):  # noqa: ARG002
        self.steps[0] += 1
        if self.steps[0] <= CHECKED:
            super().step()


class UnequalLater(torch.optim.AdamW):
    """Moves the parameters of the first rank only, after the first steps."""

    steps = [0]

    def step(self, closure=None):  # noqa: ARG002
        self.steps[0] += 1
        if self.steps[0] <= CHECKED or dist.get_rank() == 0:
            super().step()
