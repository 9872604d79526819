"""A cell's workload from its spec: model, batch and step, built alike for timing and for whatever else looks at it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import nn

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import is_imported
from cs336_tui.worker.workload.attention import core_of
from cs336_tui.worker.workload.attention_only import AttentionOnly, attention_batch, attention_loss
from cs336_tui.worker.workload.batch import Batch, random_batch
from cs336_tui.worker.workload.checkpointing import checkpoint_blocks
from cs336_tui.worker.workload.compiling import compiled, step_opening
from cs336_tui.worker.workload.facts import ModelFacts, facts_of
from cs336_tui.worker.workload.float8 import use_float8
from cs336_tui.worker.workload.imported import import_model, imported_loss, imported_optimizer, revisions_of
from cs336_tui.worker.workload.optimizers import NamedOptimizer, make_optimizer
from cs336_tui.worker.workload.passes import Loss, Step, Training, cross_entropy
from cs336_tui.worker.workload.precision import RECIPES, autocast_for, check_capability, check_precision, set_matmul
from cs336_tui.worker.workload.transformer import Transformer


class Workload(NamedTuple):
    """What a step runs on. `model` is as it is written; `runs` is what a step calls, compiled where that is asked for.

    `autocast` makes the context of forward and loss.
    """

    model: nn.Module
    runs: nn.Module
    batch: Batch
    autocast: Callable[[], AbstractContextManager[object]]
    training: Training | None
    loss: Loss
    facts: ModelFacts

    def step(self, spec: CellSpec) -> Step:
        own = is_imported(spec.model) or is_imported(spec.loss)
        vocab_size = spec.vocab_size if own else None
        device_type = self.batch.targets.device.type
        return Step(
            spec.pass_,
            self.runs,
            self.batch,
            self.autocast,
            self.training,
            loss=self.loss,
            check_against=vocab_size,
            opening=step_opening(spec.compile, device_type) if self.runs is not self.model else None,
        )


class Made(NamedTuple):
    """A model on its device, not compiled, and its batch. Every parameter has a value, unless on the meta device."""

    model: nn.Module
    batch: Batch
    revision: str | None = None
    """Which source a user's own code is of."""
    not_taken: tuple[str, ...] = ()
    """Dimensions that a user's own model did not ask for."""


def settle_torch(spec: CellSpec) -> torch.device:
    """Set torch's device, threads and matmul precision as the spec asks. Raises ValueError for what cannot be had."""
    device = torch.device(spec.device)
    check_precision(spec.precision, device.type)
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.set_device(device)
    check_capability(spec.precision, device)
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    set_matmul(RECIPES[spec.precision].matmul)
    return device


def build(
    spec: CellSpec, device: torch.device, *, built: Callable[[], object] = lambda: None, as_written: bool = False
) -> Workload:
    """Make and initialise model, batch and, for `train-step`, optimizer. `built` is called when the model is there.

    `as_written` leaves out torch.compile and CUDA graphs, for whoever looks into the model.
    """
    recipe = RECIPES[spec.precision]
    autocast = autocast_for(recipe, device.type)
    made = make(spec, device, built=built, autocast=autocast)
    model = made.model
    mode = "off" if as_written else spec.compile
    training = None
    if spec.pass_ == "train-step":
        capturable = spec.cuda_graph != "off" and not as_written
        optimizer, name = optimizer_of(spec, model, device.type, capturable=capturable)
        training = Training(optimizer, name, device.type, scale_gradients=recipe.scale_gradients)
    return Workload(
        model=model,
        runs=model if mode == "off" else compiled(model, mode, device),
        batch=made.batch,
        autocast=autocast,
        training=training,
        loss=loss_of(spec),
        facts=facts_of(model, spec, made.revision, made.not_taken),
    )


def make(
    spec: CellSpec,
    device: torch.device,
    *,
    built: Callable[[], object] = lambda: None,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Made:
    """The model and the batch of a spec, on any device, the meta device too. `built` is called between the two.

    `autocast` makes the context of forward, in which a user's attention is tried.
    """
    dtype = RECIPES[spec.precision].parameters
    batch: Batch | None = None
    not_taken: tuple[str, ...] = ()
    model: nn.Module
    if is_imported(spec.model):
        model, batch, not_taken = import_model(spec, device, dtype)
    elif spec.workload == "attention":
        model = AttentionOnly(spec, core_of(spec, device, autocast), device=device, dtype=dtype)
    else:
        model = Transformer(
            spec.dims,
            arch=spec.arch,
            context_length=spec.context_length,
            core=core_of(spec, device, autocast),
            device=device,
            dtype=dtype,
        )
    if isinstance(model, Transformer | AttentionOnly) and device.type != "meta":
        model.initialise(spec.seed)
    revision = revisions_of(spec, model)  # before its blocks are replaced
    if RECIPES[spec.precision].float8:
        use_float8(model, spec.vocab_size)
    if spec.checkpoint:
        checkpoint_blocks(model, spec.checkpoint)
    built()
    return Made(model, batch or batch_of(spec, device), revision, not_taken)


def batch_of(spec: CellSpec, device: torch.device) -> Batch:
    """The batch of a spec whose model brings none."""
    if spec.workload == "attention":
        return attention_batch(spec, device)
    if device.type == "meta":
        shape = (spec.batch_size, spec.context_length)
        return Batch(*(torch.zeros(shape, dtype=torch.int64, device=device) for _ in range(2)))
    return random_batch(spec.batch_size, spec.context_length, spec.vocab_size, device=device, seed=spec.seed)


def loss_of(spec: CellSpec) -> Loss:
    """Output and targets to a number."""
    if spec.workload == "attention":
        return attention_loss
    return imported_loss(spec.loss, spec.model_path) if is_imported(spec.loss) else cross_entropy


def optimizer_of(spec: CellSpec, model: nn.Module, device_type: str, *, capturable: bool = False) -> NamedOptimizer:
    """The spec's optimizer over the model's parameters, as it is where the step is to run."""
    if is_imported(spec.optimizer):
        optimizer = imported_optimizer(spec.optimizer, spec.model_path, model.parameters())
        return NamedOptimizer(optimizer, spec.optimizer)
    return make_optimizer(spec.optimizer, model, device_type, capturable=capturable)
