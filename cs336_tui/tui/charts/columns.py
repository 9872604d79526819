"""Columns over time: a figure's history, and the starts of cells under the same axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from cs336_tui.tui.widgets.lines import Line, Span, column

BUCKETS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600)
"""Seconds that one column can stand for."""


class Window(msgspec.Struct, frozen=True):
    """The time that a graph shows: `width` columns of `bucket_s` seconds from `start`."""

    start: float
    bucket_s: int
    width: int

    def column_of(self, at: float) -> int:
        return math.floor((at - self.start) / self.bucket_s)


def window(since: float, now: float, width: int) -> Window:
    """The finest window that holds both moments (Unix seconds). Columns start at multiples of their length."""
    for bucket_s in BUCKETS_S:
        start = math.floor(since / bucket_s) * bucket_s
        if now < start + width * bucket_s:
            return Window(start, bucket_s, width)
    longest = BUCKETS_S[-1]
    return Window((math.floor(now / longest) - width + 1) * longest, longest, width)


def graph(samples: Sequence[tuple[float, float]], view: Window, *, top: float, height: int, role: str) -> list[Line]:
    """`height` rows of (time, value) samples on an axis from 0 to `top`; a column shows its largest sample, or repeats
    its left neighbour. Nothing is drawn before the first sample and after the last."""
    peaks: list[float | None] = [None] * view.width
    for at, value in samples:
        index = view.column_of(at)
        if 0 <= index < view.width:
            peaks[index] = max(value, peaks[index] or 0.0)
    last = max((i for i, peak in enumerate(peaks) if peak is not None), default=-1)
    for index in range(1, last):
        if peaks[index] is None:
            peaks[index] = peaks[index - 1]
    blank = " " * height
    pictures = [blank if peak is None else column(min(peak, top), top, height) for peak in peaks]
    return [(Span("".join(picture[row] for picture in pictures), role),) for row in range(height)]


def marks(starts: Sequence[tuple[float, int]], view: Window) -> Line:
    """A tick and the cell's number under each start; only a tick if the next one is close."""
    row = [" "] * view.width
    columns = [(view.column_of(at), cell) for at, cell in starts]
    end = view.width
    for index, cell in reversed(columns):
        label = f"╵{cell}"
        shown = label if index + len(label) <= end else label[:1]
        if 0 <= index < view.width:
            row[index : index + len(shown)] = shown
            end = index
    return (Span("".join(row), "muted"),)
