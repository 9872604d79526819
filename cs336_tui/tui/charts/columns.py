"""Columns over time: step times, a figure's history, and the starts of cells under the same axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from cs336_tui.stats.summaries import quantile
from cs336_tui.tui.charts.bars import AXIS, axis, nice_ceiling
from cs336_tui.tui.widgets.lines import Line, Span, column

_HEADROOM = 1.2
_WIDEST = 4


def step_chart(
    warmup_s: Sequence[float],
    measured_s: Sequence[float],
    *,
    warmup_total: int,
    measured_total: int,
    width: int,
    height: int,
) -> list[Line]:
    """`height` rows of `width` characters; the last row names warm-up and measured steps. Every step has its place from
    the start. With more steps than characters a column is the mean of neighbours, whose number the last row gives.
    The axis ends at a round number above the median; a higher step, such as a cold first one, ends in ``▲``."""
    rows, room = height - 1, width - AXIS - 1  # label, axis, separator
    total = warmup_total + measured_total
    if rows < 1 or room < 4 or total < 1:
        return []
    each = min(max(room // total, 1), _WIDEST)
    per_bin = math.ceil(total / (room - 1)) if total > room else 1
    warm, measured = _bins(warmup_s, per_bin, warmup_total), _bins(measured_s, per_bin, measured_total)
    shown = sorted([*warm, *measured])
    top = nice_ceiling(quantile(shown, 0.5) * _HEADROOM) if shown else 0.0
    warm_columns = math.ceil(warmup_total / per_bin)
    separator = "│" if warmup_total else ""

    pictures = [[column(value, top, rows) for value in values] for values in (warm, measured)]
    lines: list[Line] = []
    for row in range(rows):
        warm_text, measured_text = (_across([picture[row] for picture in kind], each) for kind in pictures)
        label = f"{top * 1e3:g} ms" if row == 0 and shown else ("0" if row == rows - 1 else "")
        lines.append(
            (
                axis(label),
                Span(warm_text.ljust(warm_columns * each), "warmup"),
                Span(separator, "axis"),
                Span(measured_text, "measured"),
            )
        )
    lines.append(_names(warm_columns * each, bool(warmup_total), per_bin))
    return lines


def _bins(values: Sequence[float], per_bin: int, total: int) -> list[float]:
    """Means of neighbours; an incomplete bin is not drawn."""
    if per_bin == 1:
        return list(values)
    whole = len(values) if len(values) >= total else len(values) // per_bin * per_bin
    chunks = (values[start : min(start + per_bin, whole)] for start in range(0, whole, per_bin))
    return [sum(chunk) / len(chunk) for chunk in chunks]


def _across(chars: Sequence[str], each: int) -> str:
    return "".join(chars if each == 1 else (char * (each - 1) + " " for char in chars))


def _names(warm_width: int, has_warmup: bool, per_bin: int) -> Line:
    each = f" · a column is {per_bin} steps" if per_bin > 1 else ""
    margin = Span(" " * AXIS)
    if not has_warmup:
        return (margin, Span("measured", "measured"), Span(each, "muted"))
    warm = "warm-up".ljust(warm_width) if warm_width >= len("warm-up") else "warm-up "
    return (margin, Span(warm, "warmup"), Span("│", "axis"), Span("measured", "measured"), Span(each, "muted"))


BUCKETS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600)
"""Seconds that one column can stand for."""


class Window(NamedTuple):
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
