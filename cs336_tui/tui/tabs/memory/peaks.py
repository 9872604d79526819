"""Peaks of every cell of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cs336_tui.config.order import is_as_predicted
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import short
from cs336_tui.events.memory_report import MemoryReport
from cs336_tui.events.prediction import Prediction
from cs336_tui.export.tables import Column
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import NONE, ByteUnit
from cs336_tui.tui import format
from cs336_tui.tui.configure.preview import needs_of, run_alike
from cs336_tui.tui.keys import key_name
from cs336_tui.tui.tabs.memory.views import COLUMNS, category_name, difference
from cs336_tui.tui.titles import cell_columns, told_variants
from cs336_tui.tui.widgets.columns import shown_table, table_lines
from cs336_tui.tui.widgets.lines import wrapped
from cs336_tui.tui.widgets.rows import Page, message

if TYPE_CHECKING:
    from cs336_tui.analysis.memory import PhasePeaks

_EXPLAINED = (
    "by phase and step: recorded · pred.: predicted · timed: of the timed cell · diff: pred. step to timed or step · "
    "activ.: most activations and temporary memory at once, apart from all else"
)


class SpecPeaks(NamedTuple):
    """The peaks of one spec, bytes."""

    spec: CellSpec
    recorded: PhasePeaks | None
    cell: CellState | None
    """The latest cell that was timed or ran out of memory."""
    predicted: Prediction | None

    @property
    def timed_bytes(self) -> int | None:
        """The peak that the allocator counted while the cell was timed."""
        over = self.cell.finished if self.cell else None
        return over.peak_allocated_bytes if over and over.status == "ok" else None

    @property
    def largest_bytes(self) -> int:
        recorded = self.recorded.step if self.recorded else 0
        return max(recorded, self.timed_bytes or 0, self.predicted.peak_bytes if self.predicted else 0)


def peaks_page(state: SessionState, spec: CellSpec | None, width: int, columns_page: int = 0) -> Page:
    """Recorded, timed and predicted peaks of all cells and reports; `spec`'s row is marked."""
    rows = _all_peaks(state)
    if not rows:
        records, runs = key_name("report.make"), key_name("app.run")
        return message(f"No peaks yet: {records} records a cell's memory, {runs} runs cells.", width)
    unit = ByteUnit.for_largest(max(row.largest_bytes for row in rows))
    key = run_alike(spec) if spec else None
    variants = {name: {value: short(value) for value in values} for name, values in
                told_variants(row.spec for row in rows).items()}  # fmt: skip
    ranks = {"batch": 7, "pass": 2, "precision": 1, "device": 8}
    recorded = all(row.spec.recording for row in rows)
    here = Column[SpecPeaks]("here", " ", left=True, text=lambda row: ">" if run_alike(row.spec) == key else " ")
    columns = [here, *cell_columns(lambda row: row.spec, ranks, variants, recorded=recorded), *_peak_columns(unit)]
    drawn = table_lines(shown_table(rows, columns), width, page=columns_page, binding=COLUMNS)
    details = {place: _peak_details(row) for place, row in enumerate(rows)}
    explained = wrapped(f"Peak memory, {unit.name} · {_EXPLAINED}", width, "muted")
    return Page((*explained, *drawn.heading), tuple(drawn.rows), details, drawn.pages)


def _peak_columns(unit: ByteUnit) -> tuple[Column[SpecPeaks], ...]:
    def recorded(key: str, rank: int = 0) -> Column[SpecPeaks]:
        return Column(key, rank=rank, text=lambda row: figure(getattr(row.recorded, key, None)))

    def predicted(key: str, title: str, rank: int) -> Column[SpecPeaks]:
        return Column(key, title, rank=rank, text=lambda row: figure(getattr(row.predicted, key, None)))

    def figure(size_bytes: int | None, unknown: str = NONE) -> str:
        return unknown if size_bytes is None else unit.figure(size_bytes)

    def timed(row: SpecPeaks) -> str:
        if row.cell is None or row.cell.status == "oom":
            return "OOM" if row.cell else NONE
        return figure(row.timed_bytes, format.NOT_AVAILABLE)

    return (
        recorded("forward", 3),
        predicted("forward_peak_bytes", "pred. forward", 6),
        recorded("backward", 9),
        recorded("optimizer", 10),
        recorded("step"),
        predicted("peak_bytes", "pred. step", 1),
        Column("timed", rank=4, text=timed),
        Column("diff", rank=6, text=_difference),
        recorded("activations", 2)._replace(title="activ."),
        predicted("activation_peak_bytes", "pred. activ.", 5),
    )


def _all_peaks(state: SessionState) -> list[SpecPeaks]:
    """The peaks sorted as in the course's tables: by model, context, precision, pass."""
    from cs336_tui.analysis.memory import phase_peaks

    recorded = {run_alike(row.spec): row for row in phase_peaks(state.contents(MemoryReport))}
    cells: dict[CellSpec, CellState] = {}
    specs: dict[CellSpec, CellSpec] = {key: row.spec for key, row in recorded.items()}
    for cell in state.cells.values():
        specs.setdefault(run_alike(cell.spec), cell.spec)
        if cell.status in ("ok", "oom"):
            cells[run_alike(cell.spec)] = cell
    found = [
        SpecPeaks(spec, recorded.get(key), cells.get(key), _prediction(state, spec, recorded.get(key)))
        for key, spec in specs.items()
    ]

    def order(row: SpecPeaks) -> tuple[int, str, int, int, str, str]:
        spec = row.spec
        model = spec.num_layers * spec.d_model * (spec.d_model + spec.d_ff)
        return model, spec.size, spec.context_length, spec.batch_size, spec.precision, spec.pass_

    return sorted((row for row in found if row.recorded or row.cell or row.predicted), key=order)


def _prediction(state: SessionState, spec: CellSpec, recorded: PhasePeaks | None) -> Prediction | None:
    if known := state.predictions.get(needs_of(spec)):
        return known
    report = state.content_of(MemoryReport, recorded.spec) if recorded else None
    return report.prediction if report else None


def _difference(row: SpecPeaks) -> str:
    """Predicted to measured peak; a prediction is of the model as it is written, neither compiled nor captured."""
    recorded, predicted = row.recorded, row.predicted
    measured = row.timed_bytes or (recorded and (recorded.allocator or recorded.step)) or 0
    if not (predicted and measured and is_as_predicted(row.spec)):
        return NONE
    return difference(predicted.peak_bytes, measured).text.strip("()")


def _peak_details(row: SpecPeaks) -> str:
    size = format.size
    lines = [format.plain(row.spec.title), f"batch: {row.spec.batch_size}"]
    if recorded := row.recorded:
        lines += [
            f"recorded: forward {size(recorded.forward)}, backward {size(recorded.backward)}, "
            f"optimizer {size(recorded.optimizer)}, whole step {size(recorded.step)}, "
            f"activations alone {size(recorded.activations)}",
            f"allocator's own peak over the recorded step: {size(recorded.allocator)}",
        ]
    if row.cell and row.cell.finished:
        over = row.cell.finished
        lines.append(
            f"while timed ({over.status}): allocated {size(over.peak_allocated_bytes, format.NOT_AVAILABLE)}, "
            f"reserved {size(over.peak_reserved_bytes, format.NOT_AVAILABLE)}"
        )
    if predicted := row.predicted:
        lines += [
            f"predicted: forward {size(predicted.forward_peak_bytes)}, whole step {size(predicted.peak_bytes)} "
            f"(in {predicted.peak_phase}), activations alone {size(predicted.activation_peak_bytes)}",
            "predicted peak: " + ", ".join(f"{category_name(c)} {size(b)}" for c, b in predicted.by_category.items()),
        ]
    return "\n".join(lines)
