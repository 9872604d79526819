"""Tables and data of the largest cell that fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from cs336_tui.analysis.fitting import FIELD, Fit, step_of
from cs336_tui.analysis.measures import allocated_bytes
from cs336_tui.analysis.targets import Target
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.prediction import Prediction
from cs336_tui.export.estimates import PREDICTED, target_note
from cs336_tui.export.footnotes import ACTIVATIONS_MEAN
from cs336_tui.export.tables import Column, Table, Value, as_text, attributes, cell_record
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import gigabytes


class Fitted(NamedTuple):
    """The result of one search, with the predictions of the largest that fits and the next larger one, and how
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
    columns: list[Column[Fitted]] = [
        Column("size", left=True, text=lambda row: " · ".join((row.asked.size_label, *row.asked.variants))),
        Column(other),
        Column("pass", left=True),
        Column("precision", left=True),
        Column("device", rank=5, left=True),
        Column("largest", f"largest {by}", show=lambda value: "none" if value is None else str(value)),
        Column(
            "tokens", "tokens per step", rank=3, read=lambda row: row.fit.spec.tokens_per_step if row.fit.spec else None
        ),
        Column("peak_bytes", "peak (GB)", show=gigabytes),
        Column("activation_peak_bytes", "activation peak (GB)", rank=4, show=gigabytes),
        Column(
            "next",
            f"next larger {by}",
            text=lambda row: as_text(_next(row)) if row.fit.next_spec else f"not tried (limit {row.fit.limit})",
        ),
        Column("next_peak_bytes", "its peak (GB)", rank=2, show=gigabytes),
    ]
    if any(result.ran for result in results):
        columns.append(Column("outcome", left=True, text=_how_it_went))
    return Table.of(
        results,
        columns,
        record=_fit_record,
        caption=f"The largest {by} that fits",
        footnotes=_notes(results),
        label="fit",
    )


def fit_document(result: Fitted) -> dict[str, Any]:
    """One result as data: bytes, None for what there is not."""
    return {"asked": result.asked, "spec": result.fit.spec} | _fit_record(result)


def _next(result: Fitted) -> int | None:
    found: int | None = getattr(result.fit.next_spec, FIELD[result.fit.by], None)
    return found


def _fit_record(result: Fitted) -> dict[str, Value]:
    fit, target = result.fit, result.target
    return {
        **cell_record(result.asked),
        "device": target.name,
        **attributes(fit, "by", "largest"),
        **attributes(result.found, "peak_bytes", "activation_peak_bytes"),
        "next": _next(result),
        **attributes(result.following, "peak_bytes", prefix="next_"),
        **attributes(target, "free_bytes", "capacity_bytes", "context_bytes"),
        **attributes(fit, "limit", "predictions"),
        **attributes(result.ran, "status"),
        "measured_peak_bytes": _measured(result.ran),
        **attributes(result.ran_next, "status", prefix="next_"),
        "next_measured_peak_bytes": _measured(result.ran_next),
    }


def _how_it_went(result: Fitted) -> str:
    if result.ran is None:
        return "not run"
    said: str = "ran" if result.ran.status == "ok" else result.ran.status
    if measured := _measured(result.ran):
        said += f", peak allocated {gigabytes(measured)} GB"
    if after := result.ran_next:
        how = {"ok": " ran too", "oom": ": out of memory"}.get(after.status, f": {after.status}")
        said += f"; {getattr(after.spec, FIELD[result.fit.by])}{how}"
    return said


def _measured(cell: CellState | None) -> int | None:
    return allocated_bytes(cell) if cell else None


def _notes(results: Sequence[Fitted]) -> Iterator[str]:
    by = results[0].fit.by
    yield from {result.target.name: target_note(result.target) for result in results}.values()
    yield PREDICTED
    yield ACTIVATIONS_MEAN
    for step in sorted({step_of(result.asked, by) for result in results} - {1}):
        yield f"{by}s are tried in multiples of {step}"
    if any(result.found and result.found.reserved_bytes is None for result in results):
        yield (
            f"the largest leaves no room for memory that the allocator reserves but does not use: a {by} a little "
            f"smaller is safer; --confirm runs it"
        )
    else:
        yield f"the largest needs all the room there is: a {by} a little smaller is safer; --confirm runs it"
    for result in results:
        room = result.target.room_bytes(result.asked.ranks)
        if result.fit.largest is None and result.following and room is not None:
            short = result.following.needed_of(room) - room
            smallest = getattr(result.fit.next_spec, FIELD[by])
            asked = result.asked
            title = ", ".join((asked.size_label, asked.pass_, asked.precision, *asked.variants))
            yield f"{title}: not even {by} {smallest} fits, by {gigabytes(short)} GB"
