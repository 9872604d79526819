"""Reads a session from its log: at once (`load`), steps and samples at first use; or at its own pace (`replay`)."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cs336_tui.config.reading import open_regular
from cs336_tui.events.codec import from_line
from cs336_tui.events.events import DeviceSampled, Event, Notice, Stage, StepsTimed
from cs336_tui.session.log import DAMAGE, TORN, LogError, LogReader, SkippedLines, line_prefix
from cs336_tui.session.state import SessionState

_STEPS, _SAMPLE = line_prefix(StepsTimed), line_prefix(DeviceSampled)
_LONG = (_STEPS, _SAMPLE)  # the lines that make a log long: steps and device samples
LONGEST_PAUSE_S = 2.0
"""A longer pause between runs is cut to this."""
_SLICE_S = 0.1


@contextmanager
def uncollected() -> Iterator[None]:
    """While entered, garbage is not looked for: that is a quarter of the time in which many events become a state."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@uncollected()
def load(path: Path) -> SessionState:
    """The session of a log, without a torn last line and damaged steps and samples. Other damage raises `LogError`."""
    try:
        file = open_regular(path)  # stays open for the steps, so that the log may be deleted meanwhile
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}") from None
    state = SessionState()
    runs: list[tuple[SkippedLines, int | None]] = []
    at_end: SkippedLines | None = None
    reader = LogReader(path)
    for event in reader.skim(_LONG):
        if isinstance(event, SkippedLines):
            at_end = event
            runs.append((event, state.current))
            for part, named in _named(file, event) if state.side_by_side else ((event, ()),):
                for cell, stage in state.surrounded(named):
                    if not isinstance(cell.unread, _Unread):
                        cell.read_later(_Unread(file, cell.cell))
                    assert isinstance(cell.unread, _Unread)
                    cell.unread.runs.append((part, stage))
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
    """The place in the log of one attempt's steps and of the samples meanwhile; the cell reads them from there."""

    def __init__(self, file: BinaryIO, cell: int) -> None:
        self._file, self._cell = file, cell
        self.runs: list[tuple[SkippedLines, Stage | None]] = []
        """Each with the cell's stage, None if it was over."""

    def steps(self) -> Iterator[StepsTimed]:
        for run, stage in self.runs:
            for event in _events(_text(self._file, run), _STEPS) if stage else ():
                if isinstance(event, StepsTimed) and event.cell == self._cell:
                    yield event

    def samples(self) -> Iterator[tuple[DeviceSampled, Stage | None]]:
        for run, stage in self.runs:
            for event in _events(_text(self._file, run), _SAMPLE):
                if isinstance(event, DeviceSampled) and (not event.cells or self._cell in event.cells):
                    yield event, stage


_OF_STEPS = re.compile(rb'"cell":(\d+)')
_OF_SAMPLE = re.compile(rb'"cells":\[([\d,]+)\]')  # no text has it: quotes within one are escaped


def _named(file: BinaryIO, run: SkippedLines) -> Iterator[tuple[SkippedLines, tuple[int, ...]]]:
    """The parts of a run of lines, each with the cells that its lines name; none of samples of all that run."""
    start = end = run.start
    cells: tuple[int, ...] | None = None
    for line in _text(file, run).splitlines(keepends=True):
        found = (_OF_STEPS if line.startswith(_STEPS) else _OF_SAMPLE).search(line)
        named = tuple(map(int, found[1].split(b","))) if found else ()
        if named != cells and cells is not None:
            yield SkippedLines(start, end), cells
            start = end
        cells = named
        end += len(line)
    if cells is not None:
        yield SkippedLines(start, end), cells


def _text(file: BinaryIO, run: SkippedLines) -> bytes:
    return os.pread(file.fileno(), run.end - run.start, run.start)  # threads may share the file


def _events(lines: bytes, prefix: bytes = b"") -> Iterator[Event]:
    for line in lines.splitlines():
        if not line.startswith(prefix):
            continue
        try:
            event = from_line(line)
        except DAMAGE:
            continue
        yield event


def _read_samples(state: SessionState, file: BinaryIO, runs: list[tuple[SkippedLines, int | None]]) -> None:
    """Restore the latest device samples, each with the cell that ran."""
    found: list[tuple[DeviceSampled, int | None]] = []
    for run, cell in reversed(runs):
        lines = _text(file, run)
        if _SAMPLE not in lines:
            continue
        samples = [event for event in _events(lines, _SAMPLE) if isinstance(event, DeviceSampled)]
        found += [(event, event.cells[0] if event.cells else cell) for event in reversed(samples)]
        if len(found) >= (state.devices.maxlen or 0):
            break
    state.devices.extend(reversed(found))
    state.machine_gpus = next((sample.machine_gpus for sample, _ in found if sample.machine_gpus), ())
    for sample, _ in reversed(found):
        state.samples |= dict.fromkeys(state.running.keys() & (sample.cells or state.running.keys()), sample)


class Pace:
    """The speed of a replay; another thread may change it. Speed 0 means at once."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        self.paused = False

    def wait(self, log_s: float, stop: threading.Event) -> bool:
        """Wait for `log_s` seconds of the log; True if `stop` was set meanwhile."""
        while self.paused or (log_s > 0.0 and self.speed):
            here_s = _SLICE_S if self.paused else min(log_s / self.speed, _SLICE_S)
            if stop.wait(here_s):
                return True
            if not self.paused:
                log_s -= here_s * self.speed
        return stop.is_set()


def replay(
    path: Path, sink: Callable[[Sequence[Event]], None], pace: Pace, stop: threading.Event | None = None
) -> None:
    """Hand the log's events to `sink` at a pace. Blocks until the end or `stop`. A notice ends a log whose last line
    was cut. Raises `LogError` at damage."""
    stop = stop or threading.Event()
    reader = LogReader(path)
    last_at: float | None = None
    batch: list[Event] = []
    try:
        for event in reader:
            pause = min(event.at - last_at, LONGEST_PAUSE_S) if last_at is not None else 0.0
            if (pause > 0.0 and pace.speed) or pace.paused:
                if batch:
                    sink(batch)
                    batch = []
                if pace.wait(pause, stop):
                    return
            last_at = event.at
            batch.append(event)
        if reader.torn:
            batch.append(Notice(at=last_at or 0.0, text=f"{path.name}: {TORN}"))
    finally:
        if batch and not stop.is_set():
            sink(batch)
