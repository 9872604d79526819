"""The provenance of numbers: the settings, devices, precisions and versions behind a session's results.

Every function gives lines of plain text; settings that vary between cells are columns of the table instead
(`SETTINGS`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from cs336_tui.analysis.comparison import NONE, SETTINGS_IN_FORCE, mixed_provenance
from cs336_tui.analysis.fields import OWN, shown_of, threads_words
from cs336_tui.analysis.merge import Result, grouped, title_of
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import is_imported
from cs336_tui.events.environment import Environment
from cs336_tui.events.events import EffectiveSettings
from cs336_tui.session.state import SessionState, visit_cells
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import count, counted, gigabytes

SETTINGS: Mapping[str, Callable[[CellSpec], str]] = {
    "edition": lambda spec: shown_of(spec, "edition"),
    "arch": lambda spec: shown_of(spec, "arch"),
    "vocabulary": lambda spec: str(spec.vocab_size),
    "sync": lambda spec: spec.synchronised,
    "seed": lambda spec: str(spec.seed),
    "threads": threads_words,
}
"""Choices that seldom differ between the cells of a session."""

_OF_MODELS = ("edition", "arch", "vocabulary")
"""Settings that an operation alone has none of."""


def setting_notes(state: SessionState, cells: Sequence[CellState]) -> Iterator[str]:
    """The cells that were run and, first, in what they differ."""
    yield from mixed_provenance([Result(0, title_of(state), state, cell) for cell in cells])
    yield from run_notes(state, cells)


def run_notes(state: SessionState, cells: Sequence[CellState]) -> Iterator[str]:
    """The shared settings, the sizes, the devices and the effective settings of what was run."""
    ours = [cell for cell in cells if not cell.spec.recording]
    models = any(not cell.spec.is_alone for cell in ours)
    settings = {name: read for name, read in SETTINGS.items() if models or name not in _OF_MODELS}
    shared = {name: {read(cell.spec) for cell in ours} for name, read in settings.items()}
    if same := [f"{name} {min(values)}" for name, values in shared.items() if len(values) == 1 and values != {OWN}]:
        yield ", ".join(same)
    yield from _sizes(ours)
    yield from device_notes(state, cells)
    yield from variant_notes(cells)
    yield from in_force_notes(state, cells)


def in_force_notes(state: SessionState, cells: Sequence[CellState]) -> Iterator[str]:
    """Precisions, what else was in force on all cells of a device alike, and its clocks, as far as they are known."""
    yield from _precision_notes(cells)
    if visits := len(visit_cells(state) & {cell.cell for cell in cells}):
        are = "is a visit" if visits == 1 else "are visits"
        yield f"{visits} of {counted(len(cells), 'cell')} {are} of a race, few steps each; report race compares them"
    if in_turns := sum(cell.in_turns for cell in cells):
        pids = [cell.pid for cell in state.cells.values() if cell.in_turns and cell.pid is not None]
        is_apart = len(set(pids)) == len(pids) > 1
        by, of = "gate" if is_apart else "tune" if state.tuning else "ab", counted(len(cells), "cell")
        where = "each in a process of its own" if is_apart else "in one process"
        yield f"{in_turns} of {of} ran in turns with another cell, {where} (cs336-tui {by})"
    for device, ran_there in grouped(cells, lambda cell: cell.spec.device).items():
        results, agreed = [Result(0, "", state, cell) for cell in ran_there], []
        for aspect in SETTINGS_IN_FORCE:
            values = {value for result in results if (value := aspect.read(result)) is not None}
            if len(values) == 1 and values != {NONE}:
                agreed.append(f"{aspect.name} {values.pop()}")
        if agreed:
            yield f"effective settings ({device if ':' in device else device.upper()}): {'; '.join(agreed)}"
        spans = {when: _span((getattr(c.surroundings, key) for c in ran_there), str) for key, when in _CLOCKS.items()}
        if clocks := [f"{span} MHz {when}" for when, span in spans.items() if span]:
            yield f"SM clock of {device}: {', '.join(clocks)}"


_CLOCKS = {
    "clock_before_mhz": "before the measured steps",
    "lowest_clock_mhz": "at the lowest while they ran",
    "clock_after_mhz": "at their end",
}
"""The clock as the samples round each cell's measured steps saw it."""


def device_notes(state: SessionState, cells: Sequence[CellState]) -> Iterator[str]:
    """Each device that the cells ran on, in words; a name that stood for two devices gives two lines."""
    used = {(cell.spec.device, id(here)): here for cell in cells for here in [cell.environment or state.environment]}
    labels: dict[str, None] = {}
    for (name, _), machine in used.items():
        info = machine.device(name) if machine else None
        if info is None:
            words = "unknown device"
        else:
            memory = f"{gigabytes(info.memory_bytes)} GB" if info.memory_bytes is not None else ""
            capability = f"compute capability {info.capability}" if info.capability else ""
            words = ", ".join(filter(None, (info.label, memory, capability)))
        labels[f"{name}: {words}"] = None
    yield from labels


def _precision_notes(cells: Sequence[CellState]) -> Iterator[str]:
    """Each precision once as it was read back, with the dtype of the logits if some cell of it finished a step."""
    logits: dict[str, str | None] = {}
    for cell in cells:
        if found := cell.in_force:
            named = f"{cell.spec.precision} on {cell.spec.device}, as read back: {_as_read_back(found)}"
            if cell.spec.is_collective:
                named = f"{cell.spec.precision} on {cell.spec.device}: messages of {found.parameter_dtype}"
            logits[named] = logits.get(named) or (None if cell.spec.is_collective else found.logits_dtype)
    for named, dtype in logits.items():
        yield f"{named}, logits {dtype}" if dtype else named


def version_notes(environment: Environment | None) -> Iterator[str]:
    """Versions and operating system, one line; none when the environment was not read."""
    if env := environment:
        versions = {"cs336-tui": env.app, "torch": env.torch, "CUDA": env.cuda, "cuDNN": env.cudnn}
        versions |= {"driver": env.driver, "Python": env.python}
        yield ", ".join(filter(None, [*(f"{name} {value}" for name, value in versions.items() if value), env.os]))


def departures(first: Environment, other: Environment, device: str, *, jobs: bool = False) -> tuple[str, ...]:
    """In what a cell's machine differs from the session's first, as far as step times depend on it; often nothing. Of
    cells in jobs, which the table tells apart by machine, another host or GPU of the same kind is no difference."""
    if first is other or first == other:
        return ()
    ours, theirs = first.device(device), other.device(device)
    pairs = {
        "host": (first.host, other.host),
        "processor": (first.cpu, other.cpu),
        "torch": (first.torch, other.torch),
        "CUDA": (first.cuda, other.cuda),
        "cuDNN": (first.cudnn, other.cudnn),
        "driver": (first.driver, other.driver),
        device: (ours and ours.label, theirs and theirs.label),
        f"{device} is the GPU": (ours and ours.uuid, theirs and theirs.uuid),
    }
    if jobs:
        del pairs["host"], pairs[f"{device} is the GPU"]
    return tuple(
        f"{name} {now or 'unknown'} instead of {was or 'unknown'}" for name, (was, now) in pairs.items() if was != now
    )


def _as_read_back(found: EffectiveSettings) -> str:
    """The settings that were read back when the cell was built; the logits' dtype is only known later."""
    parts = (
        f"{found.parameter_dtype} parameters",
        f"autocast to {found.autocast_dtype}" if found.autocast_dtype else "no autocast",
        found.float8,
        f"float32 matmul precision {found.matmul_precision}",
        f"TF32 {'on' if found.allow_tf32 else 'off'}" if found.allow_tf32 is not None else "",
        "GradScaler in the train-step" if found.grad_scaler else "",
    )
    return ", ".join(filter(None, parts))


def _sizes(cells: Sequence[CellState]) -> Iterator[str]:
    """Each model once, with its parameter count if some cell of it came so far."""
    counts: dict[tuple[str, ...], int | None] = {}
    for cell in cells:
        spec = cell.spec
        if spec.is_alone:
            continue
        kind = (spec.model, *map("=".join, spec.model_args)) if is_imported(spec.model) else (spec.edition, spec.arch)
        model = (
            f"{spec.size_label} ({', '.join(kind)})",
            f"d_model {spec.d_model}, d_ff {spec.d_ff}",
            counted(spec.num_layers, "layer"),
            counted(spec.num_heads, "head"),
            f"vocabulary {spec.vocab_size}",
        )
        counts[model] = counts.get(model) or cell.num_params
    for (name, *dims), num_params in counts.items():
        params = [f"{count(num_params)} parameters"] if num_params is not None else []
        yield f"{name}: {', '.join(dims + params)}"


def variant_notes(cells: Sequence[CellState]) -> Iterator[str]:
    """The sources of the user's own code, the kernel of each kind of attention where there are several, compilation
    and capture; nothing of cells of the reference model as it is written."""
    sources: dict[str, dict[str, None]] = {}
    attentions: dict[str, dict[str, None]] = {}
    for cell in cells:
        spec, found = cell.spec, cell.in_force
        if found and found.model_revision and spec.brings_own_code:
            sources.setdefault(", ".join(spec.own_code), {})[found.model_revision] = None
        if found and found.attention and not is_imported(spec.model):
            attentions.setdefault(spec.attention, {})[found.attention] = None
    yield from (f"{names}: {' and '.join(revisions)}" for names, revisions in sources.items())
    if len(attentions) > 1:
        told = "; ".join(f"{name} is {' or '.join(kernels)}" for name, kernels in attentions.items())
        yield f"attention kernels: {told}"
    yield from _compiling(cells)
    captures = (cell.prepared.capture_s for cell in cells if cell.prepared)
    if took := _span(captures, lambda value: f"{value:.2f}"):
        yield f"CUDA graph of the whole step: captured in {took} s before the first step, not in step times"


def _compiling(cells: Sequence[CellState]) -> Iterator[str]:
    for mode in dict.fromkeys(cell.spec.compile for cell in cells if cell.spec.compile != "off"):
        here = [cell for cell in cells if cell.spec.compile == mode]
        prepared = [cell.prepared for cell in here if cell.prepared]
        if took := _span((each.compile_s for each in prepared), lambda value: f"{value:.1f}"):
            graphs = _span((each.graphs for each in prepared), lambda value: f"{value:.0f}")
            yield (
                f"torch.compile {mode}: {took} s before the first step, not in step times; graphs: {graphs}; the "
                f"optimizer is not compiled"
            )
        breaks = dict.fromkeys(reason for each in prepared for reason in each.graph_breaks)
        yield from (f"graph break: {reason}" for reason in breaks)
        if again := sum(cell.finished.recompilations for cell in here if cell.finished):
            yield f"torch.compile {mode} compiled again {counted(again, 'time')} during the steps"


def _span(values: Iterable[float | None], show: Callable[[float], str]) -> str:
    """``3.1``, or ``3.1 to 4.0`` of several; empty of none."""
    known = sorted(value for value in values if value is not None)
    return " to ".join(dict.fromkeys(show(value) for value in (*known[:1], *known[-1:])))
