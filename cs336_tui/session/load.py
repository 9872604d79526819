"""A whole session from its log at once. A long one opens quickly: steps are read when somebody asks for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from cs336_tui.events import CellRequeued, CellStarted, DeviceSampled, Event, Notice, StepsTimed, from_line
from cs336_tui.session.log import DAMAGE, TORN, LogError, LogReader, Run, line_prefix
from cs336_tui.session.state import DEVICE_HISTORY, CellState, SessionState

_SAMPLE = line_prefix(DeviceSampled)
_LONG = (line_prefix(StepsTimed), _SAMPLE)
"""Lines that make a log long: those of device samples, and of the steps of the cell that runs."""


def load(path: Path) -> SessionState:
    """The session as its log tells it; a torn last line is left out.

    Damage raises `LogError`, except in the lines of steps and device samples: such a line is left out.
    """
    try:
        file = path.open("rb")  # kept open while steps may be asked for, so that the log may be deleted meanwhile
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}") from None
    state = SessionState()
    steps: _Steps | None = None
    cell_of_steps: CellState | None = None
    runs: list[tuple[Run, int | None]] = []
    at_end: Run | None = None
    reader = LogReader(path)
    for event in reader.skim(_LONG):
        if isinstance(event, Run):
            at_end = event
            runs.append((event, state.current))
            if cell := state.running_cell:
                if steps is None or cell is not cell_of_steps:
                    steps, cell_of_steps = _Steps(file, cell.cell), cell
                    cell.read_steps_later(steps)
                steps.runs.append(event)
        else:
            at_end = None
            state.apply(event)
            if isinstance(event, CellStarted | CellRequeued) and steps and event.cell == steps.cell:
                steps = None
    state.break_off()
    _read_samples(state, file, runs)
    if at_end is not None:
        *_, state.last_at = state.last_at, *(event.at for event in _events(_text(file, at_end)))
    if reader.torn:
        state.apply(Notice(at=state.last_at or 0.0, text=f"{path.name}: {TORN}"))
    return state


class _Steps:
    """Where the steps of one attempt at a cell are; the cell reads them from there."""

    def __init__(self, file: BinaryIO, cell: int) -> None:
        self._file, self.cell = file, cell
        self.runs: list[Run] = []

    def __iter__(self) -> Iterator[StepsTimed]:
        for run in self.runs:
            for event in _events(_text(self._file, run)):
                if isinstance(event, StepsTimed) and event.cell == self.cell:
                    yield event


def _text(file: BinaryIO, run: Run) -> bytes:
    return os.pread(file.fileno(), run.end - run.start, run.start)  # keeps no place, as threads may share the file


def _events(lines: bytes) -> Iterator[Event]:
    """The events of lines of a log."""
    for line in lines.splitlines():
        try:
            event = from_line(line)
        except DAMAGE:
            continue
        yield event


def _read_samples(state: SessionState, file: BinaryIO, runs: list[tuple[Run, int | None]]) -> None:
    """Bring back the latest device samples, each with the cell that ran."""
    found: list[tuple[DeviceSampled, int | None]] = []
    for run, cell in reversed(runs):
        lines = _text(file, run)
        if _SAMPLE not in lines:
            continue
        found += [(event, cell) for event in reversed([*_events(lines)]) if isinstance(event, DeviceSampled)]
        if len(found) >= DEVICE_HISTORY:
            break
    state.devices.extend(reversed(found))
