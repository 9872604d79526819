"""One finished cell as the record that every export carries; the field names are a contract."""

from __future__ import annotations

import msgspec

from cs336_tui.environment import Environment
from cs336_tui.events import InForce, Status
from cs336_tui.session.state import CellState, SessionState
from cs336_tui.spec import RunSpec
from cs336_tui.stats import Summary

RECORD_SCHEMA = 1


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one cell. Lists hold one value per step, seconds, oldest first; `phase_times_s` is keyed by phase."""

    cell: int
    spec: RunSpec
    status: Status
    num_params: int | None
    num_params_without_head: int | None
    in_force: InForce | None
    warmup_times_s: tuple[float, ...]
    step_times_s: tuple[float, ...]
    phase_times_s: dict[str, tuple[float, ...]]
    host_times_s: tuple[float, ...]
    summary: Summary | None
    tokens_per_s: float | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_rss_bytes: int | None
    num_alloc_retries: int | None
    error: str | None


class SessionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--format json`` prints."""

    schema: int
    session: str | None
    commands: tuple[str, ...]
    environment: Environment | None
    runs: tuple[RunRecord, ...]


def record_of(cell: CellState, ddof: int) -> RunRecord:
    """The record of a cell that is over. Raises ValueError for one that is not."""
    finished = cell.finished
    if finished is None:
        raise ValueError(f"cell {cell.cell} is {cell.status}, not over")
    return RunRecord(
        cell=cell.cell,
        spec=cell.spec,
        status=finished.status,
        num_params=cell.num_params,
        num_params_without_head=cell.num_params_without_head,
        in_force=cell.in_force,
        warmup_times_s=tuple(cell.warmup_times_s),
        step_times_s=tuple(cell.step_times_s),
        phase_times_s={name: tuple(times) for name, times in cell.phase_times_s.items()},
        host_times_s=tuple(cell.host_times_s),
        summary=cell.summary(ddof),
        tokens_per_s=cell.tokens_per_s,
        peak_allocated_bytes=finished.peak_allocated_bytes,
        peak_reserved_bytes=finished.peak_reserved_bytes,
        peak_rss_bytes=finished.peak_rss_bytes,
        num_alloc_retries=finished.num_alloc_retries,
        error=finished.error,
    )


def document_of(state: SessionState) -> SessionDocument:
    """Every finished cell of the session, in the order in which they were queued."""
    return SessionDocument(
        schema=RECORD_SCHEMA,
        session=state.started.session if state.started else None,
        commands=tuple(state.commands),
        environment=state.environment,
        runs=tuple(record_of(cell, state.ddof) for cell in state.finished_cells),
    )
