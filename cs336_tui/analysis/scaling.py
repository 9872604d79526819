"""Computation and communication of a step on N devices, from dimensions, FLOP/s and bandwidth.

The setting is that of the 2026 handout, section 8: N devices of C FLOP/s, each with W bytes/s of outgoing bandwidth,
ring collectives, and communication that overlaps computation, so that it bounds where it takes longer. In the same way,
without the factor (N - 1) / N: J. Austin et al., "How to Scale Your Model", part 5,
https://jax-ml.github.io/scaling-book/training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple, get_args

import msgspec

from cs336_tui.config.flops import parameters, step_flops
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.prediction import Collective

Strategy = Literal["dp", "fsdp", "tp", "fsdp+tp"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
Part = Literal["model", "ffn"]
PARTS: tuple[Part, ...] = get_args(Part)
PASSES: tuple[Literal["forward", "backward"], ...] = ("forward", "backward")
_FORWARDS = {"forward": 1, "backward": 2}
"""A backward multiplies twice for each product of the forward: for the gradient of either factor."""
_TRIED = 20_000


class Work(NamedTuple):
    """The work that N devices share: that of a whole batch on one device."""

    forward_flops: int
    weight_bytes: int
    activation_bytes: int
    """Of one tensor (B, D) between layers."""
    all_reduces: int
    """Of such tensors under TP, in a forward and as many in a backward."""


class Device(NamedTuple):
    """A device's speed in FLOP/s and its outgoing bandwidth in bytes/s."""

    flops_per_s: float
    bytes_per_s: float


class Split(NamedTuple):
    """Ranks that share the batch (and with FSDP each weight), times ranks that share each product."""

    data: int
    tensor: int

    @property
    def ranks(self) -> int:
        return self.data * self.tensor


class PassTime(msgspec.Struct, frozen=True, kw_only=True):
    """One forward or backward on one of N devices, in seconds, computation and communication each alone."""

    compute_s: float
    weights_s: float
    """All-gathers of weights, reduce-scatters or all-reduces of their gradients."""
    activations_s: float
    """TP's all-reduces."""
    communication_s: float

    @property
    def bound(self) -> Literal["compute", "communication"]:
        return "communication" if self.communication_s > self.compute_s else "compute"

    @property
    def time_s(self) -> float:
        """The longer of the two, which run at once."""
        return max(self.compute_s, self.communication_s)


class StrategyTime(msgspec.Struct, frozen=True, kw_only=True):
    """A step's forward and backward under one strategy."""

    strategy: Strategy
    split: Split
    forward: PassTime
    backward: PassTime

    @property
    def time_s(self) -> float:
        return self.forward.time_s + self.backward.time_s

    @property
    def communication_s(self) -> float:
        return self.forward.communication_s + self.backward.communication_s


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """All strategies on one number of ranks."""

    ranks: int
    by_strategy: dict[Strategy, StrategyTime]

    @property
    def fastest(self) -> Strategy:
        """Of equally fast ones the first of `STRATEGIES`, the simplest."""
        return min(STRATEGIES, key=lambda name: self.by_strategy[name].time_s)


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """The most ranks on which a strategy is bound by computation; None is any number."""

    strategy: Strategy
    forward: int | None
    backward: int | None
    split: Split | None
    """The best split of `most` ranks."""

    @property
    def most(self) -> int | None:
        """The largest N: neither pass is bound by communication."""
        known = [each for each in (self.forward, self.backward) if each is not None]
        return min(known) if known else None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A model on N devices: limits of each strategy, and times by number of ranks."""

    spec: CellSpec
    part: Part
    work: Work
    device: Device
    shared_link: bool
    limits: tuple[Limit, ...]
    rows: tuple[RankRow, ...]


def work_of(spec: CellSpec, part: Part, width: int) -> Work:
    """The handout's FFN alone (`ffn`), or the whole model, with numbers of `width` bytes.

    FFN: 3 matrices (2 without a gate) of D x D_FF, 2 B FLOPs for each number in them, one all-reduce. Model: all
    parameters, the matrix products of its forward, and under TP (Megatron-LM, Shoeybi et al. 2019) two all-reduces a
    block and one more: of the token embedding in the forward, of the head in the backward.
    """
    activation_bytes = spec.tokens_per_step * spec.d_model * width
    if part == "ffn":
        numbers = (2 if spec.arch == "gelu-learned" else 3) * spec.d_model * spec.d_ff
        return Work(2 * spec.tokens_per_step * numbers, numbers * width, activation_bytes, 1)
    forward = msgspec.structs.replace(spec, pass_="forward")
    return Work(step_flops(forward), parameters(spec).numbers * width, activation_bytes, 2 * spec.num_layers + 1)


def strategy_time(
    work: Work, device: Device, strategy: Strategy, split: Split, *, shared_link: bool = False
) -> StrategyTime:
    """Forward and backward of the strategy with this split. With `shared_link` communication of weights and of
    activations adds up; else both go on at once, each at the whole bandwidth."""
    found = {name: _pass_time(work, device, strategy, split, name, shared_link) for name in PASSES}
    return StrategyTime(strategy=strategy, split=split, **found)


def _pass_time(work: Work, device: Device, strategy: Strategy, split: Split, name: str, shared_link: bool) -> PassTime:
    """A ring all-gather or reduce-scatter of S bytes over n ranks takes (n - 1) / n S / W, an all-reduce twice that.

    FSDP all-gathers the weights in either pass and reduce-scatters their gradients in the backward; DP all-reduces the
    gradients, which takes as long as those two. A rank of TP has 1 / tensor of each weight, one of FSDP 1 / data of
    the batch.
    """
    data, tensor = split
    rings = 2 if name == "backward" else 0 if strategy == "dp" else 1
    weights_s = rings * (data - 1) / data * work.weight_bytes / tensor / device.bytes_per_s
    reduced = work.all_reduces * work.activation_bytes / data
    activations_s = 2 * (tensor - 1) / tensor * reduced / device.bytes_per_s
    both = (weights_s, activations_s)
    return PassTime(
        compute_s=_FORWARDS[name] * work.forward_flops / split.ranks / device.flops_per_s,
        weights_s=weights_s,
        activations_s=activations_s,
        communication_s=sum(both) if shared_link else max(both),
    )


def best_split(work: Work, device: Device, ranks: int, *, shared_link: bool = False) -> StrategyTime:
    """FSDP+TP on this many ranks by the split with the shortest step, of equal ones that which communicates least."""
    splits = [Split(ranks // tensor, tensor) for tensor in range(1, ranks + 1) if ranks % tensor == 0]
    found = [strategy_time(work, device, "fsdp+tp", split, shared_link=shared_link) for split in splits]
    return min(found, key=lambda each: (each.time_s, each.communication_s))


def rank_row(work: Work, device: Device, ranks: int, *, shared_link: bool = False) -> RankRow:
    """All strategies on this many ranks."""
    alone: dict[Strategy, Split] = {"dp": Split(ranks, 1), "fsdp": Split(ranks, 1), "tp": Split(1, ranks)}
    found = {name: strategy_time(work, device, name, split) for name, split in alone.items()}
    found["fsdp+tp"] = best_split(work, device, ranks, shared_link=shared_link)
    return RankRow(ranks=ranks, by_strategy=found)


def limits(work: Work, device: Device, *, shared_link: bool = False) -> tuple[Limit, ...]:
    """The most ranks of each strategy that computation bounds, in whole ranks.

    With a = F W / (S C) for weights of S bytes and b = F W / (2 r A C) for r all-reduces of A bytes, F the FLOPs of a
    forward: N - 1 <= a for DP and FSDP, N - 1 <= b for TP's forward and 2 b for its backward. Of both together either
    condition holds on its own axis; on a shared link (N_FSDP - 1) / a + (N_TP - 1) / b <= 1.
    """
    speed = Fraction(device.bytes_per_s) / Fraction(device.flops_per_s)
    by_weights = work.forward_flops * speed / work.weight_bytes
    by_activations = work.forward_flops * speed / (2 * work.all_reduces * work.activation_bytes)
    data, forward, backward = (math.floor(1 + each) for each in (by_weights, by_activations, 2 * by_activations))
    splits = [_largest_split(by_weights, times * by_activations, shared_link) for times in (1, 2)]
    return (
        Limit(strategy="dp", forward=None, backward=data, split=Split(data, 1)),
        Limit(strategy="fsdp", forward=data, backward=data, split=Split(data, 1)),
        Limit(strategy="tp", forward=forward, backward=backward, split=Split(1, forward)),
        Limit(strategy="fsdp+tp", forward=splits[0].ranks, backward=splits[1].ranks, split=splits[0]),
    )


def _largest_split(by_weights: Fraction, by_activations: Fraction, shared_link: bool) -> Split:
    """The split of the most ranks that computation bounds. On a shared link the product's maximum lies where either
    axis has half, or an end; whole numbers next to it are tried."""
    if not shared_link:
        return Split(math.floor(1 + by_weights), math.floor(1 + by_activations))
    largest = math.floor(1 + by_activations)
    tried = range(1, largest + 1)
    if largest > _TRIED:
        middle = by_activations * (1 + 1 / by_weights + 1 / by_activations) / 2
        near = min(max(math.floor(middle), 1), largest)
        tried = range(max(near - _TRIED // 2, 1), min(near + _TRIED // 2, largest) + 1)
    splits = (Split(math.floor(1 + by_weights * (1 - (tensor - 1) / by_activations)), tensor) for tensor in tried)
    return max(splits, key=lambda split: (split.ranks, split.data))


def plan(
    spec: CellSpec, part: Part, width: int, device: Device, ranks: Sequence[int], *, shared_link: bool = False
) -> Plan:
    """The plan of a model's training step on these numbers of ranks, the batch being the same whole one."""
    work = work_of(spec, part, width)
    return Plan(
        spec=spec,
        part=part,
        work=work,
        device=device,
        shared_link=shared_link,
        limits=limits(work, device, shared_link=shared_link),
        rows=tuple(rank_row(work, device, each, shared_link=shared_link) for each in ranks),
    )


_RINGS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}


def least_s(used: Collective, ranks: int, bytes_per_s: float) -> float:
    """The least time of these collectives in rings: all-reduce 2 (n - 1) / n S / W, all-gather and reduce-scatter half
    of that, broadcast S / W."""
    share = _RINGS[used.op] * (ranks - 1) / ranks if used.op in _RINGS else 1
    return share * used.bytes / bytes_per_s
