"""Numbers and words that only the screen needs; `stats.quantities` has the rest. Seconds and bytes in, text out."""

from __future__ import annotations

import re
import textwrap

from cs336_tui.export.writing import texts
from cs336_tui.stats import quantities

NOT_YET = "–"
NOT_AVAILABLE = quantities.UNKNOWN
GB = 1e9
SHORT_PASSES = {
    "inference": "infer", "forward": "fwd", "forward+loss": "fwd+loss", "backward": "bwd",
    "forward+backward": "fwd+bwd", "train-step": "train",
}  # fmt: skip
_PLACE = re.compile(r" \([^()]+:\d+( in [^()]+)?\)$")
"""A file and a line at the end of a text."""
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))


def ms(seconds: float | None, spread: float | None = None) -> str:
    """A time in ms, without its unit, with as many digits as its spread (seconds) justifies."""
    if seconds is None:
        return NOT_YET
    return quantities.fixed_milliseconds(seconds, quantities.millisecond_decimals(seconds, spread))


def mean_std(mean_s: float, std_s: float | None, n: int) -> str:
    """``153.20 ms ± 0.41 std (n=6)``; the std is left out while it is unknown."""
    spread = f" ± {ms(std_s, std_s)} std" if std_s is not None else ""
    return f"{ms(mean_s, std_s)} ms{spread} (n={n})"


def rate(per_s: float | None) -> str:
    """A rate in three figures, such as ``102k``."""
    return NOT_YET if per_s is None else quantities.count(per_s)


def fine_size(count: int) -> str:
    """A size in GB as `size`, a small one in MB: ``3.15 MB``."""
    return size(count) if count >= GB / 10 else f"{count / 1e6:.3g} MB"


def flops(per_s: float | None) -> str:
    """FLOP/s in three figures with the unit's prefix: ``41.2 T``."""
    if per_s is None:
        return NOT_YET
    factor, prefix = next((pair for pair in _PREFIXES if per_s >= pair[0]), _PREFIXES[-1])
    return f"{quantities.count(per_s / factor)} {prefix}"


def size(count: float | None, missing: str = NOT_YET) -> str:
    """Bytes as ``0.412 GB`` or ``38.4 GB``."""
    return missing if count is None else f"{quantities.gigabytes(count)} GB"


used_of, percent = quantities.used_of, quantities.whole_percent


def number(value: float | None, unit: str = "") -> str:
    """A whole number with its unit, or n/a without one."""
    return NOT_AVAILABLE if value is None else f"{value:.0f}{unit}"


def plural(count: int, noun: str) -> str:
    """``1 cell``, ``2 cells``."""
    return f"{count} {noun}{'s' * (count != 1)}"


def plain(text: str) -> str:
    """One line of foreign text made safe for the screen: escapes and control characters dropped, tabs widened."""
    if text.isprintable():
        return text
    return "".join(char for char in texts.plain(text).expandtabs(4) if char.isprintable())


def cut_to_lines(text: str, width: int, most: int) -> list[str]:
    """The text over at most `most` lines; a file and line at its end are kept."""
    lines = textwrap.wrap(text, width, break_on_hyphens=False)
    if len(lines) <= most:
        return lines
    place = _PLACE.search(text)
    end = f" …{place[0]}" if place and len(place[0]) + 2 < width * most else " …"
    words = text[: place.start() if place else None].split(" ")
    while len(words) > 1 and len(lines) > most:
        words.pop()
        lines = textwrap.wrap(" ".join(words) + end, width, break_on_hyphens=False)
    return lines[:most]
