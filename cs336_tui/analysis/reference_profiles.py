"""Published peaks of memory and kernels beside one's own, which a cell, its reports or its prediction give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cs336_tui.analysis.fields import machine
from cs336_tui.analysis.kernel_cells import CellPart, cell_parts
from cs336_tui.analysis.kernels import short_name
from cs336_tui.analysis.measures import allocated_bytes, largest
from cs336_tui.analysis.merge import Result, grouped, measured, without_cells
from cs336_tui.analysis.published import PARTS, Figure, Published, points
from cs336_tui.analysis.reference import Match, matching
from cs336_tui.events.prediction import report_key
from cs336_tui.events.reports import MemoryReport
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import counted, gigabytes

_ORDER = (*PARTS, "")
_WHOLE = {"inference": "forward", "train-step": "step"}
"""Name of the whole pass as a part of its cell, if it is not the pass's."""


class PeakBeside(NamedTuple):
    """The peak of a part of a cell's pass, the whole if empty, and the published peaks of the same."""

    result: Result
    part: str
    peak_bytes: int | None
    """One's own; None where nothing gives it."""
    seen: str
    """The source of one's own: ``measured``, ``memory report`` or ``predicted``; empty if there is none."""
    matches: tuple[Match, ...]

    @property
    def name(self) -> str:
        """``peak``, ``peak in forward``."""
        return f"peak in {self.part}" if self.part else "peak"


class KernelsBeside(NamedTuple):
    """A part of a cell's step as it was profiled, and the published kernels of the same part."""

    part: CellPart
    matches: tuple[Match, ...]


def peaks_beside(
    states: Sequence[SessionState], results: Sequence[Result], rows: Sequence[Published] | None = None
) -> tuple[PeakBeside, ...]:
    """The peaks of each cell, or memory report without a cell, for which there are reference points. `rows` are the
    published and a person's own unless given. Raises `ReferenceFileError` when these cannot be read."""
    rows = sorted((row for row in points(rows) if row.holds("peak")), key=lambda row: _ORDER.index(row.part))
    groups = list(grouped(results, lambda result: (result.source, report_key(result.spec), machine(result))).values())
    groups += [[result] for result, _ in without_cells(states, results, MemoryReport)]
    found = []
    for cells in groups:
        for part, of_part in grouped(rows, lambda row: row.part).items():
            if matches := _matching(cells[0], of_part, "peak"):
                found.append(PeakBeside(cells[0], part, *_own_peak(cells, part), matches))
    return tuple(found)


def kernels_beside(
    states: Sequence[SessionState], results: Sequence[Result], rows: Sequence[Published] | None = None
) -> tuple[KernelsBeside, ...]:
    """The kernels of each part of a cell's step for which there are reference points, of whichever pass: a forward is
    the same within a training step. Arguments and errors as for `peaks_beside`."""
    rows = [row for row in points(rows) if row.holds("kernels")]
    by_part = grouped(rows, lambda row: row.part or _WHOLE.get(row.pass_, row.pass_))
    found: dict[tuple[object, ...], KernelsBeside] = {}
    for part in cell_parts(states, results):
        result = part.result
        key = result.source, report_key(result.spec), machine(result), part.part
        if key not in found and (matches := _matching(result, by_part.get(part.part, []), "kernels")):
            found[key] = KernelsBeside(part, matches)
    return tuple(found.values())


class Said(NamedTuple):
    """One's own figure in words, and each published one with its source, followed by its caveats."""

    here: str
    there: tuple[tuple[str, str], ...]


def peak_said(beside: PeakBeside) -> Said:
    """``2.7B train-step fp32, ctx 128, peak in forward: 46.5 GB here (predicted)``, ``46.0 GB (1.01): write-up A``."""
    size = "not known" if beside.peak_bytes is None else f"{gigabytes(beside.peak_bytes)} GB"
    ending = "OOM here" if beside.result.ending == "OOM" else ""
    how = ", ".join(filter(None, ("" if beside.seen == "measured" else beside.seen, ending)))
    there = []
    for match in beside.matches:
        published_bytes, ratio = match.row.peak_bytes, ""
        if beside.peak_bytes and published_bytes:
            ratio = f", here / there {beside.peak_bytes / published_bytes:.2f}"
        there.append((f"{gigabytes(published_bytes)} GB{ratio}: {_by(match.row)}", "; ".join(match.caveats)))
    how = f" ({how})" if how else ""
    return Said(f"{_cell(beside.result)}, {beside.name}: {size} here{how}", tuple(there))


def kernels_said(beside: KernelsBeside) -> Said:
    """``large forward fp32, ctx 1024, kernels of forward: 46.8 % gemm in 145 launches; matrix products 80.0 % here``;
    the same of each published one."""
    part = beside.part
    here = "not profiled here"
    if part.profiled and part.report:
        top = part.profiled.top
        matmul = part.profiled.matmul_share * 100
        own = (
            _figures(top.short, round(top.instances), top.share * 100, matmul)
            if top
            else _figures("", None, None, matmul)
        )
        here = f"{own} here{'' if part.report.activity == 'kernels' else ' (operators by self time)'}"
    there = []
    for row in (match.row for match in beside.matches):
        there.append(f"{_figures(kernel_name(row), row.top_launches, row.top_percent, row.matmul_percent)}: {_by(row)}")
    caveats = ("; ".join(match.caveats) for match in beside.matches)
    return Said(f"{_cell(part.result)}, kernels of {part.part}: {here}", tuple(zip(there, caveats, strict=True)))


def profiles_said(
    states: Sequence[SessionState], results: Sequence[Result], rows: Sequence[Published] | None = None
) -> Iterator[Said]:
    """Sentences on each peak, then on each part's kernels, with reference points. Raises as `peaks_beside`."""
    yield from map(peak_said, peaks_beside(states, results, rows))
    yield from map(kernels_said, kernels_beside(states, results, rows))


def _figures(name: str, launches: int | None, top_percent: float | None, matmul_percent: float | None) -> str:
    """``46.8 % gemm in 145 launches; matrix products 80.0 %``, without what is not known."""
    share = "" if top_percent is None else f"{top_percent:.1f} %"
    times = "" if launches is None else f"in {counted(launches, 'launch')}"
    products = "" if matmul_percent is None else f"matrix products {matmul_percent:.1f} %"
    return "; ".join(filter(None, (" ".join(filter(None, (share, name, times))), products)))


def kernel_name(row: Published) -> str:
    """The short name of its top kernel, empty without one; a name that was published cut off stays as it is."""
    whole = row.top_kernel and not row.top_kernel.endswith("...")
    return short_name(row.top_kernel) if whole else row.top_kernel


def _by(row: Published) -> str:
    return f"{row.source}, {row.device}"


def _cell(result: Result) -> str:
    spec = result.spec
    named = (f"{spec.size_label} {spec.pass_} {spec.precision}", f"ctx {spec.context_length}", *spec.variants)
    return ", ".join(named)


def _matching(result: Result, rows: Sequence[Published], figure: Figure) -> tuple[Match, ...]:
    """Those of the cell's context, on which these figures depend more than on anything else."""
    spec = result.spec
    alike = [row for row in rows if row.context in (None, spec.context_length)]
    return matching(spec, result.cell.in_force, alike, figure=figure, any_pass=figure == "kernels")


def _own_peak(cells: Sequence[Result], part: str) -> tuple[int | None, str]:
    """The peak and its source: of the whole what the allocator counted while it was timed, else what a memory report
    saw, else what is predicted."""
    result = cells[0]
    counted_bytes = largest(allocated_bytes(each.cell) for each in measured(cells))
    if not part and counted_bytes is not None:
        return counted_bytes, "measured"
    if report := result.state.content_of(MemoryReport, result.spec):
        peaks = {"": report.peak_bytes}
        for span in report.phases:
            peaks[span.phase] = max(span.peak_bytes, peaks.get(span.phase, 0))
        return peaks.get(part), "memory report" if part in peaks else ""
    prediction = result.state.prediction_of(result.spec)
    if prediction is None or (part and part not in ("forward", prediction.peak_phase)):
        return None, ""
    return (prediction.forward_peak_bytes if part == "forward" else prediction.peak_bytes), "predicted"
