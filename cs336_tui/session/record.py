"""One finished cell as the record that every export carries; the field names are a contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from cs336_tui.environment import Environment
from cs336_tui.events import InForce, Stage, Status
from cs336_tui.session.state import CellState, SessionState
from cs336_tui.spec import RunSpec
from cs336_tui.stats import Summary

RECORD_SCHEMA = 1


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one cell. Lists hold one value per step, seconds, oldest first; `phase_times_s` is keyed by phase.

    `stage` and `step` say how far it got when its status is not ``ok``.
    """

    cell: int
    spec: RunSpec
    repeat: int
    """Which run of its spec it is, from 1."""
    environment: int | None
    """The machine that it ran on, as its place in the document's `environments`."""
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
    failed_allocation_bytes: int | None
    stage: Stage | None
    step: int | None
    error: str | None


class CellWithoutResult(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that waits, runs or was skipped; `reason` says why it was skipped."""

    cell: int
    spec: RunSpec
    repeat: int
    status: Literal["queued", "running", "skipped"]
    reason: str | None = None


class SessionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--format json`` prints. `environment` is the machine as it was read last, `environments` are all that
    cells ran on."""

    schema: int
    session: str | None
    name: str
    note: str
    commands: tuple[str, ...]
    environment: Environment | None
    environments: tuple[Environment, ...]
    runs: tuple[RunRecord, ...]
    without_result: tuple[CellWithoutResult, ...]


def record_of(cell: CellState, ddof: int, environment: int | None = None) -> RunRecord:
    """The record of a cell that is over. Raises ValueError for one that is not."""
    finished = cell.finished
    if finished is None:
        raise ValueError(f"cell {cell.cell} is {cell.status}, not over")
    return RunRecord(
        cell=cell.cell,
        spec=cell.spec,
        repeat=cell.repeat,
        environment=environment,
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
        failed_allocation_bytes=finished.failed_allocation_bytes,
        stage=finished.stage,
        step=finished.step,
        error=finished.error,
    )


def document_of(state: SessionState, cells: Sequence[CellState] | None = None) -> SessionDocument:
    """The session's cells, or the chosen ones of them, in the order in which they were queued."""
    shown = tuple(state.cells.values()) if cells is None else cells
    environments: dict[Environment, int] = {}
    runs: list[RunRecord] = []
    rest: list[CellWithoutResult] = []
    for cell in shown:
        if cell.is_over:
            machine = cell.environment
            place = environments.setdefault(machine, len(environments)) if machine else None
            runs.append(record_of(cell, state.ddof, place))
        else:
            rest.append(_without_result(cell))
    return SessionDocument(
        schema=RECORD_SCHEMA,
        session=state.started.session if state.started else None,
        name=state.name,
        note=state.note,
        commands=tuple(state.commands),
        environment=state.environment,
        environments=tuple(environments),
        runs=tuple(runs),
        without_result=tuple(rest),
    )


def _without_result(cell: CellState) -> CellWithoutResult:
    status: Literal["queued", "running", "skipped"] = cell.status if cell.status in ("running", "skipped") else "queued"
    return CellWithoutResult(
        cell=cell.cell, spec=cell.spec, repeat=cell.repeat, status=status, reason=cell.skipped_because
    )
