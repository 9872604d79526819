"""Where a step's time goes, one bar per phase."""

from __future__ import annotations

from collections.abc import Mapping

from cs336_tui.tui import format
from cs336_tui.tui.drawing.blocks import bar
from cs336_tui.tui.widgets.lines import Line, Span

PHASE_ROLES = 5


def phase_bars(means_s: Mapping[str, float], *, width: int) -> list[Line]:
    """One row per phase: its name, a bar of its share of all phases, its mean in ms."""
    total = sum(means_s.values())
    if not total:
        return []
    name_width = max(map(len, means_s))
    figures = {name: format.ms(value, total / 1000) for name, value in means_s.items()}
    figure_width = max(map(len, figures.values()))
    bar_width = max(width - name_width - figure_width - 11, 4)
    return [
        (
            Span(f"{name:<{name_width}} ", "muted"),
            Span(bar(value / total, bar_width), f"phase-{index % PHASE_ROLES + 1}"),
            Span(f" {figures[name]:>{figure_width}} ms", "text"),
            Span(f" {value / total * 100:3.0f} %", "muted"),
        )
        for index, (name, value) in enumerate(means_s.items())
    ]


def phase_line(means_s: Mapping[str, float]) -> Line:
    """The same in one row, without bars, for a low screen."""
    total = sum(means_s.values())
    spans: list[Span] = []
    for name, value in means_s.items():
        spans += [Span(f"{name} ", "muted"), Span(f"{format.ms(value, total / 1000)}  ", "text")]
    return (*spans, Span("ms", "muted")) if spans else ()
