"""What is done once before the first warm-up step: compiling a model, capturing a step as a CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import is_imported
from cs336_tui.events.events import Stage
from cs336_tui.worker.measure.compiling import Compiled, compile_ahead
from cs336_tui.worker.workload.compiling import captures
from cs336_tui.worker.workload.cuda_graph import WARMUP_STEPS, CapturedStep, captured
from cs336_tui.worker.workload.passes import Step

ReadyStep = Step | CapturedStep
"""A step as it is timed."""


class Preparation(NamedTuple):
    """What it took, as in `cs336_tui.events.events.ModelPrepared`; None for what was not done."""

    compiled: Compiled | None
    capture_s: float | None


def prepare(
    step: Step, spec: CellSpec, device: torch.device, enter: Callable[[Stage], object], go_on: Callable[[], object]
) -> tuple[ReadyStep, Preparation | None]:
    """The step as it is to be timed, and what making it so took; None where nothing was to be done.

    `enter` is called with each stage, `go_on` between runs of the step, and may raise. The first run is checked, as
    `Step.check` does. Raises `CompileError` or ValueError, in one line, for what cannot be compiled or captured.
    """
    if spec.compile == spec.cuda_graph == "off":
        return step, None
    compiled, capture_s = None, None
    ready: ReadyStep = step
    if spec.compile != "off":
        enter("compiling")
        compiled = compile_ahead(step, device, spec.compile, go_on)
        step.check()
    if spec.cuda_graph != "off":
        enter("capturing")
        begin = time.perf_counter()
        ready = captured(step, device)
        capture_s = time.perf_counter() - begin
        step.check()
    return ready, Preparation(compiled, capture_s)


def allocates_in_steps(step: ReadyStep, spec: CellSpec) -> bool:
    """Whether each step asks the allocator for its memory; a replay of a CUDA graph has had it since its capture."""
    return not (isinstance(step, CapturedStep) or captures(spec.compile, torch.device(spec.device).type))


def why_not_cold(spec: CellSpec, found: Preparation | None) -> str | None:
    """What ran before the first step of a cell without warm-up, in words; None with warm-up, or where nothing did."""
    if spec.warmup_steps:
        return None
    ran = []
    if is_imported(spec.attention):
        ran.append(f"{spec.attention} was called once when it was built")
    if found and found.compiled:
        ran.append(f"compiling ran the model {found.compiled.runs} times")
    if found and found.capture_s is not None:
        ran.append(f"{WARMUP_STEPS} whole steps ran before the capture")
    return f"the first step is not cold: {' and '.join(ran)}" if ran else None
