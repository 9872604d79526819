"""The progress of a headless run: a line a result; on a terminal, below them, the running cells and a bar."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Iterator
from io import StringIO
from itertools import chain
from typing import TextIO

from rich.cells import cell_len, set_cell_size

from cs336_tui.analysis.eta import eta_words, outlook_of, steps_so_far
from cs336_tui.cli.streams import StatusLines, is_verbose
from cs336_tui.events import events as ev
from cs336_tui.export.writing.texts import one_line
from cs336_tui.export.writing.verdicts import judgement_of
from cs336_tui.runner.lanes import lane_words
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import counted, duration, milliseconds

_REDRAW_S = 0.25
_MOST_NAMED = 8
"""Most cells that have a line each where several run side by side."""
_STAGES = {"compiling": "compiling the model", "capturing": "capturing a CUDA graph", "measuring": "measured"}
"""Stages, in the words of a line; the first two may take half a minute without an event."""
_WHOLE = 1000
"""Parts of a whole bar."""
_SHORTEST = 12
"""Characters that a title keeps."""
_SILENT = ("compiling", "capturing")
_COUNTING = ("warm-up", "measuring")


class RunProgress:
    """A line per finished cell and, on a terminal, lines below them that are redrawn in place: each running cell with
    its phase and running mean, and a bar over the session with the time that is left."""

    def __init__(self, state: SessionState, stream: TextIO) -> None:
        self._state, self._stream = state, stream
        self._lines = StatusLines(stream)
        self._live = self._lines.is_live
        self._drawn_at = 0.0
        if self._live:  # later it would take time from a cell
            import rich.progress  # noqa: F401

    def show(self, event: ev.Event) -> None:
        """Say what `event` changed; the state already holds it."""
        match event:
            case ev.CellFinished():
                self._line(self._result(self._state.cells[event.cell]))
            case ev.CellSkipped():
                cell = self._state.cells[event.cell]
                self._line(f"{self._place(cell)} {cell.spec.title}: skipped: {event.reason}")
            case ev.LanesOpened():
                self._line(f"{counted(len(event.lanes), 'lane')}: {', '.join(map(lane_words, event.lanes))}")
            case ev.LaneSetAside() if (lane := self._state.lanes.get(event.lane)) is not None:
                self._line(f"lane {event.lane}, {lane_words(lane.lane)}, was set aside: {event.reason}")
            case ev.ReportFinished():
                self._line(self._report(event))
            case ev.ReportStarted() | ev.ReportStage() if self._live:
                report = self._state.reports[event.report]
                self.say(f"{report.kind} of {report.spec.title} · {report.stage}")
            case ev.Notice():
                self._line(f"note: {event.text}")
            case ev.DeviceSampled() if self._live and (running := self._state.running_cell):
                if any(each.stage in _SILENT for each in self._state.running_cells):
                    self._redraw(running)
            case ev.JobSubmitted() | ev.JobChanged() if self._live:
                if time.monotonic() - self._drawn_at >= _REDRAW_S:
                    self.say(self._jobs())
            case ev.CellStarted() | ev.StageChanged() | ev.StepsTimed() if self._live:
                self._redraw(self._state.cells[event.cell])

    def say(self, text: str) -> None:
        """Show a text until there is something else to show."""
        if self._live:
            self._write([cut(text, "", self._width)])

    def clear(self) -> None:
        self._lines.clear()

    def _line(self, text: str) -> None:
        self.clear()
        if self._live and (width := self._width) > 2:  # a terminal would break within a word; some tell no width
            lines = (textwrap.wrap(line, width, subsequent_indent="  ") for line in text.splitlines())
            text = "\n".join(chain.from_iterable(lines))
        print(text, file=self._stream, flush=True)

    def _report(self, event: ev.ReportFinished) -> str:
        report = self._state.reports[event.report]
        took = duration(event.at - report.started_at)
        head = f"{report.kind} of {report.spec.title}"
        return f"{head}: made in {took}" if event.status == "ok" else f"{head}: {event.status}: {event.error or ''}"

    def _redraw(self, cell: CellState) -> None:
        if time.monotonic() - self._drawn_at >= _REDRAW_S:
            self._write([*self._running(cell), self._bar()])

    def _running(self, cell: CellState) -> Iterator[str]:
        """A line for each cell that runs; with many, how many more there are."""
        cells = self._state.running_cells if self._state.side_by_side else (cell,)
        most = max(min(_MOST_NAMED, self._lines.size.lines - 3), 1)
        yield from map(self._of_cell, cells[:most])
        if len(cells) > most:
            yield f"and {len(cells) - most} more"

    def _of_cell(self, cell: CellState) -> str:
        """``[3/19] small · ctx 512 · forward · measured 3/10 · 14.95 ms ± 0.06``; a title that is too long is cut."""
        told = self._stage(cell)
        if cell.running.n:
            mean, std = milliseconds(cell.running.mean, cell.running.std(self._state.ddof))
            told += f" · {mean} ms" + (f" ± {std}" if cell.running.n > self._state.ddof else "")
        return cut(f"{self._place(cell)} {cell.spec.title}", f" · {told}", self._width)

    def _stage(self, cell: CellState) -> str:
        """``measured 3/10``, ``compiling the model, 0:12``."""
        stage, now = cell.stage or "", self._state.last_at
        told = _STAGES.get(stage, stage)
        if stage in _COUNTING:
            return f"{told} {steps_so_far(cell, now)}"
        if stage in _SILENT and cell.stage_began_at is not None and now is not None:
            return f"{told}, {duration(max(now - cell.stage_began_at, 0.0))}"
        return told

    @property
    def _width(self) -> int:
        """Columns of a line."""
        return self._lines.size.columns - 1

    def _bar(self) -> str:
        """The share of the session's time that has passed, the cells that are over, and the time that is left."""
        state = self._state
        over = sum(cell.is_over for cell in state.cells.values())
        outlook = outlook_of(state)
        share, left_s = outlook.share, outlook.ends.last_s
        told = f"{over}/{counted(len(state.cells), 'cell')}" + ("" if left_s is None else f" · {eta_words(left_s)}")
        return bar(over / len(state.cells) if share is None else share, told, self._width)

    def _jobs(self) -> str:
        """The stages of the jobs, with the first reason why one waits."""
        jobs = self._state.jobs.values()
        stages = [job.stage for job in jobs]
        why = next((f" ({job.reason})" for job in jobs if job.stage == "pending" and job.reason), "")
        parts = [("running", "running"), ("pending", f"waiting{why}"), ("over", "over")]
        return "jobs: " + ", ".join(f"{stages.count(stage)} {word}" for stage, word in parts if stage in stages)

    def _write(self, lines: list[str]) -> None:
        self._lines.show(lines)
        self._drawn_at = time.monotonic()

    def _result(self, cell: CellState) -> str:
        again = f" · run {cell.repeat}" if cell.repeat > 1 else ""
        head = f"{self._place(cell)} {cell.spec.title}{again}: "
        finished = cell.finished
        if finished is None or finished.status != "ok" or not cell.running.n:
            status = finished.status if finished else cell.status
            return head + (f"{status}: {finished.error}" if finished and finished.error else status)
        mean, std = milliseconds(cell.running.mean, cell.running.std(self._state.ddof))
        judgement = judgement_of(cell, self._state)
        label = judgement.label if judgement else ""
        if self._live and not is_verbose():
            label, judgement = label.partition(",")[0], None
        verdict = f" · {label}" if label else ""
        why = f"\n  {judgement.sentence}" if judgement and judgement.is_doubted else ""
        return head + f"{mean} ms ± {std} std (n={cell.running.n}){verdict}{why}"

    def _place(self, cell: CellState) -> str:
        return f"[{cell.cell + 1}/{len(self._state.cells)}]"


def cut(title: str, end: str, width: int) -> str:
    """Both in one line of at most this width; what is too long is left out of the title's end."""
    title, end = one_line(title), one_line(end) and f" {one_line(end)}"
    room = max(width - cell_len(end), _SHORTEST)
    cut = title if cell_len(title) <= room else set_cell_size(title, room - 1).rstrip(" ·") + "…"
    return cut + end if cell_len(cut + end) <= width else set_cell_size(cut + end, width).rstrip()


def bar(share: float, told: str, width: int) -> str:
    """A bar that fills the width beside what it tells, by rich, in its colours unless ``NO_COLOR`` is set."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    file = StringIO()
    console = Console(
        file=file,
        width=max(width, 20),
        force_terminal=True,
        color_system="standard",
        no_color=bool(os.environ.get("NO_COLOR")),
        legacy_windows=False,
        _environ={},
    )
    columns = (BarColumn(None), TextColumn("{task.percentage:.0f} %"), TextColumn("{task.description}", markup=False))
    bar = Progress(*columns, console=console, auto_refresh=False, expand=True)
    bar.add_task(told, total=_WHOLE, completed=round(share * _WHOLE))
    console.print(bar.get_renderable(), end="")
    return file.getvalue().rstrip("\n")
