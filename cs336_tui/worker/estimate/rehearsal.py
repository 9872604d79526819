"""A step run through on tensors without data: every operation is dispatched, nothing is computed or allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import is_imported
from cs336_tui.events.gpus import HOPPER, cublas_workspace_bytes
from cs336_tui.events.reports import WORKSPACE_OP
from cs336_tui.worker.estimate.autocast import Autocast
from cs336_tui.worker.estimate.caching_allocator import as_cached
from cs336_tui.worker.estimate.fused_attention import FusedAttention
from cs336_tui.worker.estimate.meta_kernels import MetaKernels
from cs336_tui.worker.estimate.recomputing import modes_kept_for_recomputation
from cs336_tui.worker.estimate.timeline import Timeline
from cs336_tui.worker.estimate.tracker import MemoryTracker
from cs336_tui.worker.workload.blocks import blocks_of
from cs336_tui.worker.workload.building import loss_of, make, optimizer_of
from cs336_tui.worker.workload.facts import facts_of
from cs336_tui.worker.workload.passes import PHASES, Step, Training, logits_of
from cs336_tui.worker.workload.precision import RECIPES
from cs336_tui.worker.workload.ranges import name_parts

META = torch.device("meta")


class Rehearsal(NamedTuple):
    """What was seen of one step after warm-up, preparation included. FLOPs are those of matrix products."""

    timeline: Timeline
    """In bytes that the device's allocator counts."""
    flops: dict[str, int]
    flops_by_range: dict[str, tuple[int, int]]
    recomputed_flops: int
    residual_stream_bytes: int
    num_params: int
    num_params_without_head: int
    parameter_bytes: int
    optimizer_state_bytes: int
    trained_bytes: int
    """Of parameters that want a gradient."""
    dims_not_taken: tuple[str, ...]
    """Dimensions that a user's own model did not ask for."""


def rehearse(spec: CellSpec, *, capability: tuple[int, int] = HOPPER) -> Rehearsal:
    """Run one steady step of a cell through. `capability` is the GPU's, for its cuBLAS workspace.

    For a CUDA device the step is what it would be there: AdamW over lists of tensors, CUDA's autocast, its caching
    allocator with default settings, and a cuBLAS workspace for each thread that multiplies. Scratch space that other
    kernels take while they run is not seen.
    """
    # Autograd must record as it would in a process of its own, whatever the caller has switched off.
    with torch.inference_mode(False), torch.enable_grad():
        rehearsed = _Cell(spec).run(FusedAttention(spec.device.partition(":")[0], capability))
    if not spec.device.startswith("cuda"):
        return rehearsed
    workspaces = [workspace_bytes(capability)] * cublas_workspaces(spec)
    timeline = rehearsed.timeline.preceded_by(WORKSPACE_OP, workspaces)
    return rehearsed._replace(timeline=as_cached(timeline))


def cublas_workspaces(spec: CellSpec) -> int:
    """How many cuBLAS has: one for each thread that multiplies on CUDA, and backward has a thread of its own."""
    return (2 if "backward" in PHASES[spec.pass_] else 1) if spec.device.startswith("cuda") else 0


def workspace_bytes(capability: tuple[int, int]) -> int:
    """Of one workspace of cuBLAS: torch's own word where it uses such a GPU now and has one (from 2.13 on), else what
    is known of its version."""
    ask: Callable[[], int] | None = getattr(torch._C, "_cuda_getCublasWorkspaceSize", None)
    if ask and torch.cuda.is_initialized() and torch.cuda.get_device_capability() == capability:
        return ask()
    return cublas_workspace_bytes(capability, str(torch.__version__))


class _Cell:
    """Model, batch and optimizer of the meta device."""

    def __init__(self, spec: CellSpec) -> None:
        recipe = RECIPES[spec.precision]
        self._spec = spec
        device_type = spec.device.partition(":")[0]
        self._counts_host_tensors = device_type == "cpu"
        autocast = nullcontext if recipe.autocast is None else partial(Autocast, device_type, recipe.autocast)
        made = make(spec, META, autocast=autocast)
        self._model, self._batch = made.model, made.batch
        self._facts = facts_of(made.model, spec)
        self._dims_not_taken = made.not_taken
        self._training: Training | None = None
        if spec.pass_ == "train-step":
            optimizer, name = optimizer_of(spec, self._model, device_type)
            self._training = Training(optimizer, name, device_type, scale_gradients=recipe.scale_gradients)
            for parameter in self._model.parameters():
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
            with MetaKernels() as kernels:
                kernels.answers = True
                self._training.optimizer.step()  # makes its state; the gradients stay, as those of the step before
        self._step = Step(spec.pass_, self._model, self._batch, autocast, self._training, loss=loss_of(spec))

    def run(self, attention: FusedAttention) -> Rehearsal:
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
        tracker.claim("buffers", [*self._model.buffers(), *self._batch])
        tracker.claim("optimizer_state", state)
        tracker.claim("gradients", self._gradients())
        step = self._step
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
            num_params=self._facts.num_params,
            num_params_without_head=self._facts.num_params_without_head,
            parameter_bytes=sum(parameter.nbytes for parameter in self._model.parameters()),
            optimizer_state_bytes=sum(tensor.nbytes for tensor in state),
            trained_bytes=sum(each.nbytes for each in self._model.parameters() if each.requires_grad),
            dims_not_taken=self._dims_not_taken,
        )

    def _default_device(self, phase: str) -> AbstractContextManager[object]:
        """On a CPU a user's model may make tensors without naming a device, and get them where the others are."""
        makes_here = is_imported(self._spec.model) and self._counts_host_tensors and phase in ("forward", "loss")
        return META if makes_here else nullcontext()

    def _gradients(self) -> Iterator[Tensor]:
        return (parameter.grad for parameter in self._model.parameters() if parameter.grad is not None)

    def _optimizer_state(self) -> Iterator[Tensor]:
        """Moments, and counts of steps where they share the memory: they are kept by the host."""
        states = self._training.optimizer.state.values() if self._training else ()
        for value in (value for state in states for value in state.values()):
            if isinstance(value, Tensor) and (value.is_meta or self._counts_host_tensors):
                yield value
