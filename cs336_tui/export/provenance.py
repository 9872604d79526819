"""Where numbers come from: the settings, devices, precisions and versions behind a session's results.

Every function gives lines of markdown without bullets; settings that vary between cells are columns of the table
instead (`SETTINGS`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from cs336_tui.events import InForce
from cs336_tui.export.cells import shows_allocated, shows_rss, size_label
from cs336_tui.export.markdown import escape
from cs336_tui.quantities import count, gigabytes
from cs336_tui.session.state import CellState, SessionState
from cs336_tui.spec import RunSpec

SETTINGS: Mapping[str, Callable[[RunSpec], str]] = {
    "edition": lambda spec: spec.edition,
    "arch": lambda spec: spec.arch,
    "vocabulary": lambda spec: str(spec.vocab_size),
    "sync": lambda spec: spec.sync,
    "seed": lambda spec: str(spec.seed),
    "threads": lambda spec: "torch's default" if spec.threads is None else str(spec.threads),
}
"""Choices that seldom differ between the cells of a session."""

_SYNC = {
    "each-step": "host clock between two device synchronisations, one after every step",
    "pipelined": "host clock over several steps with one synchronisation, divided by their number",
}


def std_kind(ddof: int) -> str:
    match ddof:
        case 0:
            return "population standard deviation, n (ddof 0)"
        case 1:
            return "sample standard deviation, n − 1"
        case _:
            return f"square root of the squared deviations over n − {ddof}"


def reading_notes(state: SessionState, cells: Sequence[CellState]) -> Iterator[str]:
    """What the table's numbers mean."""
    yield "times: ms per step over the n measured steps, without the warm-up steps"
    yield f"std: {std_kind(state.ddof)}"
    for sync in _distinct(cell.spec.sync for cell in cells):
        yield f"a step's time, {sync}: {_SYNC[sync]}"
    if shows_allocated(cells):
        yield "peak allocated: tensors on the device, after warm-up; 1 GB is 10⁹ bytes"
    if shows_rss(cells):
        yield "peak RSS: resident memory of the cell's whole process, Python and torch included; 1 GB is 10⁹ bytes"
    if any(cell.finished and cell.finished.num_alloc_retries for cell in cells):
        yield "allocator retries: the device's memory was full while timing, which makes that timing suspect"


def setting_notes(state: SessionState, cells: Sequence[CellState]) -> Iterator[str]:
    """What was run: the settings that all cells share, the sizes, the devices, the precisions really in force."""
    shared = {name: _distinct(read(cell.spec) for cell in cells) for name, read in SETTINGS.items()}
    if same := [f"{name} {values[0]}" for name, values in shared.items() if len(values) == 1]:
        yield ", ".join(same)
    yield from _sizes(cells)
    for name in _distinct(cell.spec.device for cell in cells):
        yield f"{name}: {device_label(state, name)}"
    yield from _precisions(cells)


def version_notes(state: SessionState) -> Iterator[str]:
    """Versions and operating system, one line; none when the environment was not read."""
    if env := state.environment:
        versions = {"cs336-tui": env.app, "torch": env.torch, "CUDA": env.cuda, "cuDNN": env.cudnn}
        versions |= {"driver": env.driver, "Python": env.python}
        yield escape(", ".join([*(f"{name} {value}" for name, value in versions.items() if value), env.os]))


def device_label(state: SessionState, name: str) -> str:
    """The device's name in words, its memory and compute capability where known."""
    info = state.environment.device(name) if state.environment else None
    if info is None:
        return "unknown device"
    parts = [info.label]
    if info.memory_bytes is not None:
        parts.append(f"{gigabytes(info.memory_bytes)} GB")
    if info.capability:
        parts.append(f"compute capability {info.capability}")
    return escape(", ".join(parts))


def precision_in_force(found: InForce) -> str:
    parts = [f"{found.parameter_dtype} parameters"]
    parts.append(f"autocast to {found.autocast_dtype}" if found.autocast_dtype else "no autocast")
    parts.append(f"float32 matmul precision {found.matmul_precision}")
    if found.allow_tf32 is not None:
        parts.append(f"TF32 {'on' if found.allow_tf32 else 'off'}")
    if found.logits_dtype:
        parts.append(f"logits {found.logits_dtype}")
    if found.grad_scaler:
        parts.append("GradScaler in the train-step")
    if found.threads is not None:
        parts.append(f"{found.threads} CPU threads")
    return escape(", ".join(parts))


def _precisions(cells: Sequence[CellState]) -> Iterator[str]:
    """Each precision once as it was read back, with the dtype of the logits if some cell of it finished a step."""
    logits: dict[tuple[str, InForce], str | None] = {}
    for cell in cells:
        if found := cell.in_force:
            name = f"{cell.spec.precision} on {cell.spec.device}, as read back"
            key = name, msgspec.structs.replace(found, logits_dtype=None, optimizer=None)
            logits[key] = logits.get(key) or found.logits_dtype
    for (name, found), dtype in logits.items():
        yield f"{name}: {precision_in_force(msgspec.structs.replace(found, logits_dtype=dtype))}"


def _sizes(cells: Sequence[CellState]) -> Iterator[str]:
    """Each model once, with its parameter count if some cell of it came so far."""
    counts: dict[tuple[str, ...], int | None] = {}
    for cell in cells:
        spec = cell.spec
        model = (
            f"{size_label(spec)} ({spec.edition}, {spec.arch})",
            f"d_model {spec.d_model}, d_ff {spec.d_ff}, {spec.num_layers} layers, {spec.num_heads} heads",
            f"vocabulary {spec.vocab_size}",
        )
        counts[model] = counts.get(model) or cell.num_params
    for (name, *dims), num_params in counts.items():
        params = [f"{count(num_params)} parameters"] if num_params is not None else []
        yield escape(f"{name}: {', '.join(dims + params)}")


def _distinct(values: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(values))
