"""Eighth blocks: columns and bars with a resolution finer than a character."""

from __future__ import annotations

import math

_UP = " ▁▂▃▄▅▆▇█"
_RIGHT = " ▏▎▍▌▋▊▉█"


def column(value: float, top: float, height: int) -> str:
    """A column of `height` characters, topmost first, filled to ``value / top``.

    A positive value shows at least the thinnest block; one above `top` ends in ``▲``.
    """
    eighths = round(value / top * height * 8) if top > 0 else 0
    eighths = max(eighths, 1) if value > 0 else 0
    if value > top:
        return "▲" + "█" * (height - 1)
    return "".join(_UP[min(max(eighths - 8 * row, 0), 8)] for row in reversed(range(height)))


def bar(share: float, width: int) -> str:
    """A bar that fills `share` (0 to 1) of `width` characters, padded with blanks."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (_RIGHT[part] if part else "")).ljust(width)


def nice_ceiling(value: float) -> float:
    """The smallest of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten that is at least `value`."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= value * (1 - 1e-9))
