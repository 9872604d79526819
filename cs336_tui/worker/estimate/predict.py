"""Predicts a cell's parameters, FLOPs and memory by running one step on tensors without data. No device is needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from cs336_tui.config.flops import least_bytes, unread_rows
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import REFERENCE, is_imported
from cs336_tui.events.gpus import HOPPER, cublas_workspace_bytes
from cs336_tui.events.reports import RANGES, WORKSPACE_OP, Prediction, prediction_note
from cs336_tui.worker.estimate.caching_allocator import as_cached
from cs336_tui.worker.estimate.fused_attention import MetaAttention
from cs336_tui.worker.estimate.meta_device import Autocast, MetaKernels, modes_kept_for_recomputation
from cs336_tui.worker.estimate.timeline import TrackedTimeline
from cs336_tui.worker.estimate.tracker import MemoryTracker
from cs336_tui.worker.workload.building import build
from cs336_tui.worker.workload.model_parts import blocks_of
from cs336_tui.worker.workload.passes import PHASES, logits_of
from cs336_tui.worker.workload.precision import RECIPES
from cs336_tui.worker.workload.ranges import name_parts

_SOFTMAX_FLOPS = (5, 4)
"""An element: forward finds the maximum, subtracts it, exponentiates, sums, divides; backward multiplies, sums,
subtracts, multiplies."""


def predict(spec: CellSpec, *, capability: tuple[int, int] | None = None) -> Prediction:
    """Predict one step after warm-up by running it on tensors without data.

    Memory is, on a CUDA device of this compute `capability` (for cuBLAS's workspace; None for Hopper), the value of
    ``torch.cuda.max_memory_allocated`` over the step, elsewhere the bytes of tensors. FLOPs per phase are those of the
    pass's own phases; FLOPs per range include the untimed forward of `backward`. The step is as written: effects of
    torch.compile and memory of a CUDA graph are unknown before it runs. Raises what a user's code raises on such
    tensors.
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
    """FLOPs of softmax in forward and backward, recomputation included in backward; None if a user's model has its own
    number of layers or heads."""
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
    """The least bytes moved: everything that outlives a step, once each way.

    Forward reads the parameters, of the reference's embedding at most one row a token; backward writes the gradients;
    the optimizer reads them, reads and writes its state and writes the parameters. Activations, which might stay in
    caches, are left out.
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


META = torch.device("meta")


class Rehearsal(NamedTuple):
    """One step after warm-up on tensors without data, preparation included. FLOPs are of matrix products."""

    timeline: TrackedTimeline  # In bytes that the device's allocator counts
    flops: dict[str, int]
    flops_by_range: dict[str, tuple[int, int]]
    recomputed_flops: int
    residual_stream_bytes: int
    num_params: int
    num_params_without_head: int
    parameter_bytes: int
    optimizer_state_bytes: int
    trained_bytes: int  # Bytes of parameters with a gradient
    dims_not_taken: tuple[str, ...]  # Dimensions that a user's own model did not ask for


def rehearse(spec: CellSpec, *, capability: tuple[int, int] = HOPPER) -> Rehearsal:
    """Run one steady step of a cell on the meta device. `capability` is the GPU's, for its cuBLAS workspace.

    A CUDA device's step has AdamW over lists of tensors, CUDA's autocast, its caching allocator with default settings
    and a cuBLAS workspace for each thread that multiplies. Scratch space of other kernels is not included.
    """
    # Autograd must record, whatever the caller has switched off.
    with torch.inference_mode(False), torch.enable_grad():
        rehearsed = _Cell(spec).run(MetaAttention(spec.device.partition(":")[0], capability))
    if not spec.device.startswith("cuda"):
        return rehearsed
    workspaces = [workspace_bytes(capability)] * cublas_workspaces(spec)
    timeline = rehearsed.timeline.preceded_by(WORKSPACE_OP, workspaces)
    return rehearsed._replace(timeline=as_cached(timeline))


def cublas_workspaces(spec: CellSpec) -> int:
    """Number of cuBLAS's workspaces: one for each thread that multiplies on CUDA; backward has its own thread."""
    return (2 if "backward" in PHASES[spec.pass_] else 1) if spec.device.startswith("cuda") else 0


def workspace_bytes(capability: tuple[int, int]) -> int:
    """Bytes of one workspace of cuBLAS: from torch (2.13 on) if it uses such a GPU now, else by its version."""
    ask: Callable[[], int] | None = getattr(torch._C, "_cuda_getCublasWorkspaceSize", None)
    if ask and torch.cuda.is_initialized() and torch.cuda.get_device_capability() == capability:
        return ask()
    return cublas_workspace_bytes(capability, str(torch.__version__))


class _Cell:
    """Model, batch and optimizer on the meta device."""

    def __init__(self, spec: CellSpec) -> None:
        self._spec = spec
        device_type, dtype = spec.device.partition(":")[0], RECIPES[spec.precision].autocast
        self._counts_host_tensors = device_type == "cpu"
        autocast = nullcontext if dtype is None else partial(Autocast, device_type, dtype)
        self._workload = build(spec, META, as_written=True, autocast=autocast)
        self._model, self._training = self._workload.model, self._workload.training
        if self._training is not None:
            for parameter in self._model.parameters():
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
            with MetaKernels() as kernels:
                kernels.answers = True
                self._training.optimizer.step()  # makes its state; the gradients stay, as those of the step before

    def run(self, attention: MetaAttention) -> Rehearsal:
        tracker = MemoryTracker(device_type=None if self._counts_host_tensors else META.type)
        name_parts(self._model, tracker.range, self._spec.annotations)
        residual_bytes = 0

        def look(_module: object, _inputs: object, output: object) -> None:
            nonlocal residual_bytes
            residual_bytes = logits_of(output).nbytes

        if blocks := blocks_of(self._model):
            blocks[-1].register_forward_hook(look)
        state = list(self._optimizer_state())
        tracker.claim("parameters", self._model.parameters())
        tracker.claim("buffers", [*self._model.buffers(), *self._workload.batch])
        tracker.claim("optimizer_state", state)
        tracker.claim("gradients", self._gradients())
        step, facts = self._workload.step(self._spec), self._workload.facts
        untimed = ("forward", "loss") if self._spec.pass_ == "backward" else ()
        with attention, modes_kept_for_recomputation(), MetaKernels() as kernels, tracker:
            for phase in (*untimed, *step.phases):
                tracker.phase(phase)
                kernels.answers = phase == "optimizer"
                with self._default_device(phase):
                    step.run(phase)
                tracker.claim("gradients", self._gradients())
        return Rehearsal(
            timeline=tracker.timeline(),
            flops={phase: tracker.flops[phase] for phase in step.phases},
            flops_by_range={name: (there, back) for name, (there, back) in tracker.flops_by_range.items()},
            recomputed_flops=tracker.recomputed_flops,
            residual_stream_bytes=residual_bytes,
            num_params=facts.num_params,
            num_params_without_head=facts.num_params_without_head,
            parameter_bytes=sum(parameter.nbytes for parameter in self._model.parameters()),
            optimizer_state_bytes=sum(tensor.nbytes for tensor in state),
            trained_bytes=sum(each.nbytes for each in self._model.parameters() if each.requires_grad),
            dims_not_taken=facts.dims_not_taken,
        )

    def _default_device(self, phase: str) -> AbstractContextManager[object]:
        """The meta device for a user's model on a CPU, which may create tensors without naming a device."""
        makes_here = is_imported(self._spec.model) and self._counts_host_tensors and phase in ("forward", "loss")
        return META if makes_here else nullcontext()

    def _gradients(self) -> Iterator[Tensor]:
        return (parameter.grad for parameter in self._model.parameters() if parameter.grad is not None)

    def _optimizer_state(self) -> Iterator[Tensor]:
        """The optimizer's tensors on the device: step counts are on the host, so they count on a CPU only."""
        states = self._training.optimizer.state.values() if self._training else ()
        for value in (value for state in states for value in state.values()):
            if isinstance(value, Tensor) and (value.is_meta or self._counts_host_tensors):
                yield value
