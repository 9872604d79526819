"""Checks a step of all ranks against one process on their whole batch, before anything is timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import is_imported
from cs336_tui.worker.ranks.parallel import shards_by_name, share
from cs336_tui.worker.workload.building import Workload, build
from cs336_tui.worker.workload.passes import Step

TOLERANCE, TOLERANCE_16_BIT = 1e-5, 5e-2
"""Relative difference of a gradient, in norms, that the order of additions explains: in fp32 and in shorter formats."""
_LARGE = 2.0**14
"""Learning rate of the descent by which the gradients of sharded parameters are read: so large that the parameters do
not hide them."""
DRAWS = (
    "gradients were not compared with one process, because the model draws random numbers in its step, as dropout does"
)


class WrongRanks(ValueError):
    """Ranks together train something else than one process would; says on which parameter and by how much."""


def check_ranks(spec: CellSpec, device: torch.device, rank: int) -> str:
    """Run one step of all ranks and compare: the gradients with those of one process on the whole batch, then the
    parameters with the first rank's. Where a wrapper has to make weights equal, ranks begin with unequal ones. All that
    is built is dropped. Each rank calls it. Returns what could not be compared and why, empty if all was. Raises
    `WrongRanks`."""
    tolerance = TOLERANCE if spec.precision == "fp32" else TOLERANCE_16_BIT
    expected = _gradients_of_one_process(spec, device)
    draws = bool(spec.dropout or spec.attention_dropout)
    if is_imported(spec.model):
        again = _gradients_of_one_process(spec, device, ranks=(0,), seed=1)
        other = _gradients_of_one_process(spec, device, ranks=(0,), seed=2)
        draws = any(not _difference(again[name], other[name]) <= tolerance for name in again)
    workload = _built(spec, device, rank, offset=0 if shards_by_name(spec.parallel) else rank)
    if workload.shared.whole and not shards_by_name(spec.parallel):
        workload = _built(spec, device, rank, offset=0)
    if isinstance(workload.shared.runs, DistributedDataParallel):
        _check_each_is_used(workload.model, expected)
    step = workload.step(spec)
    _unscale(workload)
    whole = workload.shared.whole
    before = _copied(whole()) if whole else {}
    _run(step, without="optimizer")
    if whole:
        torch.optim.SGD(workload.shared.runs.parameters(), lr=_LARGE).step()
        after = _copied(whole())
        found = {name: (before[name] - tensor).cpu().float() / _LARGE for name, tensor in after.items()}
    else:
        found = dict(_gradients(workload.model))
    if not draws:
        _compare(found, expected, tolerance)
    if "optimizer" in step.phases and not whole:
        if is_imported(spec.optimizer) and spec.precision != "bf16":  # whose steps may be too small to be seen
            before = _copied({name: each for name, each in workload.model.named_parameters() if name in expected})
        step.run("optimizer")
    _compare_with_first(after if whole else dict(workload.model.named_parameters()))
    dist.barrier()
    if not whole:
        _compare_with_before(workload.model, before, expected)
    return DRAWS if draws else ""


def _built(spec: CellSpec, device: torch.device, rank: int, offset: int) -> Workload:
    """The workload that ranks share, its weights greater by `offset` before they do."""
    share_it = partial(share, spec=spec, device=device, offset=offset)
    return build(spec, device, rank=rank, as_written=True, share=share_it)


def _check_each_is_used(model: nn.Module, gradients: Mapping[str, Tensor]) -> None:
    """Raise `WrongRanks` for a parameter whose gradient DistributedDataParallel would wait for in vain."""
    trained = (name for name, parameter in model.named_parameters() if parameter.requires_grad)
    if unused := next((name for name in trained if name not in gradients), None):
        raise WrongRanks(f"a step gives parameter {unused} no gradient, and DDP waits for each; use it or freeze it")


def _unscale(workload: Workload) -> None:
    """Leave gradients unscaled, which might overflow in a first step."""
    if workload.training:
        workload.training.scaler = torch.amp.GradScaler(enabled=False)


def _gradients_of_one_process(
    spec: CellSpec, device: torch.device, *, ranks: Sequence[int] = (), seed: int | None = None
) -> dict[str, Tensor]:
    """Gradients of the mean loss over the batches of these ranks, by default all, by parameter, on the host. `seed` is
    that of what a model draws in its step."""
    found: dict[str, Tensor] = {}
    for rank in ranks or range(spec.ranks):
        workload = build(spec, device, rank=rank, as_written=True)
        _unscale(workload)
        if seed is not None:
            torch.manual_seed(seed)
        _run(workload.step(spec), without="optimizer")
        for name, gradient in _gradients(workload.model):
            part = gradient / len(ranks or range(spec.ranks))
            found[name] = found[name] + part if name in found else part
    return found


def _run(step: Step, *, without: str) -> None:
    step.prepare()
    for phase in step.phases:
        if phase != without:
            step.run(phase)


def _gradients(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Whole gradients on the host, by parameter; of sharded ones each rank gets its part from the others."""
    for name, parameter in model.named_parameters():
        if (gradient := parameter.grad) is not None:
            yield name, (gradient.full_tensor() if isinstance(gradient, DTensor) else gradient).detach().cpu().float()


def _compare(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float) -> None:
    """Raise `WrongRanks` for the parameter whose gradient differs most."""
    if missing := next((name for name in expected if name not in found), None):
        raise WrongRanks(f"parameter {missing} has no gradient after backward; one process on the whole batch has one")
    if other := next((name for name, whole in expected.items() if found[name].shape != whole.shape), None):
        shapes = f"shape {tuple(found[other].shape)}, that of one process {tuple(expected[other].shape)}"
        raise WrongRanks(f"the gradient of {other} has {shapes}; what shards needs fsdp_gather_full_params beside it")
    differences = {name: _difference(found[name], whole) for name, whole in expected.items()}
    name = max(differences, key=lambda each: differences[each])
    if not differences[name] <= tolerance:  # nor NaN
        several = sum(not each <= tolerance for each in differences.values())
        raise WrongRanks(
            f"the gradient of {name} differs from that of one process on the whole batch by {differences[name]:.2g} "
            f"of its norm, more than rounding explains ({tolerance:g}); so do {several} of {len(differences)} gradients"
        )


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def _copied(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies by the names that the model gives them, without a container's own ``module.`` in front."""
    return {name.removeprefix("module."): tensor.detach().clone() for name, tensor in parameters.items()}


def _compare_with_before(model: nn.Module, before: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
    """Raise `WrongRanks` if a parameter with a gradient is as `before`, of those that are given, and another is not."""
    own = {name: parameter for name, parameter in model.named_parameters() if name in before}
    moved = {name: not torch.equal(before[name], own[name]) for name in own if gradients[name].any()}
    if any(moved.values()) and not all(moved.values()):
        name = next(name for name in moved if not moved[name])
        raise WrongRanks(f"the optimizer step of all ranks left parameter {name} as it was, though it has a gradient")


def _compare_with_first(parameters: Mapping[str, Tensor]) -> None:
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
                f"after one step parameter {name} differs from rank 0's by {difference:.2g} of its norm; "
                f"ranks have to begin with equal weights and take equal steps"
            )
