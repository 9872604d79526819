"""Computation and communication of a step on N devices, from dimensions, FLOP/s and bandwidth.

The setting is that of the 2026 handout, section 8: N devices of C FLOP/s, each with W bytes/s of outgoing bandwidth,
ring collectives, and communication that overlaps computation, so that it bounds where it takes longer. In the same way,
without the factor (N - 1) / N: J. Austin et al., "How to Scale Your Model", part 5,
https://jax-ml.github.io/scaling-book/training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
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
_ON_WEIGHTS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("dp", "backward"): ("all-reduce", "all-reduce"),  # two rings
    ("fsdp", "forward"): ("all-gather",),
    ("fsdp", "backward"): ("all-gather", "reduce-scatter"),
}
"""Rings over all weights or their gradients, by strategy and pass."""
_TRIED = 20_000


def _rings(strategy: Strategy, name: str) -> tuple[str, ...]:
    return _ON_WEIGHTS.get((strategy.partition("+")[0], name), ())


class Work(NamedTuple):
    """The work that N devices share: that of a whole batch on one device."""

    forward_flops: int
    weight_bytes: int
    activation_bytes: int
    """Of one tensor (B, D) between layers."""
    all_reduces: int
    """Of such tensors under TP, in a forward and as many in a backward."""

    @property
    def backward_flops(self) -> int:
        return _FORWARDS["backward"] * self.forward_flops


class Device(NamedTuple):
    """A device's speed in FLOP/s and its outgoing bandwidth in bytes/s, of single operations where it was measured."""

    flops_per_s: float
    bytes_per_s: float
    by_operation: Mapping[str, float] = MappingProxyType({})
    """busbw of operations such as ``all-gather``, in place of `bytes_per_s`."""
    shared_link: bool = False
    """True if communication of weights and of activations adds up; else both go on at once, each at the whole
    bandwidth."""

    def bandwidth(self, operation: str) -> float:
        return self.by_operation.get(operation, self.bytes_per_s)


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
    split: Split
    """The best split of the most ranks on which neither pass is bound by communication."""
    real: float
    """That number of ranks where ranks need not be whole."""

    @property
    def most(self) -> int:
        """The largest N: neither pass is bound by communication."""
        return self.split.ranks


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A model on N devices: limits of each strategy, and times by number of ranks."""

    spec: CellSpec
    part: Part
    work: Work
    device: Device
    limits: tuple[Limit, ...]
    rows: tuple[RankRow, ...]
    sources: tuple[str, ...] = ()
    """The sources of FLOP/s and bandwidth, in words."""


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


def strategy_time(work: Work, device: Device, strategy: Strategy, split: Split) -> StrategyTime:
    """Forward and backward of the strategy with this split."""
    found = {name: _pass_time(work, device, strategy, split, name) for name in PASSES}
    return StrategyTime(strategy=strategy, split=split, **found)


def _pass_time(work: Work, device: Device, strategy: Strategy, split: Split, name: str) -> PassTime:
    """A ring all-gather or reduce-scatter of S bytes over n ranks takes (n - 1) / n S / W, an all-reduce twice that.

    FSDP all-gathers the weights in either pass and reduce-scatters their gradients in the backward; DP all-reduces the
    gradients, which takes as long as those two. A rank of TP has 1 / tensor of each weight, one of FSDP 1 / data of
    the batch.
    """
    data, tensor = split
    ring_s = [(data - 1) / data * work.weight_bytes / tensor / device.bandwidth(op) for op in _rings(strategy, name)]
    weights_s = sum(ring_s)
    reduced = work.all_reduces * work.activation_bytes / data
    activations_s = 2 * (tensor - 1) / tensor * reduced / device.bandwidth("all-reduce")
    both = (weights_s, activations_s)
    return PassTime(
        compute_s=_FORWARDS[name] * work.forward_flops / split.ranks / device.flops_per_s,
        weights_s=weights_s,
        activations_s=activations_s,
        communication_s=sum(both) if device.shared_link else max(both),
    )


def best_split(work: Work, device: Device, ranks: int) -> StrategyTime:
    """FSDP+TP on this many ranks by the split with the shortest step, of equal ones that which communicates least."""
    splits = [Split(ranks // tensor, tensor) for tensor in range(1, ranks + 1) if ranks % tensor == 0]
    found = [strategy_time(work, device, "fsdp+tp", split) for split in splits]
    return min(found, key=lambda each: (each.time_s, each.communication_s))


def rank_row(work: Work, device: Device, ranks: int) -> RankRow:
    """All strategies on this many ranks."""
    alone: dict[Strategy, Split] = {"dp": Split(ranks, 1), "fsdp": Split(ranks, 1), "tp": Split(1, ranks)}
    found = {name: strategy_time(work, device, name, split) for name, split in alone.items()}
    found["fsdp+tp"] = best_split(work, device, ranks)
    return RankRow(ranks=ranks, by_strategy=found)


class _Room(NamedTuple):
    """The most that either axis may have less 1, if the other has 1 rank."""

    data: Fraction
    tensor: Fraction


def limits(work: Work, device: Device) -> tuple[Limit, ...]:
    """The most ranks of each strategy that computation bounds, in whole ranks.

    With a = F W / (S C) for weights of S bytes and b = F W / (2 r A C) for r all-reduces of A bytes, F the FLOPs of a
    forward: N - 1 <= a for DP and FSDP, N - 1 <= b for TP's forward and 2 b for its backward. Of both together either
    condition holds on its own axis; on a shared link (N_FSDP - 1) / a + (N_TP - 1) / b <= 1. Where each operation has
    its own W, a pass of FSDP has that of its rings: the harmonic mean in the backward.
    """
    reduced = _most_data("dp", "backward", work, device)
    rooms = [_Room(_most_data("fsdp", name, work, device), _most_tensor(name, work, device)) for name in PASSES]
    data, tensor = min(room.data for room in rooms), min(room.tensor for room in rooms)
    both, real = _largest_split(rooms, device.shared_link), _largest_real(rooms, device.shared_link)
    found: dict[Strategy, tuple[list[int | None], Split, Fraction]] = {
        "dp": ([None, _whole(reduced)], Split(_whole(reduced), 1), 1 + reduced),
        "fsdp": ([_whole(room.data) for room in rooms], Split(_whole(data), 1), 1 + data),
        "tp": ([_whole(room.tensor) for room in rooms], Split(1, _whole(tensor)), 1 + tensor),
        "fsdp+tp": ([_largest_split([each], device.shared_link).ranks for each in rooms], both, real),
    }
    return tuple(
        Limit(strategy=strategy, forward=ranks[0], backward=ranks[1], split=split, real=float(real))
        for strategy, (ranks, split, real) in found.items()
    )


def _whole(room: Fraction) -> int:
    return math.floor(1 + room)


def _most_data(strategy: Strategy, name: str, work: Work, device: Device) -> Fraction:
    """The most of N - 1 on the axis of the batch."""
    slowness = sum(1 / Fraction(device.bandwidth(op)) for op in _rings(strategy, name))
    return _FORWARDS[name] * work.forward_flops / (work.weight_bytes * Fraction(device.flops_per_s) * slowness)


def _most_tensor(name: str, work: Work, device: Device) -> Fraction:
    """The most of N - 1 on the axis of products."""
    speed = Fraction(device.bandwidth("all-reduce")) / Fraction(device.flops_per_s)
    return _FORWARDS[name] * work.forward_flops * speed / (2 * work.all_reduces * work.activation_bytes)


def _largest_split(rooms: Sequence[_Room], shared_link: bool) -> Split:
    """The split of the most ranks that computation bounds in each of the passes. On a shared link the product's maximum
    lies where either axis has half, or an end; whole numbers next to it are tried."""
    largest = min(_whole(room.tensor) for room in rooms)
    if not shared_link:
        return Split(min(_whole(room.data) for room in rooms), largest)
    tried = range(1, largest + 1)
    if largest > _TRIED:
        near = [min(max(math.floor(_middle(room)), 1), largest) for room in rooms]
        tried = range(max(min(near) - _TRIED // 2, 1), min(max(near) + _TRIED // 2, largest) + 1)
    splits = (
        Split(min(_whole(room.data * (1 - (tensor - 1) / room.tensor)) for room in rooms), tensor) for tensor in tried
    )
    return max(splits, key=lambda split: (split.ranks, split.data))


def _middle(room: _Room) -> Fraction:
    """The ranks that share each product where N_FSDP N_TP is greatest on a shared link, in real numbers."""
    return room.tensor * (1 + 1 / room.data + 1 / room.tensor) / 2


def _largest_real(rooms: Sequence[_Room], shared_link: bool) -> Fraction:
    """N_FSDP N_TP in real numbers. On a shared link that of the pass with less: a b (1 + 1/a + 1/b)^2 / 4, or one axis
    alone where the other would have less than 1 rank."""
    if not shared_link:
        return (1 + min(room.data for room in rooms)) * (1 + min(room.tensor for room in rooms))
    found = []
    for room in rooms:
        tensor = min(max(_middle(room), Fraction(1)), 1 + room.tensor)
        found.append((1 + room.data * (1 - (tensor - 1) / room.tensor)) * tensor)
    return min(found)


def plan(
    spec: CellSpec, part: Part, width: int, device: Device, ranks: Sequence[int], sources: Sequence[str] = ()
) -> Plan:
    """The plan of a model's training step on these numbers of ranks, the batch being the same whole one."""
    work = work_of(spec, part, width)
    return Plan(
        spec=spec,
        part=part,
        work=work,
        device=device,
        limits=limits(work, device),
        rows=tuple(rank_row(work, device, each) for each in ranks),
        sources=tuple(sources),
    )


class Mesh(NamedTuple):
    """Ranks of FSDP and of TP, and the links of a device along either axis."""

    data: int
    tensor: int
    data_links: int
    tensor_links: int


class Account(NamedTuple):
    """A quantity of the 2025 handout's ``communication_accounting``: the problem's part, and how it comes about."""

    part: str
    quantity: str
    derivation: str
    value: float
    unit: str
    """``bytes``, ``tokens``, ``devices``, ``FLOPs`` or ``numbers``."""


def accounts(spec: CellSpec, device: Device, mesh: Mesh, memories: Sequence[int]) -> Iterator[Account]:
    """Memory and forward's communication of blocks of two linear layers (D x F, F x D) alone, without attention,
    embeddings and activation functions, for B tokens a device in (a) and (b).

    Weights, gradients and AdamW's two moments are float32, activations and communication bfloat16; a linear layer saves
    its input. In (b) all but half of the activations is sharded over N devices. (c) has communication along the axes
    overlap, as "How to Scale Your Model" has it, and then add up; W counts once for each link.
    """
    width, wide, blocks, tokens = spec.d_model, spec.d_ff, spec.num_layers, spec.tokens_per_step
    numbers = 2 * blocks * width * wide
    saved = 2 * blocks * (width + wide) * tokens
    of_blocks = f"{blocks} × {width} × {wide}"
    yield Account("a", "numbers P", f"2 L D F = 2 × {of_blocks}", numbers, "numbers")
    for quantity, each in (("master weights", 4), ("accumulated gradients", 4), ("optimizer state", 8)):
        yield Account("a", quantity, f"{each} P", each * numbers, "bytes")
    yield Account("a", "all three", "4 P + 4 P + 8 P = 16 P", 16 * numbers, "bytes")
    derivation = f"A = 2 L (D + F) B = 2 × {blocks} × ({width} + {wide}) × {tokens}"
    yield Account("a", "saved for backward", derivation, saved, "bytes")
    for memory in memories:
        of = f"{memory / 1e9:g} GB"
        yield Account(
            "a", f"devices of {of}", f"(16 P + A) / {of}", math.ceil((16 * numbers + saved) / memory), "devices"
        )
    for memory in memories:
        of, left = f"{memory / 1e9:g} GB", 2 * memory - saved
        least = math.floor((32 * numbers + saved) / left) + 1 if left > 0 else math.inf
        derivation = f"(16 P + A / 2) / N + A / 2 < {of}, N > (16 P + A / 2) / ({of} - A / 2)"
        yield Account("b", f"N_FSDP for less than {of}", derivation, least, "devices")
    speed = device.flops_per_s / device.bytes_per_s
    data = mesh.data * speed / mesh.data_links
    share = mesh.tensor * speed / (mesh.tensor_links * wide)
    ranks = f"X = {mesh.data}, Y = {mesh.tensor}, M_X = {mesh.data_links}, M_Y = {mesh.tensor_links}"
    yield Account("c", "forward's FLOPs of a block", "4 B D F", 4 * tokens * width * wide, "FLOPs")
    yield Account("c", "backward's FLOPs of a block", "8 B D F", 8 * tokens * width * wide, "FLOPs")
    derivation = f"4 D F / (Y W M_X) <= 4 B D F / (X Y C): B >= X C / (W M_X); {ranks}"
    yield Account("c", "whole batch, FSDP", derivation, data, "tokens")
    derivation = "4 B D / (X W M_Y) <= 4 B D F / (X Y C): F >= Y C / (W M_Y), whatever B is"
    yield Account("c", "F at least, TP", derivation, share * wide, "numbers")
    both = data if share <= 1 else math.inf
    yield Account("c", "whole batch, axes overlap", "the larger of the two; none if TP's does not hold", both, "tokens")
    yield Account("c", "batch a device, axes overlap", "B / (X Y)", both / mesh.data / mesh.tensor, "tokens")
    added = data / (1 - share) if share < 1 else math.inf
    derivation = "B >= X C / (W M_X) / (1 - Y C / (W M_Y F))"
    yield Account("c", "whole batch, axes add up", derivation, added, "tokens")
    yield Account("c", "batch a device, axes add up", "B / (X Y)", added / mesh.data / mesh.tensor, "tokens")


_RINGS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}


def least_s(used: Collective, ranks: int, bytes_per_s: float) -> float:
    """The least time of these collectives in rings: all-reduce 2 (n - 1) / n S / W, all-gather and reduce-scatter half
    of that, broadcast S / W."""
    share = _RINGS[used.op] * (ranks - 1) / ranks if used.op in _RINGS else 1
    return share * used.bytes / bytes_per_s
