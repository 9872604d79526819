"""In which order cells run, and which are not worth trying after one that did not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from cs336_tui.spec import RunSpec

Order = Literal["smallest-first", "as-given"]

_PASS_WORK = {"inference": 1.0, "forward": 1.0, "backward": 3.0, "forward+backward": 3.0, "train-step": 3.0}


def relative_work(spec: RunSpec) -> float:
    """Work of one step in arbitrary units, about proportional to its FLOPs.

    2 FLOPs per matmul weight and token plus the attention scores, times 3 with a backward (Kaplan et al. 2020,
    section 2.1). The `backward` pass counts its untimed forward, since that takes time too.
    """
    matrices = 3 if spec.arch == "swiglu-rope" else 2
    weights = spec.num_layers * (4 * spec.d_model**2 + matrices * spec.d_model * spec.d_ff)
    weights += spec.d_model * spec.vocab_size
    scores = 2 * spec.num_layers * spec.context_length * spec.d_model
    return spec.tokens_per_step * (weights + scores) * _PASS_WORK[spec.pass_]


def in_order(specs: Sequence[RunSpec], order: Order = "smallest-first") -> tuple[RunSpec, ...]:
    """The cells as they will run: those with the least work a step first, so that something useful comes early.

    Cells of equal work (precisions, warm-ups) stay together, and so are compared close in time.
    """
    return tuple(sorted(specs, key=relative_work)) if order == "smallest-first" else tuple(specs)


def in_rounds(specs: Sequence[RunSpec], repeats: int) -> tuple[tuple[RunSpec, int], ...]:
    """Every cell `repeats` times, each with which of its runs it is, from 1.

    Round after round, not cell after cell: a machine that drifts then does so for every cell alike.
    """
    return tuple((spec, repeat) for repeat in range(1, repeats + 1) for spec in specs)


def needs_at_least(spec: RunSpec, other: RunSpec) -> bool:
    """Whether `spec` surely needs as much memory as `other`: the same kind of cell, and nothing of it smaller."""

    def kind(cell: RunSpec) -> tuple[str, ...]:
        return cell.device, cell.pass_, cell.precision, cell.arch

    def extent(cell: RunSpec) -> tuple[int, ...]:
        dims = cell.dims
        return (
            dims.num_layers,
            dims.d_model,
            dims.d_ff,
            dims.num_heads,
            dims.vocab_size,
            cell.context_length,
            cell.batch_size,
        )

    return kind(spec) == kind(other) and all(a >= b for a, b in zip(extent(spec), extent(other), strict=True))


def rough_peak_bytes(spec: RunSpec) -> int:
    """About what the cell's tensors need, good enough to tell cells that surely fit from those worth a prediction.

    Parameters, with gradients and AdamW's two moments where the pass has them, and activations as in Korthikanti et al.
    2022, section 4.1: 34 bytes an element of the residual stream and 5 a score in half precision, in forward alone too.
    """
    matrices = 3 if spec.arch == "swiglu-rope" else 2
    weights = spec.num_layers * (4 * spec.d_model**2 + matrices * spec.d_model * spec.d_ff)
    weights += 2 * spec.d_model * spec.vocab_size
    copies = {"inference": 1, "forward": 1, "backward": 2, "forward+backward": 2, "train-step": 4}[spec.pass_]
    bytes_each = 2 if spec.precision == "bf16" else 4
    stream = 34 * spec.tokens_per_step * spec.d_model
    scores = 5 * spec.num_heads * spec.tokens_per_step * spec.context_length
    layers = 1 if spec.pass_ == "inference" else spec.num_layers
    activations = layers * (stream + scores) * bytes_each // 2
    logits = 2 * spec.tokens_per_step * spec.vocab_size * 4
    return copies * weights * bytes_each + activations + logits
