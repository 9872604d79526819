"""Checks a step of all ranks against one process on their whole batch, before anything is timed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import is_imported
from cs336_tui.worker.ranks.group import Group
from cs336_tui.worker.ranks.parallel import shards_by_name, share
from cs336_tui.worker.workload.building import Workload, build, collect_garbage
from cs336_tui.worker.workload.passes import Shared, Step

TOLERANCE, TOLERANCE_16_BIT = 1e-5, 5e-2
"""Relative difference of a gradient, in norms, that the order of additions explains: in fp32 and in shorter formats."""
SUMMED = 1e-3
"""Relative difference from an exact multiple of the gradient that rounding explains."""
DRAWS = (
    "gradients were not compared with one process, because the model draws random numbers in its step, in evaluation "
    "mode too"
)
NO_ROOM = "gradients were not compared with one process: one alone has no room for a step"


class WrongRanks(ValueError):
    """Ranks together train something else than one process would; says on which parameter and by how much."""


class Expected(NamedTuple):
    """Gradients of one process on the whole batch: on the host of the first rank, their shapes on each; `note` says why
    they are not to be compared, `still` that they are of evaluation mode."""

    shapes: dict[str, tuple[int, ...]]
    gradients: dict[str, Tensor]
    tolerance: float
    still: bool
    note: str


def check_ranks(
    spec: CellSpec, device: torch.device, group: Group, runs_out: Callable[[BaseException], bool]
) -> Expected:
    """Run one step of all ranks and compare: the gradients with those of one process on the whole batch, which the
    first rank works out, then the parameters with the first rank's. Where a wrapper has to make weights equal, ranks
    begin with unequal ones. A model that draws random numbers is compared in evaluation mode. All that is built is
    dropped; gradients are kept for `compare_step` if the step is to be compiled. Each rank calls it. `runs_out` tells
    an error for lack of memory. Raises `WrongRanks`."""
    rank = group.place.rank
    if is_imported(spec.model):
        _check_alike(spec, device, group)
    expected = _expected(spec, device, group, runs_out)
    workload = _build(spec, device, rank, still=expected.still, offset=0 if shards_by_name(spec.parallel) else rank)
    if workload.shared.whole and not shards_by_name(spec.parallel):
        workload.drop_hooks()
        del workload
        workload = _build(spec, device, rank, still=expected.still, offset=0)
    if isinstance(workload.shared.runs, DistributedDataParallel) and expected.note != NO_ROOM:
        trained = (name for name, parameter in workload.model.named_parameters() if parameter.requires_grad)
        if unused := next((name for name in trained if name not in expected.shapes), None):
            raise WrongRanks(
                f"a step gives parameter {unused} no gradient, and DDP waits for each; use it or freeze it"
            )
    step = workload.step(spec)
    whole = workload.shared.whole
    parameters = whole or (lambda: dict(workload.model.named_parameters()))
    with _unscaled(workload):
        step.run_trial()
        if not whole:
            _compare_with_first(parameters(), "before the first optimizer step", "begin with equal weights")
        if not expected.note:
            _compare(workload, expected, device)
        if spec.compile == "off":
            expected.gradients.clear()
        if "optimizer" in step.phases:
            before: dict[str, Tensor] = {}
            if is_imported(spec.optimizer) and spec.precision != "bf16":  # whose steps may be too small to be seen
                trained = workload.model.named_parameters()
                before = {name: _own_part(each.detach()).clone() for name, each in trained if name in expected.shapes}
            step.run("optimizer")
            _compare_with_first(parameters(), "after one step", "take equal steps")
            group.barrier()
            _compare_with_before(workload.model, before)
    workload.drop_hooks()
    return expected


def _build(
    spec: CellSpec, device: torch.device, rank: int, *, still: bool = False, offset: int | None = None
) -> Workload:
    """A workload in the room of those before, which are garbage: the collector is off. `still`: in evaluation mode.
    With an `offset` ranks share it, and its weights are greater by that before they do."""

    def shared_of(model: nn.Module) -> Shared:
        if still:
            model.eval()
        return Shared(model) if offset is None else share(model, spec=spec, device=device, offset=offset)

    collect_garbage()
    return build(spec, device, rank=rank, as_written=True, share=shared_of)


def compare_step(step: Step, workload: Workload, expected: Expected, device: torch.device) -> None:
    """Run a step without its optimizer and compare its gradients, which are left, with those of one process. Each rank
    calls it. Raises `WrongRanks`."""
    with _unscaled(workload):
        step.run_trial()
        _compare(workload, expected, device)


@contextmanager
def _unscaled(workload: Workload) -> Iterator[None]:
    """Leave gradients unscaled inside, which might overflow in a first step."""
    training = workload.training
    if training is None:
        yield
        return
    scaler, training.scaler = training.scaler, torch.amp.GradScaler(enabled=False)
    try:
        yield
    finally:
        training.scaler = scaler


def _check_alike(spec: CellSpec, device: torch.device, group: Group) -> None:
    """Raise `WrongRanks` for a parameter that is not as on the first rank, before ranks communicate."""
    alone = msgspec.structs.replace(spec, pass_="forward", accumulate=1)
    workload = _build(alone, device, group.place.rank)
    shapes = {name: list(parameter.shape) for name, parameter in workload.model.named_parameters()}
    workload.drop_hooks()
    first: dict[str, list[int]] = json.loads(group.told_by_rank_0(json.dumps(shapes)))
    for name in {**first, **shapes}:
        if first.get(name) != shapes.get(name):
            here, there = (f"shape {tuple(of[name])}" if name in of else "none" for of in (shapes, first))
            raise WrongRanks(f"parameter {name}: {here}, on rank 0 {there}; ranks need models alike")


def _expected(
    spec: CellSpec, device: torch.device, group: Group, runs_out: Callable[[BaseException], bool]
) -> Expected:
    """The gradients that all ranks together must come to."""
    alone = msgspec.structs.replace(  # without an optimizer, which a user's ranks may make together
        spec, pass_="forward+backward", accumulate=1
    )
    gradients: dict[str, Tensor] = {}
    tolerance = TOLERANCE if spec.precision == "fp32" else TOLERANCE_16_BIT
    still, note = bool(spec.dropout or spec.attention_dropout), ""
    if group.place.rank == 0:
        try:
            if is_imported(spec.model) and _draws(alone, device, tolerance, still=False):
                still, note = True, DRAWS if _draws(alone, device, tolerance, still=True) else ""
            for rank in range(spec.ranks):
                _add_gradients(gradients, alone, device, rank, still=still)
        except Exception as error:
            if not runs_out(error):
                raise
            gradients, note = {}, NO_ROOM
    own_shapes = {name: list(each.shape) for name, each in gradients.items()}
    still, note, shapes = json.loads(group.told_by_rank_0(json.dumps([still, note, own_shapes])))
    by_name = {name: tuple(shape) for name, shape in shapes.items()}
    return Expected(by_name, gradients, tolerance, still, note)


def _draws(spec: CellSpec, device: torch.device, tolerance: float, *, still: bool) -> bool:
    """True if gradients depend on the random numbers that a step of the first rank draws."""
    found: tuple[dict[str, Tensor], ...] = ({}, {})
    for seed, gradients in enumerate(found, 1):
        _add_gradients(gradients, spec, device, 0, still=still, seed=seed)
    one, other = found
    return any(not _difference(one[name], other[name]) <= tolerance for name in one)


def _add_gradients(
    gradients: dict[str, Tensor],
    spec: CellSpec,
    device: torch.device,
    rank: int,
    *,
    still: bool,
    seed: int | None = None,
) -> None:
    """Add one process's gradients of a rank's batch, as a part of the mean over all, by parameter, on the host. `seed`
    is that of what a model draws in its step."""
    workload = _build(spec, device, rank, still=still)
    if seed is not None:
        torch.manual_seed(seed)
    workload.step(spec).run_trial()
    for name, parameter in workload.model.named_parameters():
        if (gradient := _gradient(parameter)) is None:
            continue
        part = gradient.cpu() / spec.ranks
        gradients[name] = gradients[name].add_(part) if name in gradients else part
    workload.drop_hooks()


def _gradient(parameter: nn.Parameter | None) -> Tensor | None:
    """Whole gradient, None without one; of a sharded one each rank gets its part from the others."""
    gradient = None if parameter is None else parameter.grad
    if gradient is None:
        return None
    return (gradient.full_tensor() if isinstance(gradient, DTensor) else gradient).detach().float()


def _gathered_gradients(runs: nn.Module, whole: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Whole gradients of a container that shards its parameters: it gathers them in place of the parameters."""
    parameters = list(runs.parameters())
    kept = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        # Copies by the names that the model gives them, without a container's own ``module.`` in front.
        found = {name.removeprefix("module."): each.detach().float().clone() for name, each in whole().items()}
        for parameter, before in zip(parameters, kept, strict=True):
            parameter.copy_(before)
    return found


def _compare(workload: Workload, expected: Expected, device: torch.device) -> None:
    """Raise `WrongRanks` for the parameter whose gradient differs most. The first rank sends what is expected, one
    parameter after the other."""
    shared = workload.shared
    gradients = _gathered_gradients(shared.runs, shared.whole) if shared.whole else {}
    parameters = dict(workload.model.named_parameters())
    differences: dict[str, float] = {}
    missing, shapes = "", ""
    for name, shape in expected.shapes.items():
        found = gradients.get(name) if shared.whole else _gradient(parameters.get(name))
        wanted = expected.gradients[name].to(device) if expected.gradients else torch.empty(shape, device=device)
        dist.broadcast(wanted, src=0)
        if found is None:
            missing = missing or name
        elif tuple(found.shape) != shape:
            shapes = shapes or f"the gradient of {name} has shape {tuple(found.shape)}, that of one process {shape}"
        else:
            differences[name] = _difference(found, wanted)
    if missing:
        raise WrongRanks(f"parameter {missing} has no gradient after backward; one process on the whole batch has one")
    if shapes:
        raise WrongRanks(f"{shapes}; what shards needs fsdp_gather_full_params beside it")
    name = max(differences, key=lambda each: differences[each])
    tolerance = expected.tolerance
    if not differences[name] <= tolerance:  # nor NaN
        several = sum(not each <= tolerance for each in differences.values())
        ranks, likely = dist.get_world_size(), ""
        if all(abs(each / (ranks - 1) - 1) < SUMMED for each in differences.values()):
            likely = f"; all are {ranks} times as large, as sums that are not divided by the number of ranks"
        raise WrongRanks(
            f"the gradient of {name} differs from that of one process on the whole batch by {differences[name]:.2g} "
            f"of its norm, more than rounding explains ({tolerance:g}); so do {several} of {len(differences)} gradients"
            f"{likely}"
        )


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def _own_part(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _compare_with_before(model: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Raise `WrongRanks` if a parameter with a gradient is as `before`, of those that are given."""
    moved: dict[str, bool] = {}
    for name, parameter in model.named_parameters():
        if name in before and parameter.grad is not None and _own_part(parameter.grad).any():
            moved[name] = not torch.equal(before[name], _own_part(parameter.detach()))
    if not all(moved.values()):
        one = f"parameter {next(name for name in moved if not moved[name])} as it was, though it has a gradient"
        left = one if any(moved.values()) else "all parameters as they were, though they have gradients"
        raise WrongRanks(f"the optimizer step of all ranks left {left}")


def _compare_with_first(parameters: Mapping[str, Tensor], when: str, remedy: str) -> None:
    """Raise `WrongRanks` if a parameter that each rank has whole is not the first rank's."""
    for name, parameter in parameters.items():
        own = parameter.detach()
        if isinstance(own, DTensor):
            continue
        first = own.clone()
        dist.broadcast(first, src=0)
        if not torch.equal(first, own):
            difference = _difference(own.double(), first.double())
            raise WrongRanks(
                f"{when} parameter {name} differs from rank 0's by {difference:.2g} of its norm; ranks have to {remedy}"
            )
