"""Step times as columns, on an axis from zero or on one that is zoomed to the data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from cs336_tui.stats.summaries import quantile
from cs336_tui.tui import format
from cs336_tui.tui.charts.bars import AXIS, axis, nice_ceiling, round_step
from cs336_tui.tui.widgets.lines import Line, Span, column, runs

_HEADROOM = 1.2
_WIDEST = 8
_FLAT = 4
"""A step of more than so many times what is usual leaves an axis from zero: the others would be flat."""
_FENCE = 12
"""The same of a zoomed axis, in interquartile ranges from the quartiles."""
_LEAST_RANGE = 0.002
"""The least range of a zoomed axis, as a share of the median: less is no difference."""
_TICKS = 4
OFF_SCALE = "off scale"
_DASH = "┄"


class _Axis(msgspec.Struct, frozen=True):
    """The times, s, at the axis's ends."""

    low: float
    top: float

    @classmethod
    def from_zero(cls, shown: Sequence[float], *, are_measured: bool) -> _Axis:
        """Up to a round number above the median, and above each measured step that leaves the others their height."""
        usual = quantile(shown, 0.5) * _HEADROOM
        return cls(0.0, nice_ceiling(max([usual, *(each for each in shown if are_measured and each <= _FLAT * usual)])))

    @classmethod
    def of_data(cls, shown: Sequence[float]) -> _Axis:
        """Round numbers around the steps that leave the others their height, and below the least of these."""
        first, median, last = (quantile(shown, share) for share in (0.25, 0.5, 0.75))
        reach = max(_FENCE * (last - first), median * _LEAST_RANGE)
        lowest, highest = max(shown[0], first - reach), min(shown[-1], last + reach)
        step = round_step(max(highest - lowest, median * _LEAST_RANGE) / _TICKS)
        low, top = math.floor(lowest / step - 0.5) * step, math.ceil(highest / step + 0.1) * step
        return cls(max(low, 0.0), top)

    def mark(self, value: float) -> str:
        """``▲`` or ``▼`` of a value beyond its ends."""
        return "▼" if value < self.low else "▲" if value - self.low > self.top - self.low else ""

    def column(self, value: float, rows: int) -> str:
        """A column from the axis's lower end; ``▲`` and ``▼`` where the value is beyond its ends."""
        if value < self.low:
            return " " * (rows - 1) + "▼"
        return column(value - self.low, self.top - self.low, rows)

    @property
    def words(self) -> str:
        """``axis from 0``, ``axis from 340 ms``."""
        return f"axis from {_round(self.low)} ms" if self.low else "axis from 0"

    def between(self, low: float, high: float, rows: int) -> range:
        """The rows from one value to another, as far as the axis goes."""
        first, last = (math.floor((self.top - value) / (self.top - self.low) * rows) for value in (high, low))
        return range(max(first, 0), min(last, rows - 1) + 1)

    def label(self, row: int, rows: int) -> str:
        if row == 0:
            with_unit = f"{_round(self.top)} ms"
            return with_unit if len(with_unit) <= AXIS - 2 else _round(self.top)
        return _round(self.low) if row == rows - 1 else ""


def step_chart(
    warmup_s: Sequence[float],
    measured_s: Sequence[float],
    *,
    warmup_total: int,
    measured_total: int,
    width: int,
    height: int,
    mean_s: float | None = None,
    std_s: float | None = None,
    zoomed: bool = False,
) -> list[Line]:
    """`height` rows of `width` characters; the last one names warm-up, measured steps and the axis's lower end. Every
    step has its place from the start. With more steps than characters a column is the mean of neighbours, whose number
    the last row gives. The axis follows the measured steps once there are any, and holds them; `zoomed`: it goes around
    them, instead of from zero. A cold warm-up step, or a measured one beside which the others would be flat, has ``▲``
    or ``▼`` and its time beside it. Where several have no room, their number and the farthest stand at one of them or
    in the last row. A line goes through `mean_s`, and rows of dashes as far as one `std_s` from it."""
    rows, room = height - 1, width - AXIS - 1  # label, axis, separator
    total = warmup_total + measured_total
    if rows < 1 or room < 4 or total < 1:
        return []
    each = min(max(room // total, 1), _WIDEST)
    per_bin = math.ceil(total / (room - 1)) if total > room else 1
    warm, measured = _bins(warmup_s, per_bin, warmup_total), _bins(measured_s, per_bin, measured_total)
    scale: _Axis | None = None  # before the first step
    if shown := sorted(measured or warm):
        scale = _Axis.of_data(shown) if zoomed else _Axis.from_zero(shown, are_measured=bool(measured))
    warm_width = math.ceil(warmup_total / per_bin) * each
    drawn = [[scale.column(value, rows) for value in values] if scale else [] for values in (warm, measured)]

    canvas: list[_Row] = []
    separator = "│" * bool(warmup_total)
    for row in range(rows):
        texts = ["".join(picture[row] * max(each - 1, 1) + " " * (each > 1) for picture in bars) for bars in drawn]
        parts = ((texts[0].ljust(warm_width), "warmup"), (separator, "axis"), (texts[1].ljust(room), "measured"))
        canvas.append([(char, role) for text, role in parts for char in text][: room + 1])
    ends: list[Sequence[str]] = []
    for values, kind, first in ((measured, "step", warm_width + len(separator)), (warm, "warm-up step", 0)):
        if scale:
            marks = [_Mark(first + place * each, place, value, scale.mark(value)) for place, value in enumerate(values)]
            names = _Names(kind, per_bin, starts=not (warm and values is measured))
            ends += _note(marks, names, canvas, each, room)
    band = mean = range(0)
    if scale and mean_s is not None:
        far_s, first = std_s or 0.0, warm_width + len(separator)
        band, mean = scale.between(mean_s - far_s, mean_s + far_s, rows), scale.between(mean_s, mean_s, rows)
        for row in band:  # where neither a column nor a note stands
            for at in range(first, min(first + math.ceil(measured_total / per_bin) * each, room)):
                if canvas[row][at][0] == " " and all(role != "muted" for _, role in canvas[row][at - 1 : at + 2]):
                    canvas[row][at] = "─" if row in mean else _DASH, "axis"
    lines: list[Line] = []
    for row, drawn_row in enumerate(canvas):
        label = scale.label(row, rows) if scale else "0" * (row == rows - 1)
        lines.append((axis(label or "mean" * (row in mean)), *runs(*zip(*drawn_row, strict=True))))
    axis_words, binned = [[scale.words]] if scale else [], [[f"{per_bin} steps/column"]] * (per_bin > 1)
    ends += [*axis_words, *binned] if zoomed else [*binned, *axis_words]  # a tick says 0, too
    ends += [[f"{_DASH} ± 1 std"]] * (len(band) > 1)
    return [*lines, _names(warm_width, bool(warmup_total), ends, width)]


def _round(time_s: float) -> str:
    """A round time in ms."""
    return f"{time_s * 1e3:.6g}"


class _Mark(NamedTuple):
    """A column beyond the axis: where its characters begin, its number, its time, s, and its mark, if any."""

    at: int
    number: int
    time_s: float
    sign: str

    @property
    def time(self) -> str:
        return f"{format.ms(self.time_s, self.time_s / 10)} ms"


class _Names(NamedTuple):
    """The names of columns: steps of a kind, so many in each; `starts`: the first of them is the first of all."""

    kind: str
    per_bin: int
    starts: bool

    def of(self, marks: Sequence[_Mark]) -> tuple[str, ...]:
        """``first step 812 ms, off scale``, of several the number and the farthest; then shorter words."""
        farthest = (min if marks[0].sign == "▼" else max)(marks, key=lambda mark: mark.time_s)
        if len(marks) > 1:
            time = f"{'down' if farthest.sign == '▼' else 'up'} to {farthest.time}"
            what = f"{len(marks)} {'steps' if self.per_bin == 1 else 'columns'}"
        elif self.per_bin > 1:
            time, what = farthest.time, f"{self.per_bin} steps"
        else:
            is_first = self.starts and farthest.number == 0
            time, what = farthest.time, "first step" if is_first else f"{self.kind} {farthest.number + 1}"
        return f"{what} {time}, {OFF_SCALE}", f"{time}, {OFF_SCALE}", f"{what} {time}", time


_Row = list[tuple[str, str]]
"""The characters of a row, each with its role."""


def _note(columns: Sequence[_Mark], names: _Names, canvas: list[_Row], each: int, room: int) -> Iterator[Sequence[str]]:
    """Write the times beside the marks of these columns; yields words, longest first, for what has no room there."""
    for sign, row in (("▲", canvas[0]), ("▼", canvas[-1])):
        marks = [mark for mark in columns if mark.sign == sign]
        if not marks or (len(marks) > 1 and _beside_each(marks, row, each, room)):
            continue
        words = names.of(marks)
        places = ((text, mark) for text in words for mark in reversed(marks))
        if not any(_put_beside(text, mark, row, each, room) for text, mark in places):
            yield [f"{sign} {text}" for text in words[2:]]


def _beside_each(marks: Sequence[_Mark], row: _Row, each: int, room: int) -> bool:
    """Write the time of each beside its mark, if there is room for all."""
    drawn = [*row]
    written = all(_put_beside(mark.time, mark, drawn, each, room) for mark in marks)
    row[:] = drawn if written else row
    return written


def _put_beside(note: str, mark: _Mark, row: _Row, each: int, room: int) -> bool:
    """Write the note into the row behind the mark, or before it, if there is nothing but blanks."""
    for start in (mark.at + max(each, 2), mark.at - len(note) - 1):
        end = start + len(note)
        if start >= 0 and end <= room and all(char in " │" for char, _ in row[max(start - 1, 0) : end + 1]):
            row[start:end] = [(char, "muted") for char in note]
            return True
    return False


def _bins(values: Sequence[float], per_bin: int, total: int) -> list[float]:
    """Means of neighbours; an incomplete bin is not drawn."""
    if per_bin == 1:
        return list(values)
    whole = len(values) if len(values) >= total else len(values) // per_bin * per_bin
    chunks = (values[start : min(start + per_bin, whole)] for start in range(0, whole, per_bin))
    return [sum(chunk) / len(chunk) for chunk in chunks]


def _names(warm_width: int, has_warmup: bool, ends: Sequence[Sequence[str]], width: int) -> Line:
    """The names below the columns, then what else there is room for, the longest words of each that fit."""
    names = [Span("measured", "measured")]
    if has_warmup:
        warm = "warm-up".ljust(warm_width) if warm_width >= len("warm-up") else "warm-up "
        names = [Span(warm, "warmup"), Span("│", "axis"), *names]
    room = width - AXIS - sum(len(span.text) for span in names)
    more = ""
    for texts in ends:
        more += next((f" · {text}" for text in texts if len(f"{more} · {text}") <= room), "")
    return (Span(" " * AXIS), *names, Span(more, "muted"))
