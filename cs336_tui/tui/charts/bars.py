"""Bars of phases, of progress and of ranks, columns over time with the starts of cells under them, intervals of ratios
on one logarithmic axis with 1 marked, and round ends of axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from cs336_tui.config.values import ACCUMULATION
from cs336_tui.events.events import GRADIENT_SYNC
from cs336_tui.tui import format
from cs336_tui.tui.widgets.lines import Line, Span, bar, column, joined, runs

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
BUCKETS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600)
"""Seconds that one column can stand for."""
SLOWEST = "▸"
_GAP = 2
_SHORTEST_BAR = 3
_LEAST_SPAN = 0.02
"""Least width of an axis, as a share of its high end."""
_ONE, _POINT, _WHISKER = "│", "●", "━"
_LOWER, _HIGHER = "◂", "▸"
"""Signs for what lies beyond an end of the axis."""


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
        names = {name: SHORT_NAMES.get(name, name) if short else name for name in means_s}
        parts = [
            (Span(f"{names[name]} ", phase_role(name)), Span(format.ms(value, total / 1000), "text"))
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
    return round_step(value, (1, 1.5, 2, 3, 4, 5, 6, 8, 10)) if value > 0 else 1.0


def round_step(least: float, steps: Sequence[float] = (1, 2, 5, 10)) -> float:
    """The smallest of 1, 2, 5, or of other `steps` up to 10, times a power of ten that is at least this."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in steps if step * power >= least * (1 - 1e-9))


def share_bar(share: float, figures: str, width: int) -> Line:
    """``━━━━━━━━──── 57 % · 86/150 steps``: a bar of this share, from 0 to 1, with figures at its end."""
    figures = f" {figures}"
    room = max(width - len(figures), 0)
    full = int(share * room)
    return (Span("━" * full, "good"), Span("╌" * (room - full), "muted"), Span(figures, "text"))


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
    pictures = [" " * height if peak is None else column(min(peak, top), top, height) for peak in peaks]
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


class Scale(NamedTuple):
    """A logarithmic axis from `low` to `high`, both above 0."""

    low: float
    high: float

    def share(self, value: float) -> float:
        return math.log(value / self.low) / math.log(self.high / self.low)

    def at(self, share: float) -> float:
        return self.low * math.exp(math.log(self.high / self.low) * share)

    def place(self, value: float, places: int) -> int:
        """The index of the value's place among `places` along the axis; it may be outside."""
        return math.floor(self.share(value) * places)

    def column(self, ratio: float, width: int) -> int:
        """The column of a ratio; below 0 or from `width` on if it is beyond an end."""
        return math.floor(self.share(ratio) * (width - 1) + 0.5)


def scale_of(ratios: Iterable[float]) -> Scale:
    """The axis that holds these ratios, with round ends, which change rarely."""
    found = [ratio for ratio in ratios if 0 < ratio < math.inf] or [1.0]
    low, high = min(found), max(found)
    span = max(high - low, _LEAST_SPAN * high)
    below, above = round_step(min(span, low) / 5), round_step(span / 5)
    first = math.floor(low / below + 1e-9) * below
    return Scale(first, max(math.ceil(high / above - 1e-9) * above, first + above))


def axis_line(scale: Scale, width: int) -> Line:
    """The labels of both ends and of 1, which is left out where it has no room or lies beyond an end."""
    low, high = f"{scale.low:.3g}", f"{scale.high:.3g}"
    row = list(low.ljust(width)[: width - len(high)] + high)
    one = scale.column(1.0, width)
    if len(low) < one < width - len(high) - 1:
        row[one] = "1"
    return (Span("".join(row), "axis"),)


def interval_line(
    scale: Scale, width: int, ratio: float | None, low: float | None, high: float | None, role: str
) -> Line:
    """The interval as a bar and the ratio as a point; the mark of 1 behind both. What is beyond an end is an arrow."""
    cells = [" "] * width
    roles = ["axis"] * width
    one = scale.column(1.0, width)
    if 0 <= one < width:
        cells[one] = _ONE

    def put(column: int, sign: str) -> None:
        at = min(max(column, 0), width - 1)
        cells[at] = _LOWER if column < 0 else _HIGHER if column >= width else sign
        roles[at] = role

    if ratio is not None:
        if low is not None and high is not None:
            first, last = (scale.column(each, width) for each in (low, high))
            for column in range(max(first, 0), min(last, width - 1) + 1):
                cells[column], roles[column] = _WHISKER, role
            for column in (first, last):
                if not 0 <= column < width:
                    put(column, _WHISKER)
        put(scale.column(ratio, width), _POINT)
    return tuple(runs(cells, roles))
