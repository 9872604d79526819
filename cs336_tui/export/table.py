"""The results table: a row per cell, and what its numbers mean in a few lines under it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cs336_tui.export import markdown, provenance
from cs336_tui.export.cells import (
    cells_with_results,
    ending_of,
    failed_cells,
    peak_allocated,
    peak_rss,
    progress,
    shows_allocated,
    shows_rss,
    size_label,
    status_of,
    title_of,
)
from cs336_tui.quantities import count, fixed_milliseconds, gigabytes, millisecond_decimals
from cs336_tui.session.state import CellState, SessionState
from cs336_tui.spec import RunSpec
from cs336_tui.stats import Summary

NO_RESULTS = "No cell has a result yet."


class _Row(NamedTuple):
    cell: CellState
    summary: Summary | None

    def ms(self, field: str) -> str:
        """A field of the summary in ms, to the decimal place that the std supports."""
        if self.summary is None:
            return fixed_milliseconds(None, 0)
        decimals = millisecond_decimals(self.summary.mean_s, self.summary.std_s)
        return fixed_milliseconds(self.summary[field], decimals)


class _Column(NamedTuple):
    header: str
    show: Callable[[_Row], str]
    align: markdown.Align = "right"


_MODEL = (
    _Column("size", lambda row: size_label(row.cell.spec), "left"),
    _Column("context", lambda row: str(row.cell.spec.context_length)),
    _Column("batch", lambda row: str(row.cell.spec.batch_size)),
    _Column("pass", lambda row: row.cell.spec.pass_, "left"),
    _Column("precision", lambda row: row.cell.spec.precision, "left"),
    _Column("device", lambda row: row.cell.spec.device, "left"),
)
_TIMES = (
    _Column("warm-up", lambda row: str(row.cell.spec.warmup_steps)),
    _Column("n", lambda row: str(len(row.cell.step_times_s))),
    _Column("mean (ms)", lambda row: row.ms("mean_s")),
    _Column("std (ms)", lambda row: row.ms("std_s")),
    _Column("median (ms)", lambda row: row.ms("median_s")),
    _Column("min (ms)", lambda row: row.ms("min_s")),
    _Column("max (ms)", lambda row: row.ms("max_s")),
    _Column("tokens/s", lambda row: count(row.cell.tokens_per_s)),
)
_PEAK_ALLOCATED = _Column("peak allocated (GB)", lambda row: gigabytes(peak_allocated(row.cell)))
_PEAK_RSS = _Column("peak RSS (GB)", lambda row: gigabytes(peak_rss(row.cell)))
_STATUS = _Column("status", lambda row: status_of(row.cell), "left")


def results_markdown(state: SessionState) -> str:
    """The results table of a session and its footnotes, as GitHub-flavoured markdown."""
    cells = cells_with_results(state)
    if not cells:
        return f"{NO_RESULTS}\n"
    notes = (
        progress(state),
        *provenance.reading_notes(state, cells),
        *provenance.setting_notes(state, cells),
        *provenance.version_notes(state),
        *(f"{markdown.escape(title_of(cell))}: {markdown.escape(ending_of(cell))}" for cell in failed_cells(state)),
    )
    return f"{results_table(state)}\n\n{markdown.bullets(notes)}\n"


def results_table(state: SessionState) -> str:
    """A row per cell that is over or has a timed step, in the order in which they were queued."""
    rows = [_Row(cell, cell.summary(state.ddof)) for cell in cells_with_results(state)]
    if not rows:
        return NO_RESULTS
    columns = _columns([row.cell for row in rows])
    return markdown.table(
        [column.header for column in columns],
        [column.align for column in columns],
        [[column.show(row) for column in columns] for row in rows],
    )


def _columns(cells: Sequence[CellState]) -> tuple[_Column, ...]:
    varying = (
        _setting(name, read)
        for name, read in provenance.SETTINGS.items()
        if len({read(cell.spec) for cell in cells}) > 1
    )
    peaks = (_PEAK_ALLOCATED,) * shows_allocated(cells) + (_PEAK_RSS,) * shows_rss(cells)
    return (*_MODEL, *varying, *_TIMES, *peaks, _STATUS)


def _setting(name: str, read: Callable[[RunSpec], str]) -> _Column:
    return _Column(name, lambda row: read(row.cell.spec), "left")
