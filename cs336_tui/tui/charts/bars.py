"""Bars of phases and of progress, and round ends of axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cs336_tui.events.events import GRADIENT_SYNC
from cs336_tui.tui import format
from cs336_tui.tui.widgets.lines import Line, Span, bar, joined

_PHASE_ROLES = 5
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
    in_order = [name for name in means_s if name != GRADIENT_SYNC]
    bar_width = max(width - name_width - figure_width - 11, 4)
    return [
        (
            Span(f"{name:<{name_width}} ", "muted"),
            Span(bar(value / total, bar_width), _phase_role(name, in_order)),
            Span(f" {figures[name]:>{figure_width}} ms", "text"),
            Span(f" {value / total * 100:3.0f} %", "muted"),
        )
        for name, value in means_s.items()
    ]


def _phase_role(name: str, in_order: Sequence[str]) -> str:
    """Gradient sync has a role of its own, the others have theirs with and without it."""
    return "sync" if name == GRADIENT_SYNC else f"phase-{in_order.index(name) % _PHASE_ROLES + 1}"


def phase_lines(means_s: Mapping[str, float], *, width: int) -> list[Line]:
    """The phases without bars: in one row, or with short names in as few as there is room for."""
    if not means_s:
        return []
    total = sum(means_s.values())
    lines: list[Line] = []
    for short in (False, True):
        names = [SHORT_NAMES.get(name, name) if short else name for name in means_s]
        figures = (Span(format.ms(value, total / 1000), "text") for value in means_s.values())
        parts = [(Span(f"{name} ", "muted"), figure) for name, figure in zip(names, figures, strict=True)]
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
