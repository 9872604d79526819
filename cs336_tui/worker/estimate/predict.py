"""Predicts a cell's parameters, FLOPs and memory by running one step shape-only (meta tensors). No device is needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch

from cs336_tui.config.flops import least_bytes, moved_bytes, recomputed_blocks
from cs336_tui.config.processes import segments_expand
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import WITH_BUCKETS, WITHOUT_BACKWARD, prepared_phases, sharing_of
from cs336_tui.config.variants import RANGES, is_imported
from cs336_tui.events.gpus import HOPPER, cublas_workspace_bytes
from cs336_tui.events.prediction import (
    LT_WORKSPACE_OP,
    WORKSPACE_OP,
    Allocation,
    PhaseMemory,
    Prediction,
    Site,
    TensorForm,
    TrackedTimeline,
    prediction_note,
)
from cs336_tui.worker.estimate.caching_allocator import as_cached, reserved
from cs336_tui.worker.estimate.meta_device import (
    Autocast,
    MetaAttention,
    MetaDropout,
    MetaKernels,
    modes_kept_for_recomputation,
)
from cs336_tui.worker.estimate.scratch import cuda_scratch, lt_workspaces, threads_that_multiply
from cs336_tui.worker.estimate.tracker import MemoryTracker
from cs336_tui.worker.workload.building import Workload, build
from cs336_tui.worker.workload.model_parts import blocks_of
from cs336_tui.worker.workload.passes import logits_of
from cs336_tui.worker.workload.precision import RECIPES
from cs336_tui.worker.workload.ranges import name_parts

_SOFTMAX_FLOPS = (5, 4)
"""An element: forward finds the maximum, subtracts it, exponentiates, sums, divides; backward multiplies, sums,
subtracts, multiplies."""


def predict(spec: CellSpec, *, capability: tuple[int, int] | None = None) -> Prediction:
    """Predict one step after warm-up by running it shape-only (meta tensors).

    Memory is, on a CUDA device of this compute `capability` (None for Hopper), ``torch.cuda.max_memory_allocated`` over
    the step, elsewhere the bytes of tensors. FLOPs per phase are those of the pass's own phases; FLOPs per range
    include the untimed forward of `backward`. The step is as written: torch.compile and a CUDA graph have unknown
    effects. Of several ranks it is that of one, with what they communicate.
    """
    if spec.ranks == 1:
        return rehearse(spec, capability=capability).prediction
    from cs336_tui.worker.estimate.several import Sharers, fake_ranks, of_several

    shared: list[Sharers] = []
    name = sharing_of(spec.parallel).name
    watch = (lambda workload: shared.append(Sharers(workload, spec))) if name in WITH_BUCKETS else None
    with fake_ranks(spec.ranks) if is_imported(spec.optimizer) else nullcontext():  # it may ask for its rank
        found = rehearse(spec, capability=capability, watch=watch).prediction
    return of_several(found, shared[0] if shared else None, capability or HOPPER)


def _softmax_flops(spec: CellSpec, dims_not_taken: Collection[str]) -> tuple[int, int] | None:
    """FLOPs of softmax in forward and backward (and recomputation); None if a model has its own layers or heads."""
    if spec.workload == "norm":
        return 0, 0
    if not {"num_layers", "num_heads"}.isdisjoint(dims_not_taken):
        return None
    alone = spec.workload == "attention"
    softmaxes = spec.rank_batch_size * spec.num_heads * (1 if alone else spec.num_layers)
    elements = softmaxes * spec.context_length**2
    forward, backward = (each * elements for each in _SOFTMAX_FLOPS)
    again = 0 if alone else forward * recomputed_blocks(spec) // spec.num_layers
    return forward, 0 if spec.pass_ in WITHOUT_BACKWARD else backward + again


def _min_bytes_moved(spec: CellSpec, workload: Workload, state_bytes: int) -> int:
    """As `least_bytes`, of the model as it was built and the state that its optimizer made."""
    if spec.is_alone:
        return least_bytes(spec)
    sizes = [(each.nbytes, each.requires_grad) for each in workload.model.parameters()]
    return moved_bytes(spec, sum(size for size, _ in sizes), sum(size for size, trains in sizes if trains), state_bytes)


META = torch.device("meta")


class Rehearsal(NamedTuple):
    """One step after warm-up shape-only (meta tensors), preparation included. FLOPs are of matrix products."""

    timeline: TrackedTimeline  # In bytes that the device's allocator counts
    prediction: Prediction


@torch.inference_mode(False)
@torch.enable_grad()  # autograd must record, whatever the caller has switched off
def rehearse(
    spec: CellSpec, *, capability: tuple[int, int] | None = None, watch: Callable[[Workload], object] | None = None
) -> Rehearsal:
    """Run one steady step of a cell on the meta device. A CUDA device's has AdamW over lists of tensors, CUDA's
    autocast, its caching allocator and a cuBLAS workspace (by the GPU's `capability`) for each thread that multiplies.
    Scratch space of other kernels is not included. `watch` gets the workload before its first step. Raises what a
    user's code raises on such tensors."""
    capability = capability or HOPPER
    device_type, dtype = spec.device.partition(":")[0], RECIPES[spec.precision].autocast
    autocast = nullcontext if dtype is None else partial(Autocast, device_type, dtype)
    workload = build(spec, META, as_written=True, autocast=autocast)
    if watch is not None:
        watch(workload)
    if workload.training is not None:  # make the optimizer's state; the gradients stay, as those of the step before
        for parameter in workload.model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        with MetaKernels() as kernels:
            kernels.answers = True
            workload.training.optimizer.step()
    counts_host_tensors = device_type == "cpu"
    scratch = {"scratch": cuda_scratch} if device_type == "cuda" else {}
    tracker = MemoryTracker(device_type=None if counts_host_tensors else META.type, **scratch)
    name_parts(workload.model, tracker.range, spec.annotations)
    streams = [0]  # Bytes of the last block's output
    if blocks := blocks_of(workload.model):
        blocks[-1].register_forward_hook(lambda _module, _inputs, output: streams.append(logits_of(output).nbytes))
    # Step counts are on the host, so they count on a CPU only.
    state_bytes = sum(each.nbytes for each in workload.optimizer_state() if each.is_meta or counts_host_tensors)
    tracker.claim_cell(workload)
    step, attention = workload.step(spec), MetaAttention(device_type, capability)
    dropout = MetaDropout() if device_type == "cuda" else nullcontext()
    with attention, dropout, modes_kept_for_recomputation(), MetaKernels() as kernels, tracker:
        for phase in prepared_phases(spec.pass_, spec.accumulate):
            tracker.phase(phase)
            kernels.answers = phase == "optimizer"
            # A user's model on a CPU may create tensors without naming a device.
            makes_here = is_imported(spec.model) and counts_host_tensors and phase in ("forward", "loss")
            with META if makes_here else nullcontext():
                step.run(phase)
            tracker.claim("gradients", workload.gradients())
    timeline = tracker.timeline()
    workspace, workspaces, taken = workspace_bytes(capability), 0, None
    if device_type == "cuda":
        threads = threads_that_multiply(timeline.allocations)
        workspaces = len(threads)
        own = [(WORKSPACE_OP, workspace, backward) for backward in threads]
        own += [(LT_WORKSPACE_OP, size, backward) for backward, size in lt_workspaces(timeline.allocations).items()]
        held = (Allocation(size, Site(op, backward=side), form=TensorForm((size,), "uint8")) for op, size, side in own)
        requested = TrackedTimeline((*held, *timeline.allocations), timeline.events, timeline.begins)
        expandable = segments_expand(os.environ)
        timeline, taken = as_cached(requested, expandable=expandable), reserved(requested, expandable=expandable)
    peak, forward = timeline.peak_event(), timeline.phase("forward")
    assert forward is not None
    activation_peak, activation_peak_phase = timeline.activation_peak()
    prediction = Prediction(
        spec=spec,
        num_params=workload.facts.num_params,
        num_params_without_head=workload.facts.num_params_without_head,
        flops={phase: tracker.flops[phase] for phase in step.phases},
        flops_by_range={name: tracker.flops_by_range[name] for name in RANGES if name in tracker.flops_by_range},
        softmax_flops=_softmax_flops(spec, workload.facts.dims_not_taken),
        min_bytes_moved=_min_bytes_moved(spec, workload, state_bytes),
        peak_bytes=timeline.totals[peak],
        peak_phase=timeline.phase_at(peak),
        by_category=timeline.by_category(peak),
        forward_peak_bytes=forward.peak_bytes,
        forward_end_bytes=timeline.totals[forward.end - 1],
        forward_end_by_category=timeline.by_category(forward.end - 1),
        residual_stream_bytes=streams[-1],
        largest=timeline.largest(peak),
        note=prediction_note(spec),
        workspaces=workspaces,
        workspace_bytes=workspace,
        torch=str(torch.__version__),
        recomputed_flops=tracker.recomputed_flops,
        activation_peak_bytes=activation_peak,
        activation_peak_phase=activation_peak_phase,
        phases={
            span.phase: PhaseMemory(by_category=timeline.by_category(span.end - 1), peak_bytes=span.peak_bytes)
            for name in prepared_phases(spec.pass_, spec.accumulate)
            if (span := timeline.phase(name))
        },
        reserved_bytes=taken.least if taken else None,
        unfit=taken.unfit if taken else (),
    )
    return Rehearsal(timeline, prediction)


def workspace_bytes(capability: tuple[int, int]) -> int:
    """Bytes of one workspace of cuBLAS: from torch (2.13 on) if it uses such a GPU now, else by its version."""
    ask: Callable[[], int] | None = getattr(torch._C, "_cuda_getCublasWorkspaceSize", None)
    if ask and torch.cuda.is_initialized() and torch.cuda.get_device_capability() == capability:
        return ask()
    return cublas_workspace_bytes(capability, str(torch.__version__))
