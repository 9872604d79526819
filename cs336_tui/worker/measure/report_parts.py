"""Shared by the four reports: stages, notes, warm-up, predictions and saved files."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cs336_tui.config.spec import CellSpec
from cs336_tui.worker.measure.failures import in_one_line
from cs336_tui.worker.measure.probe import device_label
from cs336_tui.worker.workload.imported.problems import raise_interrupt
from cs336_tui.worker.workload.passes import Training

if TYPE_CHECKING:
    from cs336_tui.worker.estimate.predict import Rehearsal

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
