"""A whole session from its log at once. A long one opens quickly: steps, and the device samples that surround them, are
read when somebody asks for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from cs336_tui.config.reading import open_regular
from cs336_tui.events.events import DeviceSampled, Event, Notice, Stage, StepsTimed, from_line
from cs336_tui.session.cell_state import CellState
from cs336_tui.session.log import DAMAGE, TORN, LogError, LogReader, Run, line_prefix
from cs336_tui.session.state import DEVICE_HISTORY, SessionState

_STEPS, _SAMPLE = line_prefix(StepsTimed), line_prefix(DeviceSampled)
_LONG = (_STEPS, _SAMPLE)
"""Lines that make a log long: those of device samples, and of the steps of the cell that runs."""


def load(path: Path) -> SessionState:
    """The session as its log tells it; a torn last line is left out.

    Damage raises `LogError`, except in the lines of steps and device samples: such a line is left out.
    """
    try:
        file = open_regular(path)  # kept open while steps may be asked for, so that the log may be deleted meanwhile
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}") from None
    state = SessionState()
    runs: list[tuple[Run, int | None]] = []
    at_end: Run | None = None
    reader = LogReader(path)
    for event in reader.skim(_LONG):
        if isinstance(event, Run):
            at_end = event
            runs.append((event, state.current))
            for cell, stage in state.surrounded:
                _unread(cell, file).runs.append((event, stage))
        else:
            at_end = None
            state.apply(event)
    state.break_off()
    _read_samples(state, file, runs)
    if at_end is not None:
        *_, state.last_at = state.last_at, *(event.at for event in _events(_text(file, at_end)))
    if reader.torn:
        state.apply(Notice(at=state.last_at or 0.0, text=f"{path.name}: {TORN}"))
    return state


class _Unread:
    """Where the steps of one attempt at a cell are, and the samples meanwhile; the cell reads them from there."""

    def __init__(self, file: BinaryIO, cell: int) -> None:
        self._file, self._cell = file, cell
        self.runs: list[tuple[Run, Stage | None]] = []
        """Each with the cell's stage, None when it was over."""

    def steps(self) -> Iterator[StepsTimed]:
        for run, stage in self.runs:
            for event in _events(_text(self._file, run), _STEPS) if stage else ():
                if isinstance(event, StepsTimed) and event.cell == self._cell:
                    yield event

    def samples(self) -> Iterator[tuple[DeviceSampled, Stage | None]]:
        for run, stage in self.runs:
            for event in _events(_text(self._file, run), _SAMPLE):
                if isinstance(event, DeviceSampled):
                    yield event, stage


def _unread(cell: CellState, file: BinaryIO) -> _Unread:
    """What the cell is to read later of its present attempt."""
    if not isinstance(cell.unread, _Unread):
        cell.read_later(_Unread(file, cell.cell))
    assert isinstance(cell.unread, _Unread)
    return cell.unread


def _text(file: BinaryIO, run: Run) -> bytes:
    return os.pread(file.fileno(), run.end - run.start, run.start)  # keeps no place, as threads may share the file


def _events(lines: bytes, prefix: bytes = b"") -> Iterator[Event]:
    """The events of those lines of a log that begin with the prefix."""
    for line in lines.splitlines():
        if not line.startswith(prefix):
            continue
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
        found += [(event, cell) for event in reversed([*_events(lines, _SAMPLE)]) if isinstance(event, DeviceSampled)]
        if len(found) >= DEVICE_HISTORY:
            break
    state.devices.extend(reversed(found))
