"""Checks of the log of a session whose processes were killed and that was resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cs336_tui.events.events import CellFinished, CellStarted, StepsTimed
from cs336_tui.session.log import LogReader
from cs336_tui.session.store import load

CELLS, WARMUP, STEPS = 6, 1, 4000
"""Counts of every session that is killed."""


def wrong_in(log: Path, before: bytes) -> Iterator[str]:
    """Faults in the log of a session that was resumed to its end."""
    if not log.read_bytes().startswith(before):
        yield "a line that was whole before the kill is not where it was"
    state = load(log)
    if len(state.cells) != CELLS:
        yield f"{len(state.cells)} cells"
    for number, cell in state.cells.items():
        if (cell.status, len(cell.warmup_times_s), len(cell.step_times_s)) != ("ok", WARMUP, STEPS):
            yield f"cell {number} is {cell.status} with {len(cell.step_times_s)} steps"
    pids: dict[int, int] = {}
    steps: dict[int, list[tuple[str, int]]] = {}
    ended: set[int] = set()
    for event in LogReader(log):
        match event:
            case CellStarted():
                if event.cell in ended:
                    yield f"cell {event.cell} is run again though it had a result"
                assert event.pid is not None
                pids[event.cell], steps[event.pid] = event.pid, []
            case StepsTimed():
                steps[pids[event.cell]] += [(event.kind, event.first + i) for i in range(len(event.times_s))]
            case CellFinished(status="ok"):
                ended.add(event.cell)
    wanted = [("warm-up", number) for number in range(WARMUP)] + [("measured", number) for number in range(STEPS)]
    for pid, found in steps.items():
        if found != wanted[: len(found)]:
            yield f"steps of process {pid} are doubled, missing or out of order"


def steps_of(log: Path, pid: int) -> int:
    """Number of steps of this process in the log."""
    owner, count = 0, 0
    for event in LogReader(log):
        match event:
            case CellStarted():
                owner = event.pid or 0
            case StepsTimed() if owner == pid:
                count += len(event.times_s)
    return count


def lost_steps(log: Path, counts: Path) -> Iterator[str]:
    """Finished steps of a killed child that the log lacks: a forward begins after the step before was sent."""
    events = list(LogReader(log))
    done = {event.cell for event in events if isinstance(event, CellFinished) and event.status == "ok"}
    started = [event for event in events if isinstance(event, CellStarted)]
    last = {event.cell: event.pid for event in started}
    forwards = {event.pid: (counts / str(event.pid)).stat().st_size for event in started
                if (counts / str(event.pid)).exists()}  # fmt: skip
    beside = min((forwards[last[cell]] - WARMUP - STEPS for cell in done if last[cell] in forwards), default=0)
    for pid, begun in forwards.items():
        assert pid is not None
        if steps_of(log, pid) < begun - beside - 1:
            yield f"process {pid} began forward {begun}, and {steps_of(log, pid)} steps are logged"
