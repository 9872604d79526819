"""Lines of text that are rewritten in place, in the styles of the theme: only the columns that changed are sent."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, zip_longest
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.color import Color
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from cs336_tui.tui import format
from cs336_tui.tui.keys import key_name


class Styled(Widget):
    """A widget that knows the style of each role in the current theme, on its own background."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._styles_of_roles: dict[str, Style] = {}

    def style_of(self, role: str) -> Style:
        style = self._styles_of_roles.get(role)
        if style is None:
            style = self._styles_of_roles[role] = style_of(role, self.app.theme_variables, self.background_colors[1])
        return style

    def notify_style_update(self) -> None:
        self._styles_of_roles.clear()
        super().notify_style_update()


_ROLES: dict[str, tuple[str, str]] = {
    "text": ("foreground", ""),
    "strong": ("foreground", "bold"),
    "muted": ("text-muted", ""),
    "title": ("primary", "bold"),
    "good": ("ok", ""),
    "bad": ("bad", "bold"),
    "caution": ("caution", ""),
    "cursor": ("foreground", "reverse"),
    "key": ("accent", "bold"),
    "tab": ("text-muted", ""),
    "tab-on": ("primary", "bold underline"),
} | {
    name: (name, "")
    for name in "warmup measured axis memory utilisation phase-1 phase-2 phase-3 phase-4 phase-5 sync".split()
}


def style_of(role: str, variables: Mapping[str, str], background: Color) -> Style:
    """The style of a role, from a theme's variables and the background. Raises KeyError."""
    variable, attributes = _ROLES[role]
    value = variables[variable]  # perhaps with an opacity: ``#5aa9e6 40%``; ``auto 60%`` is the foreground at 60 %
    name, share = value.rsplit(maxsplit=1) if value.endswith("%") else (value, "100%")
    color = Color.parse(variables["foreground"] if name == "auto" else name)
    color = color.multiply_alpha(float(share.removesuffix("%")) / 100)
    if color.a < 1:
        color = background.blend(color, color.a, alpha=1.0) if background.ansi is None else color.with_alpha(1.0)
    return Style.parse(attributes) + Style.from_color(color.rich_color, background.rich_color)


class Span(NamedTuple):
    """Text with a role, which gives its style."""

    text: str
    role: str = "text"


Line = tuple[Span, ...]

_UP = " ▁▂▃▄▅▆▇█"
_RIGHT = " ▏▎▍▌▋▊▉█"


def line(*parts: Span | str | tuple[str, str]) -> Line:
    """A line from plain strings and (text, role) pairs."""
    return tuple(Span(part) if isinstance(part, str) else Span(*part) for part in parts)


def width_of(spans: Line) -> int:
    return sum(cell_len(span.text) for span in spans)


def runs(texts: Sequence[str], roles: Sequence[str]) -> list[Span]:
    """A span per stretch of one role; blanks join the stretch before them."""
    spans: list[Span] = []
    for text, role in zip(texts, roles, strict=True):
        if spans and (text == " " or role == spans[-1].role):
            spans[-1] = Span(spans[-1].text + text, spans[-1].role)
        else:
            spans.append(Span(text, role))
    return spans


def fit(spans: Line, width: int) -> Line:
    """The line, cut to `width` columns with an ellipsis."""
    if width_of(spans) <= width:
        return spans
    kept: list[Span] = []
    room = max(width - 1, 0)
    for span in spans:
        taken = cell_len(span.text)
        if taken > room:
            kept.append(Span(set_cell_size(span.text, room) + "…"[:width], span.role))
            break
        kept.append(span)
        room -= taken
    return tuple(kept)


def spread(left: Line, right: Line, width: int) -> Line:
    """`left` and `right` at the ends of a row; without room for both, `left` alone."""
    gap = width - width_of(left) - width_of(right)
    return fit(left, width) if gap < 1 else (*left, Span(" " * gap), *right)


def labelled(label: str, text: str, width: int | None = None, label_width: int = 16, role: str = "text") -> list[Line]:
    """A label and a text, which is wrapped if the `width` of both is given."""
    if width is None:
        return [(Span(f"{label:<{label_width}}", "muted"), Span(text, role))]
    first, *more = wrapped(text, width - label_width, role) or [()]
    return [(Span(f"{label:<{label_width}}", "muted"), *first), *((Span(" " * label_width), *row) for row in more)]


def joined(parts: Iterable[Line], width: int, gap: str = "   ") -> list[Line]:
    """The parts in as few lines as `width` allows."""
    lines: list[Line] = []
    for part in parts:
        if lines and width_of(lines[-1]) + len(gap) + width_of(part) <= width:
            lines[-1] = (*lines[-1], Span(gap), *part)
        else:
            lines.append(part)
    return lines


def facts(first: Line, more: Iterable[Line], width: int) -> Line:
    """The first fact and, of the others, each that `width` still has room for: none is cut."""
    found = first
    for each in more:
        longer = (*found, Span(" · "), *each)
        if width_of(longer) <= width:
            found = longer
    return found


def views_line(views: Iterable[str], shown: str, binding: str, gap: str = " ") -> Line:
    """The names of a tab's views, the one that is shown marked, and the key of the `binding` for the next view."""
    spans = [span for name in views
             for span in (Span(f" {name} ", "tab-on" if name == shown else "tab"), Span("│", "muted"))]  # fmt: skip
    return (*spans[:-1], Span(f"{gap}{key_name(binding)}", "key"))


def wrapped(text: str, width: int, role: str = "text", indent: str = "") -> list[Line]:
    """Text over as many lines as it needs."""
    rows = textwrap.wrap(format.plain(text), max(width, 12), subsequent_indent=indent, break_on_hyphens=False)
    return [line((row, role)) for row in rows]


def paragraphs(texts: Iterable[str], width: int, role: str = "text", indent: str = "") -> list[Line]:
    """Texts one after another, each `wrapped`."""
    return [row for text in texts for row in wrapped(text, width, role, indent)]


def bar(share: float, width: int) -> str:
    """A bar that fills `share` (0 to 1) of `width` characters, padded with blanks."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (_RIGHT[part] if part else "")).ljust(width)


@lru_cache(2048)
def column(value: float, top: float, height: int) -> str:
    """A column of `height` characters, topmost first, filled to ``value / top``. A positive value shows at least the
    thinnest block; one above `top` ends in ``▲``."""
    eighths = round(value / top * height * 8) if top > 0 else 0
    eighths = max(eighths, 1) if value > 0 else 0
    if value > top:
        return "▲" + "█" * (height - 1)
    return "".join(_UP[min(max(eighths - 8 * row, 0), 8)] for row in reversed(range(height)))


class Lines(Styled):
    """Shows the lines given to `paint`, and repaints only changed ones."""

    class Resized(Message):
        """The size has changed."""

    _lines: tuple[Line, ...] = ()

    @property
    def text(self) -> str:
        return "\n".join("".join(span.text for span in spans).rstrip() for spans in self._lines)

    def paint(self, lines: Iterable[Line]) -> None:
        """Show these lines, cut to the size."""
        width, height = self.content_size
        new = tuple(fit(spans, width) for spans in list(lines)[:height])
        old, self._lines = self._lines, new
        dirty: list[Region] = []
        for y, (before, after) in enumerate(zip_longest(old, new, fillvalue=())):
            if before != after:
                dirty.append(Region(0, y, width, 1))
        if dirty:
            self.refresh(*dirty)

    def show_again(self) -> None:
        """Paint again what a widget paints by itself; it depends on size and focus."""

    def on_resize(self) -> None:
        self.show_again()
        self.post_message(self.Resized())

    def on_focus(self) -> None:
        self.show_again()

    on_blur = on_focus

    def place_of(self, event: events.Click, widths: Iterable[int]) -> int | None:
        """The index of the clicked item in a row of items of these widths; None if the click is beside them."""
        if (offset := event.get_content_offset(self)) is None:
            return None
        return next((place for place, right in enumerate(accumulate(widths)) if offset.x < right), None)

    def render_line(self, y: int) -> Strip:
        spans = self._lines[y] if y < len(self._lines) else ()
        segments = [Segment(text, self.style_of(role)) for text, role in spans]
        gap = self.content_size.width - width_of(spans)
        if gap > 0:
            segments.append(Segment(" " * gap, self.style_of("text")))
        return Strip(segments)
