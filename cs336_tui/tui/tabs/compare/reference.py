"""Reference points beside the own cells, for a window of some width."""

from __future__ import annotations

from collections.abc import Sequence

from cs336_tui.analysis.merge import Result, measured
from cs336_tui.analysis.reference import REMARK, ReferenceFileError, matching, own, published, sentence
from cs336_tui.config.spec import CellSpec
from cs336_tui.tui.tabs.page import Page, message, wrapped
from cs336_tui.tui.widgets.lines import Line, line


def reference_page(results: Sequence[Result], width: int) -> Page:
    """A sentence a spec: its own mean, and what others had for the same model and pass, with every caveat."""
    cells: dict[CellSpec, list[Result]] = {}
    for result in measured(results):
        cells.setdefault(result.spec, []).append(result)
    if not cells:
        return message("No cell has been measured yet.", width)
    rows: list[Line] = []
    points = published()
    try:
        points = (*points, *own())
    except ReferenceFileError as error:
        rows += [*wrapped(f"! {error}", width, "caution", "  "), ()]
    for spec, runs in cells.items():
        steps = [time_s for run in runs for time_s in run.cell.step_times_s]
        said = sentence(spec, sum(steps) / len(steps), matching(spec, runs[0].cell.in_force, points))
        rows += wrapped(said, width, "text", "    ")
    rows += [(), *wrapped(f"Points to look at, not truth: {REMARK}.", width, "muted", "  ")]
    heading = (line(("Reference points", "title"), (" · + keeps these cells as your own", "muted")),)
    return Page(heading, tuple(rows))
