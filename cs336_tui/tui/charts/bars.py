"""Where a step's time goes, one bar per phase."""

from __future__ import annotations

from collections.abc import Mapping

from cs336_tui.tui import format
from cs336_tui.tui.charts.blocks import bar
from cs336_tui.tui.widgets.lines import Line, Span, width_of

PHASE_ROLES = 5
SHORT_NAMES = {"zero_grad": "zero", "forward": "fwd", "backward": "bwd", "optimizer": "opt"}
"""Of phases, for narrow columns."""


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


def phase_line(means_s: Mapping[str, float], *, width: int) -> Line:
    """The same in one row, without bars, for a low screen; names are cut short where there is no room for them."""
    total = sum(means_s.values())
    lines: list[Line] = []
    for short in (False, True):
        spans: list[Span] = []
        for name, value in means_s.items():
            shown = SHORT_NAMES.get(name, name) if short else name
            spans += [Span(f"{shown} ", "muted"), Span(f"{format.ms(value, total / 1000)}  ", "text")]
        lines.append((*spans, Span("ms", "muted")) if spans else ())
    whole, cut = lines
    return whole if width_of(whole) <= width else cut
