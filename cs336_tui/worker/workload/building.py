"""Builds a cell's workload from its spec: model, batch, optimizer and step, alike for timing and for reports."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import NO_MODEL
from cs336_tui.config.variants import IN_MODEL, is_imported, short
from cs336_tui.worker.workload.attention import core_of
from cs336_tui.worker.workload.attention_only import AttentionOnly, attention_loss, attention_shape
from cs336_tui.worker.workload.compile_and_capture import captures, compiled, nothing_compiled
from cs336_tui.worker.workload.import_problems import OwnWords
from cs336_tui.worker.workload.imported_components import (
    ImportedModel,
    import_model,
    imported_loss,
    imported_norm,
    imported_optimizer,
)
from cs336_tui.worker.workload.imported_modules import joined, revisions_of, revisions_of_classes
from cs336_tui.worker.workload.model_parts import checkpoint_blocks
from cs336_tui.worker.workload.norms import NORM_CLASSES, NormOnly, OperationAlone, OwnNorm, norm_loss
from cs336_tui.worker.workload.passes import Shared, Step, Training, cross_entropy
from cs336_tui.worker.workload.precision import RECIPES, Context, autocast_for, configure_device, use_float8
from cs336_tui.worker.workload.transformer import AttentionSteps, Batch, Loss, ModelOptions, Transformer, random_batch

_MOST_COLLECTIONS = 10  # A destructor may make garbage each time


class Workload(NamedTuple):
    """The inputs of a step. `model` is as written; `runs` is the compiled model, or `model` if it is not compiled."""

    model: nn.Module
    runs: nn.Module
    batch: Batch
    autocast: Context  # Makes the context of forward and loss
    training: Training | None
    loss: Loss
    facts: ModelFacts
    shared: Shared
    brings_batch: bool = False  # True if the user's model makes its batch

    @property
    def tried_s(self) -> float:
        """Seconds that a user's own attention took as it was tried, compiling included."""
        cores = (each.core for each in self.model.modules() if isinstance(each, AttentionSteps))
        return next((core.tried_s for core in cores if core), 0.0)

    def step(self, spec: CellSpec) -> Step:
        own = is_imported(spec.model) or is_imported(spec.loss)
        # Graphs reuse their memory: a forward without backward must say that earlier outputs are no longer needed.
        opens = self.runs is not self.model and captures(spec.compile, self.batch.targets.device.type)
        opening = torch.compiler.cudagraph_mark_step_begin if opens else None
        vocab_size = spec.vocab_size if own else None
        arguments = (self.runs, self.batch, self.autocast, self.training)
        return Step(
            spec.pass_,
            *arguments,
            loss=self.loss,
            check_against=vocab_size,
            opening=opening,
            shared=self.shared,
            accumulate=spec.accumulate,
            loss_in_model=spec.loss == IN_MODEL,
        )

    def gradients(self) -> Iterator[Tensor]:
        return (parameter.grad for parameter in self.model.parameters() if parameter.grad is not None)

    def optimizer_state(self) -> Iterator[Tensor]:
        return _state_of(self.training.optimizer, set()) if self.training else iter(())

    def drop_hooks(self) -> None:
        """Drop the hooks of its parameters, so that it can be freed: Python's collector does not see a cycle through a
        hook that torch calls once a gradient is there, such as a container's own method."""
        for parameter in (*self.model.parameters(), *self.shared.runs.parameters()):
            if hooks := parameter._post_accumulate_grad_hooks:
                hooks.clear()


def collect_garbage() -> None:
    """Collect until nothing is freed: torch may hold garbage that the collector sees once other garbage is gone."""
    for _ in range(_MOST_COLLECTIONS):
        if not gc.collect():
            return


def _state_of(optimizer: torch.optim.Optimizer, seen: set[int]) -> Iterator[Tensor]:
    """The state of an optimizer and of those that it holds, as one that shards them does."""
    seen.add(id(optimizer))
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))
    for held in vars(optimizer).values():
        if isinstance(held, torch.optim.Optimizer) and id(held) not in seen:
            yield from _state_of(held, seen)


def configure_torch(spec: CellSpec, device: torch.device | None = None, ranks_here: int | None = None) -> torch.device:
    """Set torch's device, by default the spec's, threads and matmul precision. Ranks that run on the CPU, all or so
    many on this machine, share its cores. Raises ValueError for what the device lacks."""
    return configure_device(device or torch.device(spec.device), spec.precision, threads_of(spec, ranks_here))


def threads_of(spec: CellSpec, ranks_here: int | None = None) -> int | None:
    """Threads to set for the spec, None for torch's own number; in a process of one rank its part of that number."""
    shares_cores = spec.threads is None and spec.ranks > 1 and spec.device == "cpu"
    return max(1, _own_threads() // (ranks_here or spec.ranks)) if shares_cores else spec.threads


@cache
def _own_threads() -> int:
    """Torch's own number, read before any is set."""
    return torch.get_num_threads()


def build(
    spec: CellSpec,
    device: torch.device,
    *,
    built: Callable[[], object] = lambda: None,
    as_written: bool = False,
    autocast: Context | None = None,
    rank: int = 0,
    share: Callable[[nn.Module], Shared] = Shared,
) -> Workload:
    """Make and initialise model, batch and, for `train-step`, optimizer; on the meta device all without data. `built`
    is called between model and batch. `as_written` leaves out torch.compile and CUDA graphs. `autocast` makes the
    context of forward and loss, by default that of the precision. `rank` is this process's place among those of the
    spec, whose step `share` shares."""
    if spec.is_collective:
        raise OwnWords(NO_MODEL)
    recipe = RECIPES[spec.precision]
    device_type = spec.device.partition(":")[0] if device.type == "meta" else device.type
    autocast = autocast or autocast_for(recipe, device.type)
    model, batch, not_taken = _make_model(spec, device, autocast, rank)
    if isinstance(model, Transformer | OperationAlone) and device.type != "meta":
        model.initialise(spec.seed)
        if isinstance(model, Transformer) and model.draws:
            torch.manual_seed(spec.seed + rank)  # of what is dropped
    revision = revisions_of(spec, model)  # before its blocks are replaced
    if recipe.float8:
        use_float8(model, spec.vocab_size)
    if spec.checkpoint:
        checkpoint_blocks(model, spec.checkpoint, spec.nesting)
    built()
    brings_batch = batch is not None
    batch = batch or _make_batch(spec, device, rank)
    facts = facts_of(model, spec, revision, not_taken)  # before its parameters are sharded
    shared = share(model)
    facts = facts._replace(remarks=facts.remarks + shared.remarks)
    if is_imported(spec.parallel):
        facts = facts._replace(revision=joined([revision, *revisions_of_classes(shared.runs)]))
    mode = "off" if as_written else spec.compile
    training = None
    if spec.pass_ == "train-step":
        capturable = spec.cuda_graph != "off" and not as_written
        if is_imported(name := spec.optimizer):
            optimizer = imported_optimizer(name, spec.model_path, shared.runs.parameters(), spec.optimizer_args)
        else:
            optimizer, name = make_optimizer(
                name, shared.runs, device_type, capturable=capturable, make=shared.optimizer
            )
        training = Training(optimizer, name, device_type, scale_gradients=recipe.scale_gradients)
    return Workload(
        model=_trained(shared.runs, model),
        runs=shared.runs if mode == "off" else compiled(shared.runs, mode, device),
        batch=batch,
        autocast=autocast,
        training=training,
        loss=_loss_of(spec),
        facts=facts,
        shared=shared,
        brings_batch=brings_batch,
    )


def _trained(runs: nn.Module, model: nn.Module) -> nn.Module:
    """The model in a container, which may hold a copy of the one that it was given."""
    inside = [each for each in runs.modules() if type(each) is type(model)]
    return inside[0] if inside and model not in inside else model


def _make_model(spec: CellSpec, device: torch.device, autocast: Context, rank: int) -> ImportedModel:
    """The model, uninitialised if it is not imported. A user's attention and norm are tried within `autocast`."""
    dtype = RECIPES[spec.precision].parameters
    if is_imported(spec.model):
        return import_model(spec, device, dtype, rank)
    norm = NORM_CLASSES.get(spec.norm)
    if norm is None:  # a user's own, which is tried on rows as the cell has them
        rows = torch.ones(1, 2, spec.d_model, device=device, dtype=dtype)
        with autocast(), nothing_compiled():
            norm = partial(OwnNorm, function=imported_norm(spec.norm, spec.model_path, rows))
    if spec.workload == "norm":
        return ImportedModel(NormOnly(spec, norm, device=device, dtype=dtype), None)
    core = core_of(spec, device, autocast)
    if spec.workload == "attention":
        return ImportedModel(AttentionOnly(spec, core, device=device, dtype=dtype), None)
    length = spec.context_length
    options = ModelOptions.of(spec, norm)
    model = Transformer(
        spec.dims, arch=spec.arch, options=options, context_length=length, core=core, device=device, dtype=dtype
    )
    model.train(spec.pass_ != "inference")  # in which nothing is dropped
    return ImportedModel(model, None)


def _make_batch(spec: CellSpec, device: torch.device, rank: int) -> Batch:
    """A rank's batch where the model brings none; of an operation alone its targets are the output's gradient."""
    if spec.is_alone:
        gradient = torch.empty(attention_shape(spec), device=device, dtype=RECIPES[spec.precision].parameters)
        if device.type != "meta":
            # Not the model's seed, whose first numbers are the queries or rows.
            gradient.normal_(generator=torch.Generator(device).manual_seed(spec.seed + 1))
        return Batch(torch.empty(0, dtype=torch.int64, device=device), gradient)
    if device.type == "meta":
        shape = (spec.rank_batch_size, spec.context_length)
        return Batch(*(torch.zeros(shape, dtype=torch.int64, device=device) for _ in range(2)))
    size = spec.rank_batch_size
    whole = random_batch(size * spec.ranks, spec.context_length, spec.vocab_size, device=device, seed=spec.seed)
    return Batch(*(part[rank * size : (rank + 1) * size] for part in whole))


def _loss_of(spec: CellSpec) -> Loss:
    if spec.is_alone:
        return norm_loss if spec.workload == "norm" else attention_loss
    return imported_loss(spec.loss, spec.model_path) if is_imported(spec.loss) else cross_entropy


class ModelFacts(NamedTuple):
    """Facts of a model: how it computes attention and the revision of user code, each None without such, remarks on its
    numbers."""

    num_params: int
    num_params_without_head: int
    attention: str | None
    revision: str | None = None
    remarks: tuple[str, ...] = ()
    dims_not_taken: tuple[str, ...] = ()  # Dimensions that a user's model did not ask for


def facts_of(
    model: nn.Module, spec: CellSpec, revision: str | None = None, not_taken: tuple[str, ...] = ()
) -> ModelFacts:
    """Facts of a model that was made for this spec; `not_taken` are the dimensions that it did not ask for."""
    numbers = sum(parameter.numel() for parameter in model.parameters())
    if isinstance(model, Transformer):
        return ModelFacts(numbers, model.num_params_without_head, model.attention_method, revision)
    if isinstance(model, OperationAlone):
        method = model.attention_method if isinstance(model, AttentionOnly) else None
        return ModelFacts(numbers, numbers, method, revision)
    head = _head(model, spec)
    without_head = numbers - (head.numel() if head is not None else 0)
    said = ", ".join(f"{field} {getattr(spec, field)}" for field in not_taken)
    own = f"{short(spec.model)} does not take {', '.join(not_taken)}: it has its own, whatever labels say ({said})"
    remarks = (own,) if not_taken else ()
    return ModelFacts(numbers, without_head, f"{short(spec.model)}'s own", revision, remarks, not_taken)


def _head(model: nn.Module, spec: CellSpec) -> nn.Parameter | None:
    """The weight that makes logits: the last of the vocabulary's and the model's width; None if shared or missing."""
    shapes = {(spec.vocab_size, spec.d_model), (spec.d_model, spec.vocab_size)}
    found = [parameter for parameter in model.parameters() if tuple(parameter.shape) in shapes]
    return found[-1] if len(found) > 1 else None


IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "adamw-fused": {"fused": True},
    "adamw-foreach": {"foreach": True},
    "adamw-for-loop": {"foreach": False, "fused": False},
}
_FUSED_ON = ("cpu", "cuda", "mps")  # From torch 2.6 on: ``_get_fused_kernels_supported_devices``


class NamedOptimizer(NamedTuple):
    """An optimizer and its name in words."""

    optimizer: torch.optim.Optimizer
    name: str


def make_optimizer(
    choice: str,
    model: nn.Module,
    device_type: str,
    *,
    capturable: bool = False,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
) -> NamedOptimizer:
    """One of `config.variants.OPTIMIZERS` over the model's parameters, with torch's defaults. ``adamw`` is torch's
    choice for `device_type`, that of the step; parameters may be of the meta device. `capturable` allows a CUDA graph,
    for which all but the fused one run more kernels. `make` makes AdamW, or something that takes its arguments.
    Raises ValueError for an implementation that the device lacks."""
    if choice == "adamw":  # torch's own choice: ``_default_to_fused_or_foreach`` in torch.optim.optimizer
        choice = "adamw-foreach" if device_type == "cuda" else "adamw-for-loop"
    capturable &= device_type == "cuda"
    more = ", capturable" if capturable and "fused" not in choice else ""
    name = f"AdamW ({choice.removeprefix('adamw-')}{more})"
    parameters = list(model.parameters())
    options: dict[str, Any] = {**IMPLEMENTATIONS[choice]}
    if "fused" in choice:
        if device_type not in _FUSED_ON:
            raise ValueError(f"optimizer {choice}: torch has no fused AdamW on {device_type}; use adamw-foreach")
        if other := next((each.dtype for each in parameters if not each.is_floating_point()), None):
            dtype = str(other).removeprefix("torch.")
            raise ValueError(f"optimizer {choice}: torch has no fused AdamW for {dtype} parameters; use adamw-foreach")
        if any(parameter.is_meta for parameter in parameters):
            return NamedOptimizer(_FusedOnMeta(parameters), name)
    if device_type == "cuda":
        options["capturable"] = capturable
    return NamedOptimizer(make(parameters, **options), name)


class _FusedOnMeta(torch.optim.Optimizer):
    """Fused AdamW for the meta device, which torch's own refuses: its state, step counts included, and no more."""

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
