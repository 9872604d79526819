"""The largest batches or contexts that fit, as a table and as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from cs336_tui.analysis.estimates import Target
from cs336_tui.analysis.fields import size_label
from cs336_tui.analysis.fitting import FIELD, STEP, Fit
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.reports import Prediction
from cs336_tui.export.estimates import PREDICTED, target_note
from cs336_tui.export.tables import Column, Table, Value
from cs336_tui.session.cell_state import CellState
from cs336_tui.stats.quantities import UNKNOWN, gigabytes


class Fitted(NamedTuple):
    """What was found for one cell, with the predictions of the largest that fits and the next larger one, and how
    both went where they were run."""

    asked: CellSpec
    fit: Fit
    target: Target
    found: Prediction | None
    following: Prediction | None
    ran: CellState | None = None
    ran_next: CellState | None = None


def fit_table(results: Sequence[Fitted]) -> Table:
    """A row a cell; all are searched by the same."""
    by = results[0].fit.by
    other = "context" if by == "batch" else "batch"
    ran = any(result.ran for result in results)
    headers = ("size", other, "pass", "precision", "device")
    return Table(
        columns=(
            *(Column(header, left=header != other) for header in headers),
            Column(f"largest {by}"), Column("tokens per step"), Column("peak (GB)"), Column(f"next larger {by}"),
            Column("its peak (GB)"), *(Column("outcome", left=True),) * ran,
        ),
        rows=tuple(_row(result, ran=ran) for result in results),
        records=tuple(_record(result) for result in results),
        caption=f"The largest {by} that fits",
        footnotes=tuple(_notes(results)),
        label="fit",
    )  # fmt: skip


def fit_document(result: Fitted) -> dict[str, Any]:
    """One result as data: bytes, None for what there is not."""
    return {"asked": result.asked, "spec": result.fit.spec} | _record(result)


def _row(result: Fitted, *, ran: bool) -> tuple[str, ...]:
    spec, fit = result.asked, result.fit
    other = spec.context_length if fit.by == "batch" else spec.batch_size
    return (
        " · ".join((size_label(spec), *spec.variants)), str(other), spec.pass_, spec.precision, result.target.name,
        "none" if fit.largest is None else str(fit.largest),
        str(fit.spec.tokens_per_step) if fit.spec else UNKNOWN,
        gigabytes(result.found.peak_bytes) if result.found else UNKNOWN,
        str(getattr(fit.next_spec, FIELD[fit.by])) if fit.next_spec else f"not tried (limit {fit.limit})",
        gigabytes(result.following.peak_bytes) if result.following else UNKNOWN,
        *(_outcome(result),) * ran,
    )  # fmt: skip


def _record(result: Fitted) -> dict[str, Value]:
    spec, fit, target = result.asked, result.fit, result.target
    return {
        "size": size_label(spec), "context": spec.context_length, "batch": spec.batch_size, "pass": spec.pass_,
        "variants": ", ".join(spec.variants), "precision": spec.precision, "device": target.name,
        "by": fit.by, "largest": fit.largest,
        "peak_bytes": result.found.peak_bytes if result.found else None,
        "next": getattr(fit.next_spec, FIELD[fit.by]) if fit.next_spec else None,
        "next_peak_bytes": result.following.peak_bytes if result.following else None,
        "free_bytes": target.free_bytes, "capacity_bytes": target.capacity_bytes, "context_bytes": target.context_bytes,
        "limit": fit.limit, "predictions": fit.predictions,
        "status": result.ran.status if result.ran else None,
        "measured_peak_bytes": _measured(result.ran),
        "next_status": result.ran_next.status if result.ran_next else None,
        "next_measured_peak_bytes": _measured(result.ran_next),
    }  # fmt: skip


def _outcome(result: Fitted) -> str:
    """How the largest and the next larger one went."""
    if result.ran is None:
        return "not run"
    said: str = "ran" if result.ran.status == "ok" else result.ran.status
    if measured := _measured(result.ran):
        said += f", peak allocated {gigabytes(measured)} GB"
    if result.ran_next is not None:
        value = getattr(result.ran_next.spec, FIELD[result.fit.by])
        status = result.ran_next.status
        said += (
            f"; {value} ran too" if status == "ok" else f"; {value}: {'out of memory' if status == 'oom' else status}"
        )
    return said


def _measured(cell: CellState | None) -> int | None:
    return cell.finished.peak_allocated_bytes if cell and cell.finished else None


def _notes(results: Sequence[Fitted]) -> list[str]:
    targets = {result.target.name: target_note(result.target) for result in results}
    by = results[0].fit.by
    notes = [*targets.values(), PREDICTED]
    if STEP[by] > 1:
        notes.append(f"{by}s are looked at in multiples of {STEP[by]}")
    notes.append(
        f"the largest leaves no room for what a caching allocator reserves and does not hand out: "
        f"a {by} a little smaller is safer, --confirm runs it"
    )
    for result in results:
        if result.fit.largest is None and result.following and result.target.free_bytes is not None:
            short = result.following.peak_bytes + result.target.context_bytes - result.target.free_bytes
            smallest = getattr(result.fit.next_spec, FIELD[by])
            asked = result.asked
            title = ", ".join((size_label(asked), asked.pass_, asked.precision, *asked.variants))
            notes.append(f"{title}: not even {by} {smallest} fits, by {gigabytes(short)} GB")
    return notes
