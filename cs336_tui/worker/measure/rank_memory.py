"""The memory of one rank by use: once its model is there, and round optimizer steps."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.profiler import kineto_available

from cs336_tui.events.reports import RankMemoryReport, RankMoment, ReportRequest
from cs336_tui.worker.measure import reporter
from cs336_tui.worker.measure.cell_memory import CpuRecorder, Recording
from cs336_tui.worker.ranks import ALONE, Place
from cs336_tui.worker.ranks.group import let_gloo_settle
from cs336_tui.worker.ranks.parallel import bucket_bytes, gathered, held_by, shards, share
from cs336_tui.worker.workload.building import Workload, build, configure_torch
from cs336_tui.worker.workload.passes import Step

LATER_STEP = 3
"""The later step that is looked at: containers settle their buckets in the steps before."""
INITIALISED = "initialised"


def record_rank_memory(request: ReportRequest, enter: reporter.Enter, place: Place = ALONE) -> RankMemoryReport:
    """Build this rank's part of the cell and run steps. The process group is joined. Raises what building and running
    raise, such as torch's errors when memory runs out."""
    spec = request.spec
    enter("building")
    device = configure_torch(spec, torch.device(place.device_of(spec)))
    there = list(_tensors())
    recorder = CpuRecorder() if device.type == "cpu" and kineto_available() else None
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    uses: list[tuple[int, str, dict[str, int]]] = []
    counts: list[_Counted] = []

    def reach(number: int, moment: str) -> None:
        uses.append((number, moment, _uses(workload, there)))
        counts.append(_counted_by_cuda(device))
        if recorder:
            recorder.mark()

    with recorder or nullcontext(), saved_tensors_hooks(_as_it_is, _as_it_is):
        workload = build(spec, device, as_written=True, rank=place.rank, share=partial(share, spec=spec, device=device))
        reach(0, INITIALISED)
        enter("recording")
        taken: list[int] = []  # The numbers of steps whose optimizer step was not skipped
        for number in range(1, reporter.MOST_WARMUP_STEPS + 1):
            before = reporter.steps_taken(workload.training)
            for moment in _moments_of(workload.step(spec)):
                reach(number, moment)
            if workload.training is None or reporter.steps_taken(workload.training) > before:
                taken.append(number)
            if len(taken) == LATER_STEP:
                break
    kept = {0: 0, **{number: taken.index(number) + 1 for number in (*taken[:1], *taken[LATER_STEP - 1 :])}}
    counter = "CUDA allocator" if device.type == "cuda" else "tensors"
    if recorder:
        counter = "CPU profiler"
        live = [sum(by_category.values()) for _, _, by_category in uses]
        counts = without_lost_frees(counted(recorder.recording()), live)
    moments = zip(uses, counts, strict=True)
    return RankMemoryReport(
        **reporter.header(spec, device) | {"recorder": counter},
        moments=tuple(
            RankMoment(
                rank=place.rank, step=kept[number], moment=moment, by_category=by_category,
                live_bytes=found.live, peak_bytes=found.peak,
            )
            for (number, moment, by_category), found in moments
            if number in kept
        ),
        note=reporter.joined(*reporter.left_out(spec)),
    )  # fmt: skip


def _moments_of(step: Step) -> Iterator[str]:
    """Run a step; yields the name of each moment when it is reached."""
    step.prepare()
    phases = step.phases
    for number, phase in enumerate(phases):
        following = phases[number + 1] if number + 1 < len(phases) else ""
        step.run(phase)
        if phase == "optimizer":
            yield "after optimizer"
        elif following == "optimizer":
            yield "before optimizer"
        elif following == "backward" or (not following and phase != "zero_grad"):
            yield f"after {'forward' if following else phase}"
    step.clear()


def _as_it_is(tensor: Tensor) -> Tensor:
    """Saves a tensor for backward, or gives it back; in hooks autograd keeps what it saves as an object of Python."""
    return tensor


def _tensors() -> Iterator[Tensor]:
    """Every tensor that Python knows of."""
    return (each for each in gc.get_objects() if issubclass(type(each), Tensor))


def _uses(workload: Workload, there: Sequence[Tensor]) -> dict[str, int]:
    """Bytes of this rank's own tensors by use, each storage once and by the first use that it has: of shards its own.

    Communication: what the container keeps for it: buckets, gathered weights, tensors of its own. Activations: all
    other tensors but those that were `there` before the model: autograd's, the logits, the loss.
    """
    seen: set[int] = set()
    let_gloo_settle()
    _bytes(there, seen)
    training, runs = workload.training, workload.shared.runs
    device = workload.batch.inputs.device
    parameters = list(dict.fromkeys((*shards(workload.model), *workload.model.parameters(), *runs.parameters())))
    whole = [each for each in gathered(workload.model) if each.untyped_storage().nbytes()]
    batch = (part for part in workload.batch if isinstance(part, Tensor))
    communicated = _bytes(whole, seen)
    uses = {
        "parameters": _bytes(parameters, seen),
        "gradients": (gradients := _bytes((each.grad for each in parameters if each.grad is not None), seen)),
        "optimizer_state": _bytes(workload.optimizer_state(), seen),
        "buffers": _bytes((*workload.model.buffers(), *batch), seen),
    }
    buckets, is_shared = bucket_bytes(runs)
    held = (each for each in held_by(runs, training.optimizer if training else None) if each.device == device)
    kept = _bytes(held, seen)
    others = (each for each in _tensors() if each.device == device)
    return uses | {
        "communication": communicated + kept + max(buckets - (gradients if is_shared else 0), 0),
        "activations": _bytes(others, seen),
    }


def _bytes(tensors: Iterable[Tensor], seen: set[int]) -> int:
    """Bytes of the storages that were not `seen` yet; a tensor without memory (fake, functional, sparse) has none."""
    found = 0
    for tensor in tensors:
        try:
            storage = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()
            address = 0 if storage.device.type == "meta" else storage.data_ptr()
        except RuntimeError:
            continue
        if address and storage.nbytes() and address not in seen:
            seen.add(address)
            found += storage.nbytes()
    return found


class _Counted(NamedTuple):
    """Bytes allocated at a mark, and the most since the mark before; None if nobody counts."""

    live: int | None = None
    peak: int | None = None


def _counted_by_cuda(device: torch.device) -> _Counted:
    """The counts of CUDA's allocator, whose peak begins anew; none on another device."""
    if device.type != "cuda":
        return _Counted()
    torch.cuda.synchronize(device)
    found = _Counted(torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device))
    torch.cuda.reset_peak_memory_stats(device)
    return found


def without_lost_frees(found: Iterable[_Counted], tensors: Iterable[int]) -> list[_Counted]:
    """Counts that rest on the tensors at each mark, because torch's profiler does not see what gloo's threads free. A
    peak keeps what was lost since the mark before."""
    kept, lost = [], 0
    for each, live in zip(found, tensors, strict=True):
        assert each.live is not None
        assert each.peak is not None
        kept.append(_Counted(live, max(each.peak - lost, live)))
        lost = each.live - live
    return kept


def counted(recording: Recording) -> list[_Counted]:
    """Allocations since the recording began, at each of its marks. Frees of what was there before do not
    count."""
    live = recording.live_bytes()
    ends = recording.marks
    return [_Counted(live[end], max(live[begin : end + 1])) for begin, end in zip((0, *ends), ends, strict=False)]
