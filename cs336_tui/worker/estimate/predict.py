"""What a cell will need, before anything runs: parameters, FLOPs, memory by category. No device is needed."""

from __future__ import annotations

from collections.abc import Collection

import torch

from cs336_tui.config.flops import least_bytes, unread_rows
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import REFERENCE
from cs336_tui.events.gpus import HOPPER
from cs336_tui.events.reports import RANGES, Prediction, prediction_note
from cs336_tui.worker.estimate.rehearsal import Rehearsal, cublas_workspaces, rehearse, workspace_bytes
from cs336_tui.worker.workload.passes import PHASES

_SOFTMAX_FLOPS = (5, 4)
"""An element: forward finds the maximum, subtracts it, exponentiates, sums, divides; backward multiplies, sums,
subtracts, multiplies."""


def predict(spec: CellSpec, *, capability: tuple[int, int] | None = None) -> Prediction:
    """Predict one step after warm-up by running it through on tensors without data.

    Memory is what ``torch.cuda.max_memory_allocated`` counts from the start of the step to its end on a CUDA device of
    this compute `capability` (it decides the size of cuBLAS's workspace; None for Hopper), and the bytes of tensors
    elsewhere. FLOPs per phase are those of the pass's own phases; FLOPs per range include the forward that
    `backward` runs untimed. It is the step as it is written: what torch.compile makes of it, and what a CUDA graph
    keeps for itself, is not known before it runs. Raises whatever a user's own code raises on such tensors.
    """
    rehearsed = rehearse(spec, capability=capability or HOPPER)
    timeline = rehearsed.timeline
    peak = timeline.peak_event()
    forward = timeline.phase("forward")
    assert forward is not None
    flops_by_range = rehearsed.flops_by_range
    return Prediction(
        spec=spec,
        num_params=rehearsed.num_params,
        num_params_without_head=rehearsed.num_params_without_head,
        flops=rehearsed.flops,
        flops_by_range={name: flops_by_range[name] for name in RANGES if name in flops_by_range},
        softmax_flops=_softmax_flops(spec, rehearsed.dims_not_taken),
        min_bytes_moved=_min_bytes_moved(spec, rehearsed),
        peak_bytes=timeline.totals[peak],
        peak_phase=timeline.phase_at(peak),
        by_category=timeline.by_category(peak),
        forward_peak_bytes=forward.peak_bytes,
        forward_end_bytes=timeline.totals[forward.end - 1],
        forward_end_by_category=timeline.by_category(forward.end - 1),
        residual_stream_bytes=rehearsed.residual_stream_bytes,
        largest=timeline.largest(peak),
        note=prediction_note(spec),
        workspaces=cublas_workspaces(spec),
        workspace_bytes=workspace_bytes(capability or HOPPER),
        torch=str(torch.__version__),
        recomputed_flops=rehearsed.recomputed_flops,
    )


def _softmax_flops(spec: CellSpec, dims_not_taken: Collection[str]) -> tuple[int, int] | None:
    """By the dimensions; those recomputed for backward count to it. None where a user's model has its own number of
    layers or heads."""
    if not {"num_layers", "num_heads"}.isdisjoint(dims_not_taken):
        return None
    alone = spec.workload == "attention"
    softmaxes = spec.batch_size * (1 if alone else spec.num_heads * spec.num_layers)
    elements = softmaxes * spec.context_length**2
    forward, backward = _SOFTMAX_FLOPS
    if spec.checkpoint:
        backward += forward
    return forward * elements, backward * elements if _has_backward(spec) else 0


def _min_bytes_moved(spec: CellSpec, rehearsed: Rehearsal) -> int:
    """Everything that outlives a step, once each way.

    Parameters are read, of the reference's embedding no more rows than there are tokens; a backward writes as many
    gradients as there are parameters; an optimizer reads these, reads and writes its state and writes the parameters.
    Activations, which a machine might keep in its caches, are left out.
    """
    if spec.workload == "attention":
        return least_bytes(spec)
    moved = rehearsed.parameter_bytes
    if spec.model == REFERENCE:
        moved -= unread_rows(spec) * spec.d_model * (2 if spec.precision == "bf16" else 4)
    if _has_backward(spec):
        moved += rehearsed.trained_bytes
    if spec.pass_ == "train-step":
        moved += 2 * rehearsed.trained_bytes + 2 * rehearsed.optimizer_state_bytes
    return moved


def _has_backward(spec: CellSpec) -> bool:
    return "backward" in PHASES[spec.pass_]
