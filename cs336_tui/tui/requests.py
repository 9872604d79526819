"""The functions that panes call when a person asks for something, and the structs that go with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from textual.dom import DOMNode

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.sweep import Sweep
from cs336_tui.events.peaks import WantedPeak
from cs336_tui.events.reports import ReportKind
from cs336_tui.session.states import CellState
from cs336_tui.session.store import SessionInfo

if TYPE_CHECKING:
    from cs336_tui.analysis.merge import Result
    from cs336_tui.analysis.tuning import Entry, Race

Wish = Literal["open", "rename", "annotate", "delete", "resume"]


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a run that are no part of its sweep. `timeout_s` ends a cell that takes longer, None never. All cells
    run `repeats` times, round after round."""

    ddof: int = 1
    timeout_s: float | None = None
    repeats: int = 1


class Requests(msgspec.Struct, frozen=True):
    """Each is the method that does it, mostly of a controller. Controllers import the panes, so panes cannot import
    them."""

    run: Callable[[Sweep, RunOptions], object]
    """Run the cells of a sweep that has no problems, or add them to those that run."""
    choices_changed: Callable[[], object]
    """The sweep in Configure, or what is wrong with it, is another."""
    queue_changed: Callable[[bool], object]
    """The queue is another; True: a cell waits again, and has to be run."""
    set_oom_rule: Callable[[bool], object]
    """Skip what is larger than a cell that ran out of memory, or no longer."""
    make_report: Callable[[ReportKind, CellSpec, int | None], object]
    """Make a report of a cell, with its number if it is in the session."""
    step_cell: Callable[[int], object]
    """Show the reports of the next cell, or of the one before for -1."""
    measure_peaks: Callable[[Sequence[WantedPeak]], object]
    """Measure these before the next cell."""
    turn: Callable[[CellSpec], object]
    """Time a cell of ranks in turns with the same without communication."""
    choose_cell: Callable[[CellState], object]
    """Make this cell the one that every pane is about."""
    follow_cell: Callable[[CellState], object]
    """Look at this cell in the Live pane until it ends."""
    read_cell: Callable[[CellState], object]
    """Show everything that is known of a cell."""
    keep_as_reference: Callable[[Sequence[Result]], object]
    """Keep these results as reference points."""
    save_best: Callable[[Race, Entry], object]
    """Save the best candidate of a race as a preset."""
    do_with_session: Callable[[Wish, SessionInfo], object]
    """Open, name, annotate, delete or resume a session."""
    open_recording: Callable[[str], object]
    """Open the files in a pasted text; empty: ask for a file."""
    stop_reading: Callable[[], object]
    """Stop reading a recording."""
    compare_marked: Callable[[], object]
    """The marked sessions have changed."""


def requests_of(node: DOMNode) -> Requests:
    """Those of the app in which a pane is."""
    app: Any = node.app
    found: Requests = app.requests
    return found
