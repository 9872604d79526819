"""A figure as a file, drawn with matplotlib, which is imported by the first one that is drawn. A drawing is the same
bytes every time: its file holds no date."""

from __future__ import annotations

import io
import logging
import math
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from cs336_tui.analysis.grouping import shared
from cs336_tui.analysis.merge import Result

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FigureFormat = Literal["svg", "pdf", "png"]
FIGURE_FORMATS: tuple[str, ...] = get_args(FigureFormat)

_TITLE_PER_INCH = 11
"""Characters of a title that fit into an inch."""

_DPI = 150
_STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "hatch.linewidth": 0.5,
    "svg.fonttype": "none",
    "text.parse_math": False,  # a $ in a name is a dollar sign
    "svg.hashsalt": "cs336-tui",
    "pdf.fonttype": 42,
}
_NO_DATE: Mapping[str, dict[str, None]] = {
    "svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None},
}  # fmt: skip

MOST_LINES = 14
"""More lines than these cannot be told apart; the title then says how many there are."""
LEGEND_WIDTH = 70
"""Characters of a legend's line that fit below the narrowest figure."""
# Okabe and Ito 2008: told apart with every common kind of colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LOOKS = tuple(zip(COLOURS, MARKERS, strict=True))
"""Colour and marker of each line or group of points; more begin again."""


@contextmanager
def _without_remarks() -> Iterator[None]:
    """Keep to itself what matplotlib says of fonts, glyphs and caches: nobody asked, and no number depends on it."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)


class Drawing(NamedTuple):
    """A figure that can be drawn. `name` is its file's, without a suffix; `size` is in inches."""

    name: str
    title: str
    size: tuple[float, float]
    draw: Callable[[Figure], None]

    @_without_remarks()
    def files(self, formats: Sequence[str] = FIGURE_FORMATS) -> dict[str, bytes]:
        """The figure's file by format. Its layout, which takes most of the time, is found once for all."""
        import matplotlib as mpl
        from matplotlib.figure import Figure

        with mpl.rc_context(_STYLE):
            figure = Figure(figsize=self.size, layout="constrained")
            self.draw(figure)
            width = math.floor(self.size[0] * _TITLE_PER_INCH)
            figure.suptitle("\n".join(wrapped(line, width) for line in self.title.splitlines()), fontsize=11)
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
            files = {format_: io.BytesIO() for format_ in formats}
            for format_, file in files.items():
                figure.savefig(file, format=format_, dpi=_DPI, metadata=_NO_DATE[format_])
        return {format_: file.getvalue() for format_, file in files.items()}


class Absent(NamedTuple):
    """A figure for which there is no data, and why."""

    name: str
    reason: str


def wrapped(text: str, width: int = 30) -> str:
    """Lines of about this width; a dot between fields stays at the end of its line, and a name that is longer than a
    line, as ``package.module:Class`` may be, goes on after a dot or colon in it."""
    kept = text.replace(" · ", "\N{NO-BREAK SPACE}· ")
    pieces = (piece for word in kept.split(" ") for piece in _pieces(word, width))
    return "\n".join(textwrap.wrap(" ".join(pieces), width, break_on_hyphens=False))


def _pieces(word: str, width: int) -> Iterator[str]:
    """The word in the longest parts that fit, so that no two of them fit on one line."""
    while len(word) > width:
        cut = max(word.rfind(".", 0, width), word.rfind(":", 0, width)) + 1 or width
        yield word[:cut]
        word = word[cut:]
    yield word


def plain_ticks(axis: Axis, subs: Sequence[float] = (1, 2, 5)) -> None:
    """Ticks of a logarithmic axis as plain numbers, such as 1, 2, 5, 10."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def ms(time_s: float | None) -> float:
    """Seconds in milliseconds, 0 of none."""
    return 1e3 * (time_s or 0.0)


def titled(title: str, results: Sequence[Result], but: Sequence[str] = ()) -> str:
    """The title, and on a line of its own what all cells are in every field that the figure does not show."""
    same = shared(results, but)
    return f"{title}\nevery cell: {same}" if same else title


def legend_below(figure: Figure) -> None:
    """One legend for all panels, each name once."""
    found: dict[str, Artist] = {}
    for axis in figure.axes:
        for handle, text in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(text, handle)
    if found:
        figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=legend_columns(list(found)))


def legend_columns(names: Sequence[str]) -> int:
    """The columns of a legend that fit below the narrowest figure."""
    longest = max(map(len, names))
    return 1 if longest > 30 else min(4 if longest < 18 else 2, len(names))
