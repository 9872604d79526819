"""Numbers, words and titles of cells as only the screen needs them; `stats.quantities` and `export` have the rest.
Seconds and bytes in, text out."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.cells import cell_len

from cs336_tui.analysis.fields import FIELDS, OWN, VARIANTS, shown_of
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import short
from cs336_tui.export.subjects.results_columns import COLUMNS
from cs336_tui.export.writing import texts
from cs336_tui.export.writing.tables import Column
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


def without_std(text: str) -> str:
    """The mean of ``12.34 ± 0.05``."""
    return text.partition(" ± ")[0]


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


used_of, percent, plural = quantities.used_of, quantities.whole_percent, quantities.counted


def number(value: float | None, unit: str = "") -> str:
    """A whole number with its unit, or n/a without one."""
    return NOT_AVAILABLE if value is None else f"{value:.0f}{unit}"


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


CELL_KEYS = ("size", "context", "batch", "pass", "precision", "device")
_JOIN = " · "
_ONLY_WHERE_MIXED = ("workload", "causal")
"""Fields that need no column if all cells have the same value: the title or the size shows it."""


def title_rows(title: str, width: int, most: int = 2) -> list[str]:
    """The title over at most `most` rows, broken between its parts; the last row may be wider than `width`."""
    rows: list[str] = []
    for part in plain(title).split(_JOIN):
        room = width - cell_len(_JOIN.rstrip())  # a row that goes on ends with the sign between parts
        if rows and (len(rows) == most or cell_len(rows[-1] + _JOIN + part) <= room):
            rows[-1] += _JOIN + part
        else:
            rows.append(part)
    return [*(row + _JOIN.rstrip() for row in rows[:-1]), *rows[-1:]]


def unique_names(names: Iterable[str]) -> dict[str, str]:
    """Each name, shortened if it stays unique: ``Class`` for ``package.module:Class``."""
    found = list(names)
    counted = Counter(map(short, found))
    return {name: short(name) if counted[short(name)] == 1 else name for name in found}


def cell_columns(
    of: Callable[[Any], CellSpec],
    ranks: Mapping[str, int],
    variants: Mapping[str, Mapping[str, str]] | None = None,
    keys: Iterable[str] = CELL_KEYS,
    size: Callable[[CellSpec], str] = lambda spec: spec.size,
    *,
    recorded: bool = False,
) -> list[Column]:
    """The columns that name a cell; the size of a recording is its name. `of`: an item's cell. `variants`, before the
    device: names of values, by field. `recorded`: all are recordings, which have a name and a device alone."""

    def column(key: str, names: Mapping[str, str] | None = None) -> Column:
        def text(item: Any) -> str:
            spec = of(item)
            shown = shown_of(spec, key) if key != "size" else spec.recording or size(spec)
            return names.get(shown, shown) if names else shown

        exported = COLUMNS[key]
        rank = ranks.get(key, 1 if names else 0)
        return Column(key, exported.short or exported.title, exported.left, rank, text=text)

    if recorded:
        return [column("size")._replace(title="recording"), column("device")]
    columns: list[Column] = []
    for key in keys:
        if key == "device":
            columns += [column(variant, names) for variant, names in (variants or {}).items()]
        columns.append(column(key))
    return columns


def as_shown(variants: Mapping[str, Iterable[str]]) -> dict[str, dict[str, str]]:
    """Names for `cell_columns`: the values as they are."""
    return {key: {value: value for value in values} for key, values in variants.items()}


def told_variants(specs: Iterable[CellSpec]) -> dict[str, set[str]]:
    """The values of each variant in which cells differ or all are unusual, but for what follows from the model."""
    taken: dict[str, set[str]] = {}
    for spec in set(specs):
        for key in VARIANTS:
            if shown := shown_of(spec, key):
                taken.setdefault(key, set()).add(shown)
    return {
        key: shown
        for key, shown in taken.items()
        if len(shown - {OWN}) > 1 or (key not in _ONLY_WHERE_MIXED and not shown <= {FIELDS[key].usual, OWN})
    }
