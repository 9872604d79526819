"""Builds a cell's workload from its spec: model, batch, optimizer and step, alike for timing and for reports."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import is_imported, short
from cs336_tui.worker.workload.attention import core_of
from cs336_tui.worker.workload.attention_only import AttentionOnly, attention_batch, attention_loss
from cs336_tui.worker.workload.checkpointing import checkpoint_blocks
from cs336_tui.worker.workload.compiling import compiled, step_opening
from cs336_tui.worker.workload.float8 import use_float8
from cs336_tui.worker.workload.imported.components import import_model, imported_loss, imported_optimizer
from cs336_tui.worker.workload.imported.revisions import revisions_of
from cs336_tui.worker.workload.passes import Loss, Step, Training, cross_entropy
from cs336_tui.worker.workload.precision import RECIPES, autocast_for, check_capability, check_precision, set_matmul
from cs336_tui.worker.workload.random_data import Batch, random_batch
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


def configure_torch(spec: CellSpec) -> torch.device:
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


class ModelFacts(NamedTuple):
    """`attention` says in words how it is computed, as far as is known; `revision` of which source the user's own
    code is, None where there is none; `remarks` what is to be known beside the numbers of a cell that runs it."""

    num_params: int
    num_params_without_head: int
    attention: str
    revision: str | None = None
    remarks: tuple[str, ...] = ()


def facts_of(
    model: nn.Module, spec: CellSpec, revision: str | None = None, not_taken: tuple[str, ...] = ()
) -> ModelFacts:
    """Of a model that was made for this spec, `not_taken` being the dimensions that it did not ask for."""
    numbers = sum(parameter.numel() for parameter in model.parameters())
    if isinstance(model, Transformer):
        return ModelFacts(numbers, model.num_params_without_head, model.attention_method, revision)
    if isinstance(model, AttentionOnly):
        return ModelFacts(numbers, numbers, model.attention_method, revision)
    head = _head(model, spec)
    without_head = numbers - (head.numel() if head is not None else 0)
    remarks = (_of_its_own(spec, not_taken),) if not_taken else ()
    return ModelFacts(numbers, without_head, f"{short(spec.model)}'s own", revision, remarks)


def _of_its_own(spec: CellSpec, fields: tuple[str, ...]) -> str:
    said = ", ".join(f"{field} {getattr(spec, field)}" for field in fields)
    return f"{short(spec.model)} does not take {', '.join(fields)}: it has its own, whatever labels say ({said})"


def _head(model: nn.Module, spec: CellSpec) -> nn.Parameter | None:
    """The weight that makes logits: of the vocabulary's and the model's width, the last such that was registered, and
    no other part's too; None where there is none."""
    shapes = {(spec.vocab_size, spec.d_model), (spec.d_model, spec.vocab_size)}
    found = [parameter for parameter in model.parameters() if tuple(parameter.shape) in shapes]
    return found[-1] if len(found) > 1 else None


IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "adamw-fused": {"fused": True},
    "adamw-foreach": {"foreach": True},
    "adamw-for-loop": {"foreach": False, "fused": False},
}
_FUSED_ON = ("cpu", "cuda", "mps")
"""Devices with a fused kernel, in torch 2.6 and later: ``_get_fused_kernels_supported_devices``."""


class NamedOptimizer(NamedTuple):
    """An optimizer, and in words what it is."""

    optimizer: torch.optim.Optimizer
    name: str


def make_optimizer(choice: str, model: nn.Module, device_type: str, *, capturable: bool = False) -> NamedOptimizer:
    """The optimizer of one of `config.variants.OPTIMIZERS` over the model's parameters, torch's defaults else.

    `device_type` is where the step is to run, which decides what ``adamw`` is; parameters may be of the meta device.
    `capturable` asks for a step that a CUDA graph can hold. Raises ValueError for an implementation that the device
    does not have.
    """
    if choice == "adamw":  # torch's own choice, said aloud: ``_default_to_fused_or_foreach`` in torch.optim.optimizer
        choice = "adamw-foreach" if device_type == "cuda" else "adamw-for-loop"
    name = f"AdamW ({choice.removeprefix('adamw-')})"
    parameters = list(model.parameters())
    options: dict[str, Any] = {**IMPLEMENTATIONS[choice]}
    if "fused" in choice:
        _check_fused(choice, parameters, device_type)
        if any(parameter.is_meta for parameter in parameters):
            return NamedOptimizer(_FusedOnMeta(parameters), name)
    if device_type == "cuda":
        options["capturable"] = capturable
    return NamedOptimizer(torch.optim.AdamW(parameters, **options), name)


def _check_fused(choice: str, parameters: list[nn.Parameter], device_type: str) -> None:
    if device_type not in _FUSED_ON:
        raise ValueError(f"optimizer {choice}: torch has no fused AdamW on {device_type}; use adamw-foreach")
    if other := next((each.dtype for each in parameters if not each.is_floating_point()), None):
        dtype = str(other).removeprefix("torch.")
        raise ValueError(f"optimizer {choice}: torch has no fused AdamW for {dtype} parameters; use adamw-foreach")


class _FusedOnMeta(torch.optim.Optimizer):
    """What fused AdamW is to memory, for a step without data: its state, with counts of steps on the device, and
    nothing else, as one kernel does all. torch's own refuses the meta device."""

    _step_supports_amp_scaling = True  # its kernel undoes the scaling of gradients

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        del closure
        for parameter in (each for group in self.param_groups for each in group["params"]):
            if parameter.grad is not None and not self.state[parameter]:
                self.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
