"""Bars of phases and of progress, and round ends of axes."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cs336_tui.config.phases import ACCUMULATION
from cs336_tui.events.events import GRADIENT_SYNC
from cs336_tui.tui import format
from cs336_tui.tui.widgets.lines import Line, Span, bar, joined

_PHASE_ROLES = {
    "forward": "phase-1",
    "loss": "phase-2",
    "backward": "phase-3",
    "optimizer": "phase-4",
    "zero_grad": "phase-5",
    GRADIENT_SYNC: "sync",
    ACCUMULATION: "muted",
}
AXIS = 10
"""Columns of an axis on the left with its labels."""
SHORT_NAMES = {"zero_grad": "zero", "forward": "fwd", "backward": "bwd", GRADIENT_SYNC: "sync", "optimizer": "opt"}
"""Names of phases for narrow columns."""


def phase_bars(means_s: Mapping[str, float], *, width: int) -> list[Line]:
    """A row per phase: its name, a bar of its share, its mean in ms."""
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
            Span(bar(value / total, bar_width), phase_role(name)),
            Span(f" {figures[name]:>{figure_width}} ms", "text"),
            Span(f" {value / total * 100:3.0f} %", "muted"),
        )
        for name, value in means_s.items()
    ]


def phase_role(phase: str) -> str:
    """The role of a phase's colour, the same on every pass and pane; ``muted`` outside phases."""
    return _PHASE_ROLES.get(phase, "muted")


def phase_lines(means_s: Mapping[str, float], *, width: int) -> list[Line]:
    """The phases without bars: in one row, or with short names in as few as there is room for."""
    if not means_s:
        return []
    total = sum(means_s.values())
    lines: list[Line] = []
    for short in (False, True):
        parts = [
            (
                Span(f"{SHORT_NAMES.get(name, name) if short else name} ", phase_role(name)),
                Span(format.ms(value, total / 1000), "text"),
            )
            for name, value in means_s.items()
        ]
        lines = joined([*parts, (Span("ms", "muted"),)], width, "  ")
        if len(lines) == 1:
            break
    return lines


def axis(label: str) -> Span:
    """A row of an axis on the left, with a tick at a label."""
    return Span(f"{label:>{AXIS - 2}} ┤" if label else " " * (AXIS - 1) + "│", "axis")


def nice_ceiling(value: float) -> float:
    """The smallest of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten that is at least `value`."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= value * (1 - 1e-9))


def progress(done: int, total: int, *, width: int, unit: str = "steps") -> Line:
    """``━━━━━━━━──── 57 % · 86/150 steps``, `width` columns wide."""
    share = done / total if total else 0.0
    figures = f"{int(share * 100):3d} % · {done}/{total} {unit}" if total else f"no {unit}"
    return share_bar(share, figures, width)


def share_bar(share: float, figures: str, width: int) -> Line:
    """A bar of this share, from 0 to 1, with figures at its end."""
    figures = f" {figures}"
    room = max(width - len(figures), 0)
    full = int(share * room)
    return (Span("━" * full, "good"), Span("╌" * (room - full), "muted"), Span(figures, "text"))
