"""The measured cells as text: step times by warm-up setting, and reference points beside the own means."""

from __future__ import annotations

from collections.abc import Sequence

from cs336_tui.analysis.merge import Result, grouped, measured
from cs336_tui.analysis.reference import REMARK, ReferenceFileError, matching, own, published, sentence
from cs336_tui.analysis.warmup import Trace, WarmupGroup, warmup_groups
from cs336_tui.tui import format
from cs336_tui.tui.widgets.lines import Line, line, wrapped
from cs336_tui.tui.widgets.rows import Page, message


def warmup_page(results: Sequence[Result], width: int) -> Page:
    """The step times of every warm-up setting, the cost of the first step, and the step from which they are steady."""
    groups = warmup_groups(results)
    if not groups:
        return message("No cell has been measured yet.", width)
    several = [group for group in groups if len(group.warmups) > 1]
    rows: list[Line] = []
    if not several:
        rows += [
            *wrapped("Every cell has one warm-up setting; enter several, as 0,1,2, to compare.", width, "muted"),
            (),
        ]
    for group in several or groups:
        rows += [*_group(group, width), ()]
    heading = (line(("Warm-up: raw step times, ms", "title"), (" · warm-up │ measured", "muted")),)
    return Page(heading, tuple(rows[:-1]))


def _group(group: WarmupGroup, width: int) -> list[Line]:
    lines = wrapped(f"{group.title} · {group.machine}", width, "title", "  ")
    for trace in group.traces:
        lines += _trace(trace, width)
    return lines


def _trace(trace: Trace, width: int) -> list[Line]:
    cell = trace.result.cell
    run = f", run {cell.repeat}" if cell.repeat > 1 else ""
    warm = f"{trace.text(cell.warmup_times_s)} │ " if cell.warmup_times_s else ""
    steady = (
        "not steady at its end" if trace.steady_after is None
        else "steady from the first step" if trace.steady_after == 0
        else f"steady after {trace.steady_after} step{'s' * (trace.steady_after > 1)}"
    )  # fmt: skip
    cost = f"first step {trace.first_step_cost:.3g}× the median · " if trace.first_step_cost is not None else ""
    summary = trace.summary
    mean = format.mean_std(summary.mean_s, summary.std_s, summary.n) if summary.mean_s is not None else ""
    return [
        *wrapped(f"  warm-up {trace.warmup}{run}: {mean} · {cost}{steady}", width, "strong", "      "),
        *wrapped(f"    {warm}{trace.text(cell.step_times_s)}", width, "text", "    "),
    ]


def reference_page(results: Sequence[Result], width: int) -> Page:
    """A sentence per spec: its mean, and the reference points of the same model and pass with their caveats."""
    cells = grouped(measured(results), lambda result: result.spec)
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
    rows += [(), *wrapped(f"Points of reference, not truth: {REMARK}.", width, "muted", "  ")]
    heading = (line(("Reference points", "title"), (" · + keeps these cells as your own", "muted")),)
    return Page(heading, tuple(rows))
