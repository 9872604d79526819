"""What came of the variants that cells were run in: kernels really used, sources, compiling and capturing, in lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from cs336_tui.config.variants import is_imported
from cs336_tui.session.cell_state import CellState


def variant_notes(cells: Sequence[CellState]) -> Iterator[str]:
    """Nothing of cells of the reference model as it is written."""
    yield from _sources(cells)
    yield from _attentions(cells)
    yield from _compiling(cells)
    yield from _capturing(cells)


def _sources(cells: Sequence[CellState]) -> Iterator[str]:
    """Of which source the user's own code was."""
    found: dict[str, dict[str, None]] = {}
    for cell in cells:
        spec = cell.spec
        if spec.brings_own_code and cell.in_force and cell.in_force.model_revision:
            own = filter(is_imported, (spec.model, spec.attention, spec.optimizer, spec.loss))
            found.setdefault(", ".join(own), {})[cell.in_force.model_revision] = None
    for names, revisions in found.items():
        yield f"{names}: {' and '.join(revisions)}"


def _attentions(cells: Sequence[CellState]) -> Iterator[str]:
    """Which kernel each kind of attention came to, where there are several kinds."""
    found: dict[str, dict[str, None]] = {}
    for cell in cells:
        if not is_imported(cell.spec.model) and cell.in_force and cell.in_force.attention:
            found.setdefault(cell.spec.attention, {})[cell.in_force.attention] = None
    if len(found) > 1:
        told = "; ".join(f"{name} is {' or '.join(kernels)}" for name, kernels in found.items())
        yield f"attention as it was computed: {told}"


def _compiling(cells: Sequence[CellState]) -> Iterator[str]:
    for mode in dict.fromkeys(cell.spec.compile for cell in cells if cell.spec.compile != "off"):
        here = [cell for cell in cells if cell.spec.compile == mode]
        prepared = [cell.prepared for cell in here if cell.prepared]
        if took := _span((each.compile_s for each in prepared), lambda value: f"{value:.1f}"):
            graphs = _span((each.graphs for each in prepared), lambda value: f"{value:.0f}")
            yield (
                f"torch.compile {mode}: {took} s before the first step, in no step's time; graphs: {graphs}; the "
                f"optimizer is not compiled"
            )
        breaks = dict.fromkeys(reason for each in prepared for reason in each.graph_breaks)
        yield from (f"graph break: {reason}" for reason in breaks)
        if again := sum(cell.finished.recompilations for cell in here if cell.finished):
            yield f"torch.compile {mode} compiled again {again} times in the course of the steps"


def _capturing(cells: Sequence[CellState]) -> Iterator[str]:
    took = _span((cell.prepared.capture_s for cell in cells if cell.prepared), lambda value: f"{value:.2f}")
    if took:
        yield f"CUDA graph of the whole step: captured in {took} s before the first step, in no step's time"


def _span(values: Iterable[float | None], show: Callable[[float], str]) -> str:
    """``3.1``, or ``3.1 to 4.0`` of several; empty of none."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return ""
    low, high = show(known[0]), show(known[-1])
    return low if low == high else f"{low} to {high}"
