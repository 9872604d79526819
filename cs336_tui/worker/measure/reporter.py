"""Reports a cell's progress and effective settings as events; and what the reports on a cell share: stages, notes,
warm-up, predictions and saved files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import torch

from cs336_tui.config.processes import ALLOCATOR, set_variables
from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events
from cs336_tui.stats.quantities import gigabytes
from cs336_tui.stats.summaries import summarize
from cs336_tui.worker.measure.cell_memory import Peaks
from cs336_tui.worker.measure.failures import failed_allocation, held_by_others, in_one_line, outcome_of
from cs336_tui.worker.measure.preparing import Preparation, Recompilations, why_not_cold
from cs336_tui.worker.measure.probe import device_label
from cs336_tui.worker.measure.process import effective_malloc, settings_of, usable_cores
from cs336_tui.worker.measure.timing import StepTime
from cs336_tui.worker.workload.building import Workload
from cs336_tui.worker.workload.compile_and_capture import ReadyStep, effective_compiler
from cs336_tui.worker.workload.import_problems import ImportProblem, raise_interrupt
from cs336_tui.worker.workload.passes import Training
from cs336_tui.worker.workload.precision import (
    dtype_name,
    effective_autocast,
    effective_matmul,
    float8_description,
    tf32_allowed,
)

if TYPE_CHECKING:
    from cs336_tui.worker.estimate.predict import Rehearsal


_LABELS = {
    "variables": "environment variables",
    "allow_tf32": "TF32",
    "parameter_dtype": "parameters",
    "autocast_dtype": "autocast",
}


Emit = Callable[[events.Event], None]


class CellReporter:
    """Emits the events of one cell and keeps its progress. Never called within a timed region."""

    def __init__(self, cell: int, emit: Emit) -> None:
        self.reached: tuple[events.Stage, int | None] = ("building", None)
        """The stage, and the step in it that runs or comes next."""
        self.times_s: dict[events.StepKind, list[float]] = {"warm-up": [], "measured": []}  # Of finished steps
        self.remarks: list[str] = []
        self.end: dict[str, Any] = {}  # Fields of `events.CellFinished` that are known before it
        self.flushed: str | None = None  # As in `events.EffectiveSettings`
        self.cache_folder: str | None = None  # The same
        self.recompilations: Recompilations | None = None  # Once prepared, of a model that is or may be compiled
        self._cell = cell
        self._emit = emit
        self._settings: events.EffectiveSettings | None = None

    def enter(self, stage: events.Stage) -> None:
        if stage != "finishing":
            self.reached = (stage, None)
        self._emit(events.StageChanged(at=time(), cell=self._cell, stage=stage))

    def notice(self, text: str) -> None:
        """Emit a notice, and keep it as a remark beside the cell's number."""
        self.remarks.append(text)
        self._emit(events.Notice(at=time(), text=f"cell {self._cell + 1}: {text}"))

    def built(self, workload: Workload, since: str = "") -> None:
        """Report the model with the settings in force; again, if it changed them itself `since` it was reported."""
        own = {"flushed": self.flushed, "cache_folder": self.cache_folder}
        before, now = self._settings, msgspec.structs.replace(read_effective_settings(workload), **own)
        if before == now:
            return
        if before is None:
            self.remarks += workload.facts.remarks
        else:
            changes = (
                f"{_LABELS.get(name, name.replace('_', ' '))} {_words(getattr(before, name))} to {_words(value)}"
                for name, value in msgspec.structs.asdict(now).items()
                if value != getattr(before, name)
            )
            self.notice(f"settings changed {since}: {', '.join(changes)}")
        self._settings = now
        self._emit(
            events.ModelBuilt(
                at=time(),
                cell=self._cell,
                num_params=workload.facts.num_params,
                num_params_without_head=workload.facts.num_params_without_head,
                in_force=now,
            )
        )

    def prepared(self, found: Preparation | None, spec: CellSpec) -> None:
        """Report compilation and capture, if either was done before the first step."""
        if why := why_not_cold(spec, found):
            self.notice(why)
        compiled = found is not None and found.compile_s is not None
        if compiled or spec.brings_own_code:
            self.recompilations = Recompilations(by_model=not compiled)
        if found is not None:
            fields = found._asdict()
            del fields["runs"]
            self._emit(events.ModelPrepared(at=time(), cell=self._cell, **fields))

    def reach(self, number: int) -> None:
        self.reached = (self.reached[0], number)

    def steps_ended(self, step: ReadyStep, kind: events.StepKind, first: int, times: Sequence[StepTime]) -> None:
        """Report one step, or several that were timed as a window."""
        if not times:
            return
        if self.recompilations:
            self.recompilations.steps_ended(kind, first, len(times))
        assert step.logits_dtype is not None
        self.end["logits_dtype"] = dtype_name(step.logits_dtype)
        self.times_s[kind] += [each.total_s for each in times]
        phases = step.phases if len(times[0].phases_s) == len(step.phases) else ()  # none of steps timed as a whole
        by_phase = zip(*(each.phases_s for each in times), strict=True) if phases else ()
        host_too = len(phases) > 1 and any(each.phases_s != each.host_phases_s for each in times)
        host_by_phase = zip(*(each.host_phases_s for each in times), strict=True) if host_too else ()
        self._emit(
            events.StepsTimed(
                at=time(),
                cell=self._cell,
                kind=kind,
                first=first,
                times_s=tuple(each.total_s for each in times),
                phases_s=dict(zip(phases, by_phase, strict=True)),
                host_s=tuple(each.host_s for each in times),
                host_phases_s=dict(zip(phases, host_by_phase, strict=True)) if host_too else {},
            )
        )

    def failed(self, error: BaseException, step: ReadyStep | None) -> tuple[events.Status, str | None]:
        """events.Status and error line of a cell that ended in this error."""
        self.end["phase"] = step.failed_in if step else None
        self.end["failed_allocation_bytes"] = failed_allocation(error)
        status, line = outcome_of(error)
        if status == "oom" and (others := held_by_others(error)):
            self.end["others_bytes"] = sum(others.values())
            held = " and ".join(f"process {pid} held {gigabytes(size)} GB" for pid, size in others.items())
            line = f"{held} of the device: {line}"
        if status == "failed" and isinstance(error, ImportProblem):
            self.end["unusable"] = error.code
        return status, line

    def finished(
        self, status: events.Status, error: str | None, peaks: Peaks | None, *, with_memory: bool = True
    ) -> None:
        """Emit `CellFinished`. With `with_memory` the peaks are this cell's own."""
        self._emit(self._finished(status, error, peaks, with_memory=with_memory))

    def measured(self, peaks: Peaks | None, *, with_memory: bool) -> None:
        """Emit `CellMeasured`."""
        end = self._finished("ok", None, peaks, with_memory=with_memory)
        self._emit(events.CellMeasured(at=time(), cell=self._cell, end=end))

    def _finished(
        self, status: events.Status, error: str | None, peaks: Peaks | None, *, with_memory: bool
    ) -> events.CellFinished:
        stage, step = (None, None) if status == "ok" else self.reached
        own = peaks if with_memory else None
        return events.CellFinished(
            at=time(),
            cell=self._cell,
            status=status,
            error=error,
            stage=stage,
            step=step,
            peak_allocated_bytes=own and own.allocated,
            peak_reserved_bytes=own and own.reserved,
            peak_rss_bytes=own and own.rss,
            num_alloc_retries=peaks and peaks.num_alloc_retries,
            recompilations=self.recompilations.count if self.recompilations else 0,
            warmup_steps_done=len(self.times_s["warm-up"]),
            usable_cores=usable_cores(),
            remarks=tuple(self.remarks),
            summary=summarize(self.times_s["measured"]),
            **self.end,
        )


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(value) or "none"
    return "none" if value is None else str(value)


UNKNOWN = "unknown"
_Answer = TypeVar("_Answer")
_Default = TypeVar("_Default")

_CUDA_VARIABLES = (*ALLOCATOR, "PYTORCH_NO_CUDA_MEMORY_CACHING")
_MPS_VARIABLES = ("PYTORCH_MPS_HIGH_WATERMARK_RATIO", "PYTORCH_MPS_LOW_WATERMARK_RATIO")
"""Environment variables of torch's allocators (its notes "CUDA semantics" and "MPS Environment Variables")."""


def read_effective_settings(workload: Workload) -> events.EffectiveSettings:
    """The settings as torch reports them now; the dtype of the logits is unknown before the first step. Never raises: a
    setting that cannot be read, as after a model mixed two names of it, is unknown."""
    model, training = workload.model, workload.training
    device = workload.batch.targets.device
    autocast_dtype = _answer(lambda: effective_autocast(workload.autocast, device.type), UNKNOWN)
    return events.EffectiveSettings(
        matmul_precision=_answer(lambda: effective_matmul(device.type), UNKNOWN),
        allow_tf32=_answer(tf32_allowed, None) if device.type == "cuda" else None,
        parameter_dtype=_answer(
            lambda: "+".join(sorted({dtype_name(p.dtype) for p in workload.shared.runs.parameters()})), UNKNOWN
        ),
        autocast_dtype=dtype_name(autocast_dtype) if isinstance(autocast_dtype, torch.dtype) else autocast_dtype,
        float8=_answer(lambda: float8_description(model), None),
        grad_scaler=training.scales_gradients if training is not None else False,
        optimizer=training.name if training is not None else None,
        threads=_answer(torch.get_num_threads, None),
        interop_threads=_answer(torch.get_num_interop_threads, None),
        attention=workload.facts.attention,
        compiler=_answer(lambda: effective_compiler(workload.runs), None),
        variables=set_variables(device.type, os.environ),
        allocator=_answer(lambda: effective_allocator(device), None),
        device_name=_answer(lambda: device_label(device), None),
        model_revision=workload.facts.revision,
    )


def _answer(question: Callable[[], _Answer], otherwise: _Default) -> _Answer | _Default:
    """The answer, or `otherwise` if asking raises."""
    try:
        return question()
    except Exception:
        return otherwise


def effective_allocator(device: torch.device) -> str | None:
    """The allocator of the device's memory and its settings, in words; None if unknown."""
    match device.type:
        case "cuda":
            return ", ".join([torch.cuda.get_allocator_backend(), *settings_of(_CUDA_VARIABLES)])
        case "mps":
            return ", ".join(["torch's MPS allocator", *settings_of(_MPS_VARIABLES)])
        case "cpu":
            return effective_malloc()
    return None


Enter = Callable[[str], object]  # Called with the stage that begins. May raise to stop the report

MOST_WARMUP_STEPS = 20  # Gradients overflow float16 at first, so that the scaler skips optimizer steps
COMPILE_LEFT_OUT = "Shown is the model as it is written, not what torch.compile makes of it."
GRAPH_LEFT_OUT = "The step ran as it is launched without its CUDA graph."


def header(spec: CellSpec, device: torch.device) -> dict[str, Any]:
    """The fields that every measured report begins with."""
    return {"spec": spec, "device_name": device_label(device), "torch": str(torch.__version__)}


def joined(*notes: str) -> str:
    """The notes that are not empty, as one text."""
    return " ".join(filter(None, notes))


def left_out(spec: CellSpec) -> tuple[str, ...]:
    """Notes on the compilation and the CUDA graph that a report on the model as written leaves out."""
    compiled = (COMPILE_LEFT_OUT,) if spec.compile != "off" else ()
    return (*compiled, GRAPH_LEFT_OUT) if spec.cuda_graph != "off" else compiled


def steps_taken(training: Training | None) -> int:
    """Optimizer steps taken so far; 0 without an optimizer."""
    return training.steps_taken if training else 0


def skipped_note(verb: str, training: Training | None, taken_before: int) -> str:
    """A note if the gradient scaler skipped the step's optimizer step; else empty."""
    if training is None or training.steps_taken != taken_before:
        return ""
    return f"The {verb} step has no real optimizer phase: gradients overflowed float16, so that it was skipped."


def rehearsed(
    spec: CellSpec, device: torch.device | None = None, missing: str = "There is no prediction"
) -> tuple[Rehearsal | None, str]:
    """The cell's predicted step, for the compute capability of a CUDA `device`; without one, a note that says why."""
    from cs336_tui.worker.estimate.predict import rehearse

    capability = torch.cuda.get_device_capability(device) if device and device.type == "cuda" else None
    try:
        return rehearse(spec, capability=capability), ""
    except BaseException as error:  # the measurement is valid without it
        raise_interrupt(error)
        return None, f"{missing}: {in_one_line(error).removesuffix('.')}."


def save_file(
    what: str, folder: str | None, parts: tuple[str, ...], suffix: str, save: Callable[[Path], object]
) -> tuple[str | None, str]:
    """Save a file under the first unused name in the folder: its path, or None and a note that says why. No file is
    saved without a folder. A report is complete without its file."""
    if folder is None:
        return None, ""
    stem = re.sub(r"[^\w.+-]+", "-", "-".join(parts))
    numbered = (Path(folder) / f"{stem}{'' if number == 1 else f'-{number}'}{suffix}" for number in count(1))
    try:
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        path = next(path for path in numbered if not path.exists())
        save(path)
        path.chmod(0o600)
    except (OSError, RuntimeError) as error:
        return None, f"The {what} could not be saved: {error}."
    return str(path), ""
