"""A cell's workload from its spec: model, batch and step, built alike for timing and for whatever else looks at it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch

from cs336_tui.spec import RunSpec
from cs336_tui.workload.batch import Batch, random_batch
from cs336_tui.workload.passes import Step, Training
from cs336_tui.workload.precision import RECIPES, autocast_for, check_precision, set_matmul
from cs336_tui.workload.transformer import Transformer


class Workload(NamedTuple):
    """What a step runs on. `autocast` makes the context of forward and loss."""

    model: Transformer
    batch: Batch
    autocast: Callable[[], AbstractContextManager[object]]
    training: Training | None

    def step(self, spec: RunSpec) -> Step:
        return Step(spec.pass_, self.model, self.batch, self.autocast, self.training)


def settle_torch(spec: RunSpec) -> torch.device:
    """Set torch's device, threads and matmul precision as the spec asks. Raises ValueError for what cannot be had."""
    device = torch.device(spec.device)
    check_precision(spec.precision, device.type)
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.set_device(device)
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    set_matmul(RECIPES[spec.precision].matmul)
    return device


def build(spec: RunSpec, device: torch.device, *, built: Callable[[], object] = lambda: None) -> Workload:
    """Make and initialise model, batch and, for `train-step`, optimizer. `built` is called when the model is there."""
    recipe = RECIPES[spec.precision]
    model = Transformer(
        spec.dims, arch=spec.arch, context_length=spec.context_length, device=device, dtype=recipe.parameters
    )
    model.initialise(spec.seed)
    built()
    batch = random_batch(spec.batch_size, spec.context_length, spec.vocab_size, device=device, seed=spec.seed)
    training = None
    if spec.pass_ == "train-step":
        training = Training(model, scale_gradients=recipe.scale_gradients)
    return Workload(model, batch, autocast_for(recipe, device.type), training)
