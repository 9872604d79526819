"""A session's cells in words: which ones an export shows, what each is called, how it ended, which memory it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from cs336_tui.analysis.fields import size_label, warmup_done
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.reports import KernelReport, MemoryReport
from cs336_tui.export.tables import Value
from cs336_tui.session.cell_state import CellState
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import gigabytes
from cs336_tui.stats.ratio import Ratio
from cs336_tui.stats.summaries import Summary


def cells_with_results(state: SessionState) -> list[CellState]:
    """Cells that have something to show: those that ended by themselves and those with a timed step."""
    return [cell for cell in state.cells.values() if has_result(cell)]


def progress(state: SessionState) -> str:
    """The number of the session's cells that ended by themselves, by their ending."""
    endings = Counter(cell.status for cell in state.finished_cells)
    cancelled = endings.pop("cancelled", 0)
    line = f"{endings.total()} of {len(state.cells)} cells finished"
    if endings:
        line += f" ({', '.join(f'{number} {status}' for status, number in endings.items())})"
    return f"{line}, {cancelled} cancelled" if cancelled else line


def failed_cells(state: SessionState) -> list[CellState]:
    return [cell for cell in state.cells.values() if cell.status in ("oom", "failed", "killed")]


def title_of(cell: CellState) -> str:
    """The cell's name among its neighbours, for a line of text."""
    return f"{cell.spec.title} · batch {cell.spec.batch_size} · warm-up {warmup_done(cell)}"


def status_of(cell: CellState) -> str:
    if cell.finished is None:
        spec = cell.spec
        most = _most(spec.total_steps, automatic=spec.warmup_auto or spec.steps_auto is not None)
        return f"unfinished, {cell.steps_done} of {most} steps"
    if retries := cell.finished.num_alloc_retries:
        return f"{cell.status}, {retries} allocator retries"
    return cell.status


def ending_of(cell: CellState) -> str:
    """The progress of a cell without a full result, and why it went no further; one line."""
    stage = f" in stage {cell.stage}" if cell.stage else ""
    spec = cell.spec
    warmup = f"{len(cell.warmup_times_s)} of {_most(spec.warmup_steps, automatic=spec.warmup_auto)} warm-up"
    most = _most(spec.measure_steps, automatic=spec.steps_auto is not None)
    measured = f"{len(cell.step_times_s)} of {most} measured steps"
    finished = cell.finished
    if finished and finished.phase:
        stage += f", phase {finished.phase}"
    error = finished.error if finished and finished.error else "no reason reported"
    return f"{cell.status}{stage}, after {warmup} and {measured}: {error}{_memory_at_the_end(cell)}"


def _most(steps: int, *, automatic: bool) -> str:
    """A number of steps that was asked for, as a ceiling where the number itself is automatic."""
    return f"at most {steps}" if automatic else str(steps)


def _memory_at_the_end(cell: CellState) -> str:
    """The size that could not be allocated and the largest peak before that, if known."""
    if cell.status != "oom" or cell.finished is None:
        return ""
    failed, peak = cell.finished.failed_allocation_bytes, cell.finished.peak_allocated_bytes
    parts = [f"{gigabytes(failed)} GB could not be allocated"] if failed else []
    parts += [f"peak allocated until then {gigabytes(peak)} GB"] if peak else []
    return "".join(f"; {part}" for part in parts)


def peak_allocated(cell: CellState) -> int | None:
    return cell.finished.peak_allocated_bytes if cell.finished else None


def peak_rss(cell: CellState) -> int | None:
    return cell.finished.peak_rss_bytes if cell.finished else None


def shows_allocated(cells: Iterable[CellState]) -> bool:
    return any(peak_allocated(cell) is not None for cell in cells)


def shows_rss(cells: Iterable[CellState]) -> bool:
    """True if some cell ran where no allocator counts the device's memory, as on the CPU."""
    return any(
        peak_rss(cell) is not None and peak_allocated(cell) is None and not cell.spec.device.startswith("cuda")
        for cell in cells
    )


def has_result(cell: CellState) -> bool:
    """True if the cell has something to show: it ended by itself, or has a timed step."""
    return _ended_by_itself(cell) or bool(cell.steps_done)


def _ended_by_itself(cell: CellState) -> bool:
    return cell.is_over and cell.status != "cancelled"


def cell_record(spec: CellSpec) -> dict[str, Value]:
    """The keys that tell records of several cells apart where they stand in one list, as in CSV."""
    return {
        "size": size_label(spec), "context": spec.context_length, "batch": spec.batch_size, "pass": spec.pass_,
        "variants": ", ".join(spec.variants), "precision": spec.precision, "device": spec.device,
    }  # fmt: skip


def summary_record(name: str, summary: Summary | None) -> dict[str, Value]:
    """Mean, std and number of the steps of a side, in seconds."""
    return {
        f"{name}_mean_s": summary.mean_s if summary else None,
        f"{name}_std_s": summary.std_s if summary else None,
        f"{name}_n": summary.n if summary else 0,
    }


def ratio_record(ratio: Ratio | None, *keys: str) -> dict[str, Value]:
    """The fields of a ratio, all but the ratio itself unless `keys` name it."""
    return {key: getattr(ratio, key) if ratio else None for key in (*keys, "low", "high", "level", "method")}


def report_caption(report: KernelReport | MemoryReport, what: str) -> str:
    spec = report.spec
    return f"{what}: {spec.title} · batch {spec.batch_size} · {report.device_name}, torch {report.torch}"
