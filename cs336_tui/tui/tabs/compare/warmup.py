"""What warming up does, for a window of some width."""

from __future__ import annotations

from collections.abc import Sequence

from cs336_tui.analysis.merge import Result
from cs336_tui.analysis.warmup import Trace, WarmupGroup, warmup_groups
from cs336_tui.tui import format
from cs336_tui.tui.widgets.lines import Line, line, wrapped
from cs336_tui.tui.widgets.rows import Page, message


def warmup_page(results: Sequence[Result], width: int) -> Page:
    """The raw step times of every warm-up setting, what the first step cost and when the steps were steady."""
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
    run = f", run {trace.repeat}" if trace.repeat > 1 else ""
    warm = f"{trace.warmup_text} │ " if trace.warmup_times_s else ""
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
        *wrapped(f"    {warm}{trace.measured_text}", width, "text", "    "),
    ]
