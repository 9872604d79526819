"""Compares a step after the measured ones with the reference: logits of each sequence, the loss, the gradient of each
parameter and what the optimizer moved."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from cs336_tui.events.audit import Difference, Quantity
from cs336_tui.stats.differences import LEAST_RMS, Part, relative_errors
from cs336_tui.worker.measure.referee.reference import Referred, whole
from cs336_tui.worker.workload.building import Workload
from cs336_tui.worker.workload.model_parts import named_parameters
from cs336_tui.worker.workload.passes import Training

RANGES = 8
"""Ranges of token positions whose logits are compared, of each sequence."""
_MOST = 1e9
"""A relative difference that is infinite."""
_LEAST_MOVED = 0.02
"""Share of the elements that surely should move."""
_MOST_LOST = 0.2
"""Share of the elements whose gradient an AdamW may drop or turn, as one that adds noise does of some."""
_RESOLVED = 2**-22
"""Of a float32 number, twice the least change of it that is a change."""
_SAMPLE = 4096
"""Elements of each parameter whose move is worked out; AdamW's is the same for each by itself."""
_OTHER_RULES = re.compile("lamb|lars|sophia|[nr]adam|belief|adan|adamax|yogi|soap|shampoo|muon|lion|free|adam(l2)?$")
"""Names of optimizers with two moments that move otherwise than AdamW."""
_OF_STEPS = 0.9
"""Share of the optimizer steps asked for that parameters surely took; experts that got no tokens take none."""


def differences(quantity: Quantity, parts: Iterable[Part]) -> list[Difference]:
    """The relative difference of the whole and of its worst part; empty of no parts."""
    if (errors := relative_errors(parts)) is None:
        return []
    whole, worst_error = finite(errors.whole), finite(errors.worst_error)
    return [Difference(quantity=quantity, whole=whole, worst=errors.worst, worst_error=worst_error)]


def finite(error: float) -> float:
    """At most `_MOST`, as a log has no infinity."""
    return min(error, _MOST)


def part_of(name: str, own: Tensor, expected: Tensor) -> Part:
    """The norms of two tensors in float32."""
    own, expected = own.float(), expected.float()
    return Part(name, float((own - expected).norm()), float(expected.norm()), expected.numel())


@torch.no_grad()
def logits_parts(own: Tensor, referred: Referred) -> Iterator[Part]:
    """Of each sequence the ranges of positions; of several micro-batches `own` has the last sequences alone."""
    rows = [row for several in referred.logits for row in several]
    first = len(rows) - own.shape[0]
    for number, (found, expected) in enumerate(zip(own, rows[first:], strict=True), first + 1):
        length = found.shape[-2]
        size = -(-length // RANGES)
        for start in range(0, length, size):
            end = min(start + size, length)
            here = slice(start, end)
            yield part_of(
                f"sequence {number}, positions {start + 1} to {end}", found[..., here, :], expected[..., here, :]
            )


@torch.no_grad()
def gradient_parts(workload: Workload, referred: Referred, ranks: int, summed: Callable[[], int]) -> Iterator[Part]:
    """Of each parameter of which either has a gradient; of ranks that share a step the reference's is their mean. Of a
    loss that is a sum, `summed` is the number of its targets."""
    shares, factor = ranks > 1, summed()
    for name, parameter in named_parameters(workload.model):
        expected = referred.gradients.get(name)
        if expected is None and parameter.grad is None and not shares:
            continue
        if expected is None:  # all ranks take part
            expected = torch.zeros(parameter.shape, device=parameter.device)
        if shares:
            dist.all_reduce(expected)
            expected /= ranks
        own = torch.zeros_like(expected) if parameter.grad is None else whole(parameter.grad)
        yield part_of(name, own, expected * factor)


@torch.no_grad()
def unequal_parameters(workload: Workload) -> tuple[str, ...]:
    """Parameters that each rank has whole and that are not the first rank's; each rank calls it."""
    names = []
    for name, parameter in named_parameters(workload.model):
        if not hasattr(parameter, "full_tensor"):
            first = parameter.detach().clone(memory_format=torch.contiguous_format)
            dist.broadcast(first, src=0)
            if not torch.equal(first, parameter.detach()):
                names.append(name)
    return tuple(names)


class _Sample(NamedTuple):
    """Some elements of a parameter before an optimizer step, with the two moments of its state and its step count."""

    value: Tensor
    first: Tensor | None
    second: Tensor | None
    steps: float
    group: Mapping[str, object]
    elements: int


class Moved(NamedTuple):
    """The effects of an optimizer step: moves and moments beside AdamW's from the same state, by parameter; parameters
    that did not move though they have a gradient; and the words on what could not be compared."""

    moves: list[Part]
    moments: list[Part]
    unmoved: tuple[str, ...]
    left_out: str


class Moves:
    """The moves of an optimizer step, of some elements of each parameter: made before it. `given` are parts of the
    gradients as they came to an optimizer, of one that may change them."""

    def __init__(self, workload: Workload, gradients: Callable[[], Iterable[Part]] | None = None) -> None:
        assert workload.training is not None
        self._workload, self._training = workload, workload.training
        groups = {id(each): group for group in self._training.optimizer.param_groups for each in group["params"]}
        self._samples = {
            name: _sample(parameter, workload.training, groups.get(id(parameter), {}))
            for name, parameter in named_parameters(workload.model)
        }
        self._taken, self._asked = workload.training.steps_taken, workload.training.asked
        self.given, self._gradients = list[Part](), dict[str, Tensor]()
        self._watching: RemovableHandle | None = None
        if gradients is not None:
            self._watching = workload.training.optimizer.register_step_pre_hook(partial(self._see, gradients))

    def _see(self, gradients: Callable[[], Iterable[Part]], *_: object) -> None:
        """Before the optimizer's step: what it is given."""
        if not self.given:
            self.given = list(gradients())
            found = named_parameters(self._workload.model)
            self._gradients = {name: _some(each.grad).float().clone() for name, each in found if each.grad is not None}

    @property
    def is_skipped(self) -> bool:
        """True if gradients overflowed float16 in the step, so that the optimizer took none."""
        return self._training.scales_gradients and self._training.steps_taken == self._taken

    def _lazy(self) -> list[str]:
        """Parameters that AdamW moved in fewer steps than were asked for, by its count, if they are most of all."""
        kept = {name: each for name, each in self._samples.items() if each.first is not None}
        few = [name for name, each in kept.items() if each.steps < self._asked * _OF_STEPS - 1]
        most = 2 * sum(kept[name].elements for name in few) > sum(each.elements for each in kept.values())
        asked = 0 if self._training.scales_gradients or not most else self._asked
        return [f"{name} (in {asked - round(kept[name].steps)} of {asked} steps)" for name in few if asked]

    @torch.no_grad()
    def compared(self) -> Moved:
        """After the step: what it did."""
        if self._watching is not None:
            self._watching.remove()
        if self.is_skipped:
            return Moved([], [], (), "the optimizer step was skipped, because gradients overflowed float16")
        moves, moments, unmoved, left_out = list[Part](), list[Part](), list[str](), ""
        stuck, several = list[str](), 0  # 16-bit parameters that stay, and all of them
        unmoved += self._lazy()
        optimizer = self._training.optimizer
        is_adamw = isinstance(optimizer, torch.optim.AdamW)
        is_other = not is_adamw and bool(_OTHER_RULES.search(type(optimizer).__name__.lower()))
        if is_adamw and self._taken and not any(optimizer.state.values()):
            moments.append(Part("all", 1.0, 1.0, 1))
        for name, parameter in named_parameters(self._workload.model):
            before = self._samples[name]
            given = self._gradients.get(name)
            gradient = None if parameter.grad is None else _some(parameter.grad).float()
            if gradient is None or not gradient.any():  # the optimizer may clear them
                gradient = given
            if gradient is None or not before.group or not gradient.any():
                continue
            is_like_adamw = before.first is not None and not is_other
            if is_like_adamw and given is not None and _share_lost(given, gradient) > _MOST_LOST:
                unmoved.append(f"much of {name}")
            after = _some(parameter.detach()).float()
            moved = after - before.value
            if parameter.dtype != torch.float32:  # a step may be smaller than what its numbers resolve
                stuck += [] if moved.any() else [name]
                left_out, several = "moves of 16-bit parameters", several + 1
                continue
            if not moved.any() or _share_moved(before, gradient, moved) < _LEAST_MOVED:
                unmoved.append(name)
            # A count of its own may be of the next step.
            counts = (before.steps + 1, max(before.steps, 1.0)) if is_like_adamw else ()
            each = [found for count in counts if (found := _adamw(before, gradient, count))]
            if not each:
                left_out = "moves of an optimizer that is not AdamW"
                continue
            expected = min(each, key=lambda found: float((moved - found.move).norm()))
            moves.append(part_of(name, moved, expected.move))
            now = _sample(parameter, self._training, before.group)
            for kind, own, right in (("first", now.first, expected.first), ("second", now.second, expected.second)):
                if own is not None:
                    moments.append(part_of(f"{kind} of {name}", own, right))
        return Moved(moves, moments, (*unmoved, *(stuck if len(stuck) == several else ())), left_out)


def _share_moved(before: _Sample, gradient: Tensor, moved: Tensor) -> float:
    """The share of the elements that moved, of those that surely should: with no small gradient, and of a move by it
    that float32 resolves."""
    rate = before.group.get("lr")
    step = gradient.abs() * (float(rate) if isinstance(rate, float | Tensor) else 1.0)
    should = (gradient.abs() > LEAST_RMS * gradient.square().mean().sqrt()) & (step > before.value.abs() * _RESOLVED)
    return float((moved[should] != 0).float().mean()) if should.any() else 1.0


def _share_lost(given: Tensor, gradient: Tensor) -> float:
    """The share of the elements with no small gradient to which the optimizer gave next to none, or one of another
    sign."""
    large, least = given.abs() > LEAST_RMS * given.square().mean().sqrt(), gradient.square().mean().sqrt()
    return float((gradient * given.sign() < LEAST_RMS**2 * least)[large].float().mean())


def _some(tensor: Tensor) -> Tensor:
    flat = (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLE)]


@torch.no_grad()
def _sample(parameter: Tensor, training: Training, group: Mapping[str, object]) -> _Sample:
    kept = training.optimizer.state
    state = kept.get(parameter, {}) if hasattr(kept, "get") else {}
    tensors = (value for value in state.values() if isinstance(value, Tensor) and value.shape == parameter.shape)
    alike = [value for value in tensors if value.dim() and value.dtype.is_floating_point]
    first = second = None
    if len(alike) == 2:
        first, second = (_some(value).float().clone() for value in alike)
        if bool((second < 0).any()) and not bool((first < 0).any()):
            first, second = second, first
    counts = (float(state[key]) for key in ("step", "t", "steps") if key in state)
    steps = next(counts, float(training.steps_taken))
    return _Sample(_some(parameter).float().clone(), first, second, steps, group, parameter.numel())


class _Expected(NamedTuple):
    """A move, and the two moments after it."""

    move: Tensor
    first: Tensor
    second: Tensor


def _adamw(before: _Sample, gradient: Tensor, count: float) -> _Expected | None:
    """The step of this count of AdamW (Loshchilov and Hutter 2019), as torch computes it; None of another optimizer."""
    group = before.group
    betas, lr, eps, decay = (group.get(key) for key in ("betas", "lr", "eps", "weight_decay"))
    foreign = group.get("amsgrad") or group.get("maximize") or group.get("decoupled_weight_decay") is False
    if before.first is None or before.second is None or foreign:
        return None
    if not isinstance(betas, tuple | list) or len(betas) != 2 or any(each is None for each in (lr, eps, decay)):
        return None
    beta1, beta2 = betas
    rate, small, shrink = float(lr), float(eps), float(decay)  # type: ignore[arg-type]
    first = beta1 * before.first + (1 - beta1) * gradient
    second = beta2 * before.second + (1 - beta2) * gradient.square()
    size = second.sqrt() / math.sqrt(1 - beta2**count) + small
    return _Expected(-rate * shrink * before.value - rate / (1 - beta1**count) * first / size, first, second)
