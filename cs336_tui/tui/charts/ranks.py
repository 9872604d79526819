"""Strips of a cell's ranks: the time of each, a bar, and the slowest marked."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cs336_tui.tui import format
from cs336_tui.tui.widgets.lines import Line, Span, bar, joined

SLOWEST = "▸"
_GAP = 2
_SHORTEST_BAR = 3


def slowest_of(times_s: Sequence[float]) -> int:
    """The rank with the largest time."""
    return max(range(len(times_s)), key=times_s.__getitem__)


def rank_strips(times_s: Sequence[float], *, width: int, rows: int) -> list[Line]:
    """A strip a rank, over at most `rows` lines: one below the other, or else side by side. Bars go from 0 to the
    slowest rank's time, and are left out where there is no room. Ranks that do not fit without bars are left out, too.
    """
    if not times_s or rows < 1:
        return []
    spread_s, slowest = max(times_s) - min(times_s), slowest_of(times_s)
    figures = [format.ms(time_s, spread_s or None) for time_s in times_s]
    number_width, figure_width = len(str(len(times_s) - 1)), max(map(len, figures))
    across = math.ceil(len(times_s) / rows)
    each = (width + _GAP) // across - _GAP
    room = each - number_width - figure_width - 3
    bar_width = room if room >= _SHORTEST_BAR else 0
    narrowest = number_width + figure_width + 2
    strips: list[Line] = []
    for rank, (time_s, figure) in enumerate(zip(times_s, figures, strict=True)):
        mark, role = (SLOWEST, "caution") if rank == slowest else (" ", "measured")
        strip = [Span(mark, role), Span(f"{rank:>{number_width}} ", "muted"), Span(f"{figure:>{figure_width}}", "text")]
        if not bar_width:
            strip.append(Span(" " * (each - narrowest)))
        else:
            strip.append(Span(f" {bar(time_s / times_s[slowest] if times_s[slowest] else 0.0, bar_width)}", role))
        strips.append(tuple(strip))
    if each < narrowest:
        return joined(strips, width, " " * _GAP)[:rows]
    lines = (strips[first : first + across] for first in range(0, len(strips), across))
    return [tuple(span for strip in row for span in (*strip, Span(" " * _GAP)))[:-1] for row in lines]
