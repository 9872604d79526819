"""The order in which cells run, alone, in turns and in the steps of a race; which are not worth trying after one that
did not fit, and which cannot take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Literal

import msgspec

from cs336_tui.config.axis import Kind, SpecError
from cs336_tui.config.counts import steps_words
from cs336_tui.config.flops import FUSED, inputs_at_once, parameters, recomputed_blocks
from cs336_tui.config.spec import AXES, CellSpec
from cs336_tui.config.sweep import LaneCount
from cs336_tui.config.values import WITHOUT_BACKWARD, message_bytes

Order = Literal["smallest-first", "longest-first", "as-given"]


def usual_order(lanes: LaneCount) -> Order:
    """The smallest first, so that something useful comes early; in lanes the longest, so that all end together."""
    return "smallest-first" if lanes == 1 else "longest-first"


def relative_work(spec: CellSpec) -> float:
    """Work of one step in arbitrary units, about proportional to its FLOPs.

    2 FLOPs per matmul weight and token plus the attention scores, times 3 with a backward (Kaplan et al. 2020,
    section 2.1), and the forwards more of blocks that are computed again. The `backward` pass counts its untimed
    forward, since that takes time too.
    """
    passes = 1.0 if spec.pass_ in WITHOUT_BACKWARD else 3.0
    if spec.workload == "attention":
        return 2 * spec.tokens_per_step * spec.context_length * spec.d_model * passes
    if spec.workload == "norm":
        return spec.tokens_per_step * spec.d_model * passes
    if spec.is_collective:
        return message_bytes((spec.d_model, spec.d_ff), "fp32", 1)  # as asked for, so that ranks keep their order
    if passes > 1:
        passes += recomputed_blocks(spec) / spec.num_layers
    scores = 2 * spec.num_layers * spec.context_length * spec.d_model
    return spec.tokens_per_step * (parameters(spec).factors + scores) * passes


def _kind_of(kind: Kind, *, of_variants: bool = False) -> Callable[[CellSpec], tuple[object, ...]]:
    """A key that is equal for cells of one kind; a choice without effect in a cell counts as its default."""
    axes = [axis for axis in AXES.values() if kind in axis.kinds and (axis.group == "variants" or not of_variants)]
    values_of, defaults = attrgetter(*(axis.field for axis in axes)), tuple(axis.default for axis in axes)

    def key(spec: CellSpec) -> tuple[object, ...]:
        values = zip(axes, values_of(spec), defaults, strict=True)
        return tuple(value if value == default or axis.counts_in(spec) else default for axis, value, default in values)

    return key


variant_kind = _kind_of("time", of_variants=True)
"""Key of the variants that decide a step's time, beside work, device, threads, precision and pass."""
time_kind = _kind_of("time")
"""Cells with equal keys estimate each other's step time."""
pace = _kind_of("pace")
"""Cells with equal keys do so until one with an equal `time_kind` is timed."""
_memory_kind = _kind_of("memory")


_UNPREDICTED = [axis for axis in AXES.values() if "memory" in axis.kinds and "prediction" not in axis.kinds]


def is_as_predicted(spec: CellSpec) -> bool:
    """True if predictions of memory cover all choices of the cell."""
    return all(getattr(spec, axis.field) == axis.default for axis in _UNPREDICTED)


def in_order(specs: Sequence[CellSpec], order: Order = "smallest-first") -> tuple[CellSpec, ...]:
    """The cells as they will run: those with the least work a step first; or those of the most ranks, of these the ones
    with the most work in all steps.

    Cells of equal work (precisions, warm-ups) stay together, and so are compared close in time.
    """
    if order == "longest-first":
        return tuple(sorted(specs, key=lambda spec: (-spec.ranks, -relative_work(spec) * spec.total_steps)))
    return tuple(sorted(specs, key=relative_work)) if order == "smallest-first" else tuple(specs)


def in_rounds(specs: Sequence[CellSpec], repeats: int) -> tuple[tuple[CellSpec, int], ...]:
    """Every cell `repeats` times, each with which of its runs it is, from 1.

    Round after round, not cell after cell: a machine that drifts then does so for every cell alike.
    """
    return tuple((spec, repeat) for repeat in range(1, repeats + 1) for spec in specs)


def needs_at_least(spec: CellSpec, other: CellSpec) -> bool:
    """True if `spec` surely needs as much memory as `other`: it is of the same kind and no dimension is smaller."""

    def extent(cell: CellSpec) -> tuple[int, ...]:
        if cell.is_collective:
            return (cell.message_bytes,)
        return (*msgspec.structs.astuple(cell.dims), cell.context_length, cell.batch_size)

    return _memory_kind(spec) == _memory_kind(other) and all(
        a >= b for a, b in zip(extent(spec), extent(other), strict=True)
    )


def brings_as(spec: CellSpec, code: str, other: CellSpec) -> bool:
    """True if `spec` uses this code of a user's own as `other` does: from the same folders, a model with the same
    arguments."""
    used = {*spec.own_code} - {spec.model, *([] if spec.pass_ == "train-step" else [spec.optimizer])}
    as_model = spec.model == code and spec.model_args == other.model_args
    return (code in used or as_model) and spec.model_path == other.model_path


def rough_peak_bytes(spec: CellSpec) -> int:
    """About what the cell's tensors need, good enough to tell cells that surely fit from those worth a prediction.

    Parameters, with gradients and AdamW's two moments where the pass has them, and activations as in Korthikanti et al.
    2022, section 4.1: 34 bytes an element of the residual stream and 5 a score in half precision, in forward alone too.
    With activation checkpointing, what enters each group of blocks and the activations of one. Fused attention may need
    less. Attention alone: queries, keys, values and output, with a gradient of each, and scores. A norm alone: rows and
    output, with a gradient of each, and three tensors between them. A collective: what goes in
    and comes out, of all ranks.
    """
    if spec.is_collective:
        wholes = {"all-reduce": 1, "broadcast": 1, "all-to-all": 2}.get(spec.collective, 1 + 1 / spec.ranks)
        on_device = 1 if spec.device.startswith("cuda") else spec.ranks
        return int(wholes * spec.message_bytes * on_device)
    if spec.workload == "norm":
        copies = 1 if spec.pass_ in WITHOUT_BACKWARD else 2
        return (2 * copies + 3) * spec.tokens_per_step * spec.d_model * (2 if spec.precision == "bf16" else 4)
    if spec.workload == "attention":
        elements = 4 * (1 if spec.pass_ in WITHOUT_BACKWARD else 2) * spec.tokens_per_step * spec.d_model
        if spec.attention not in FUSED:  # scores, three at a time, forward and backward
            elements += 3 * spec.num_heads * spec.tokens_per_step * spec.context_length
        return elements * (2 if spec.precision == "bf16" else 4)
    weights = parameters(spec).factors + spec.d_model * spec.vocab_size
    copies = 1 if spec.pass_ in WITHOUT_BACKWARD else 4 if spec.pass_ == "train-step" else 2
    bytes_each = 2 if spec.precision == "bf16" else 4
    stream = 34 * spec.tokens_per_step * spec.d_model
    scores = 5 * spec.num_heads * spec.tokens_per_step * spec.context_length
    layers, entering = spec.num_layers, 0
    if spec.pass_ == "inference":
        layers = 1
    elif spec.checkpoint:
        layers = spec.checkpoint
        entering = inputs_at_once(spec) * spec.tokens_per_step * spec.d_model * bytes_each
    activations = layers * (stream + scores) * bytes_each // 2 + entering
    logits = 2 * spec.tokens_per_step * spec.vocab_size * 4
    return copies * weights * bytes_each + activations + logits


class Visits(msgspec.Struct, frozen=True):
    """A round: candidates by number, in the order in which they are visited."""

    candidates: tuple[int, ...]
    round: int


class Checks(msgspec.Struct, frozen=True):
    """Reports of the logits and gradients of these specs, which are not there yet."""

    specs: tuple[CellSpec, ...]


class Turns(msgspec.Struct, frozen=True):
    """A round of two candidates in turns, in one process."""

    a: int
    b: int


class Finish(msgspec.Struct, frozen=True):
    """Nothing is left to do, for this reason."""

    reason: str


Step = Visits | Checks | Turns | Finish
"""A step of a race."""


def check_sides(a: CellSpec, b: CellSpec) -> None:
    """Raises `SpecError` for two cells that cannot take turns in one process, step by step."""
    for name, spec in (("A", a), ("B", b)):
        if spec.sync != "each-step":
            raise SpecError("sync", f"{spec.sync} of {name}", "turns step by step need each-step")
        if spec.timer != "step":
            raise SpecError("timer", f"{spec.timer} of {name}", "two cells in turns need timer step")
        if spec.warmup_auto or spec.steps_auto is not None:
            field = "warmup_steps" if spec.warmup_auto else "measure_steps"
            raise SpecError(field, f"auto of {name}", "two cells in turns need a fixed number, or a time")
    for field in ("ranks", "backend", "device") if max(a.ranks, b.ranks) > 1 else ():
        if (given := [getattr(spec, field) for spec in (a, b)])[0] != given[1]:
            raise SpecError(field, f"{given[0]} and {given[1]}", "A and B need the same, as ranks are of one group")
    if a.threads != b.threads:
        given = [spec.threads or "torch's own" for spec in (a, b)]
        why = "A and B need the same, as setting them between steps changes how work is shared out"
        raise SpecError("threads", f"{given[0]} and {given[1]}", why)
    asked = [steps_words(spec.measure_steps, spec.steps_auto, spec.steps_for) for spec in (a, b)]
    if asked[0] != asked[1]:
        why = "A and B need the same, as steps are timed in pairs"
        raise SpecError("measure_steps", " and ".join(asked), why)


def rounds_of(a: CellSpec, b: CellSpec, rounds: int, first: int = 1) -> tuple[tuple[CellSpec, int], ...]:
    """The cells A, B, A, B and so on, each with the number of the run of its spec, from `first`; A and B may be one
    spec."""
    if a == b:
        return tuple((a, repeat) for repeat in range(first, first + 2 * rounds))
    return tuple((spec, number) for number in range(first, first + rounds) for spec in (a, b))
