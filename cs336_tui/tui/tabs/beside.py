"""Cells that run side by side, in words: their lanes, jobs and nodes, what a cell waits for, and how many do what."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cs336_tui.events.events import Lane
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.tui import format
from cs336_tui.tui.tabs import status
from cs336_tui.tui.widgets.lines import Span

_COUNTED = (("running", "{} run"), ("queued", "{} wait"), ("ok", "{} ok"), ("oom", "{} OOM"), ("failed", "{} failed"),
            ("killed", "{} killed"), ("cancelled", "{} cancelled"), ("skipped", "{} skipped"))  # fmt: skip


def by_lane(state: SessionState) -> tuple[CellState, ...]:
    """The running cells, by lane; those without one in the order of their starts."""
    return tuple(sorted(state.running_cells, key=lambda cell: cell.lanes[:1]))


def ranges(numbers: Iterable[int]) -> str:
    """``0–3, 6`` of 0, 1, 2, 3 and 6."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ", ".join("–".join(map(str, each)) for each in found)


def place(lane: Lane) -> str:
    """The device of a lane, with its machine and, on a CPU, its cores."""
    cores = f" ({'core' if len(lane.cores) == 1 else 'cores'} {ranges(lane.cores)})" if lane.cores else ""
    return " ".join(filter(None, (lane.machine, lane.device))) + cores


def lanes_of(state: SessionState, cell: CellState) -> str:  # noqa: ARG001  # as `job_of`
    """The numbers of the lanes that a cell takes or took, from 0."""
    return ranges(cell.lanes)


def job_of(state: SessionState, cell: CellState) -> str:
    """Slurm's name of the cell's job; of other launchers its number in the session."""
    if (job := state.job_of(cell)) is None:
        return ""
    return format.plain(job.submitted.id if job.submitted.launcher == "slurm" else job.submitted.job)


def node_of(state: SessionState, cell: CellState) -> str:
    """The machines that a cell runs or ran on, as far as they are known."""
    machines = {state.lanes[lane].lane.machine: None for lane in cell.lanes if lane in state.lanes}
    if named := ", ".join(filter(None, machines)):
        return format.plain(named)
    job = state.job_of(cell)
    return format.plain(job.node) if job else ""


def waits_for(state: SessionState, cell: CellState) -> str:
    """The reason for which a waiting cell waits: ``queued``, ``pending: Resources``."""
    job = state.job_of(cell)
    if job is None:
        return "queued"
    if job.stage == "running":
        return "queued, its job runs"
    told = "pending" if job.stage == "pending" else "job over"
    return f"{told}: {format.plain(job.reason)}" if job.reason else told


def stage_of(state: SessionState, cell: CellState) -> Span:
    """The state of a cell that waits or runs: ``▶ measuring 3/10``, ``· pending: Resources``."""
    if cell.status == "running":
        return Span(f"▶ {status.stage(cell)}", "strong")
    return Span(f"· {waits_for(state, cell)}", "muted")


def totals(state: SessionState) -> str:
    """The number of cells by status: ``8 run · 4 wait · 7 ok · 1 OOM``."""
    counts = dict.fromkeys((key for key, _ in _COUNTED), 0)
    for cell in state.cells.values():
        counts[cell.status] += 1
    return " · ".join(text.format(counts[key]) for key, text in _COUNTED if counts[key])


def where(state: SessionState, cell: CellState) -> str:
    """The lanes, device, job and node of a cell: ``lane 3, cuda:3``, ``job 7_1 on n2, cuda:0``."""
    parts: list[str] = []
    if job := state.job_of(cell):
        node = node_of(state, cell)
        parts.append(f"{job.submitted.launcher} job {job_of(state, cell)}" + (f" on {node}" if node else ""))
    if cell.lanes:
        parts.append(f"lane{'s' * (len(cell.lanes) > 1)} {ranges(cell.lanes)}")
    lanes = [msgspec.structs.replace(state.lanes[lane].lane, machine="") for lane in cell.lanes if lane in state.lanes]
    devices = list(dict.fromkeys(map(place, lanes))) or [cell.spec.device]
    return ", ".join((*parts, *(devices if len(devices) < 3 else (devices[0], "…", devices[-1]))))
