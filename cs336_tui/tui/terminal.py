"""Reads the terminal, whatever bytes come from it, and sends it only what changed.

- Reading: Textual's driver and parser end the app at bytes that are not UTF-8 and at key codes that are no character.
  At the end they give Ctrl+S its usual meaning, which holds the output, before the last output is written: it hangs.
- Drawing: Textual's partial update goes through every line of every widget, starts each changed row at the left edge of
  its widget, and names the colours of every piece anew. That is most of the time of a small change, and over SSH
  several times its bytes.

Rests on Textual's internals; hence its exact pin.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import selectors
import shutil
import sys
import termios
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import Control
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual._compositor import Compositor, CompositorUpdate
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.css.query import NoMatches
from textual.driver import Driver as TextualDriver
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Region, Size
from textual.keys import Keys
from textual.message import Message
from textual.strip import Strip
from textual.widget import MountError, Widget
from textual.worker import WorkerFailed


class _Span(NamedTuple):
    """Columns `left` to `right`, exclusive, of row `y`."""

    y: int
    left: int
    right: int


class _Piece(NamedTuple):
    """A strip to write from column `x` of row `y` on."""

    y: int
    x: int
    strip: Strip


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def without_control(strip: Strip) -> Strip:
    """The strip without control characters: they take no column, and a terminal would obey them."""
    if not _CONTROL.search(strip.text):
        return strip
    return Strip([Segment(_CONTROL.sub("", text), style) for text, style, _ in strip], strip.cell_length)


class SteadyCompositor(Compositor):
    """A compositor that sends the terminal text alone, and knows what is where while a terminal becomes smaller."""

    def _get_renders(self, crop: Region | None = None) -> Iterable[tuple[Region, Region, list[Strip]]]:
        for region, clip, strips in super()._get_renders(crop):
            yield region, clip, [*map(without_control, strips)]

    @property
    def layers_visible(self) -> list[list[tuple[Widget, Region, Region]]]:
        try:
            return super().layers_visible
        except IndexError:  # something still reaches beyond the last row, until the next layout
            return []


class TightCompositor(SteadyCompositor):
    """A compositor whose partial updates hold the changed spans and nothing else."""

    def render_partial_update(self) -> TightUpdate | None:  # type: ignore[override]
        regions = [region.intersection(self.size.region) for region in self._dirty_regions]
        self._dirty_regions.clear()
        spans = [_Span(*span) for span in self._regions_to_spans(regions)]
        return TightUpdate(sorted(self._pieces(spans), key=lambda piece: piece[:2])) if spans else None

    def _pieces(self, missing: list[_Span]) -> Iterator[_Piece]:
        """The spans as the widgets show them, which come front to back: the first to cover a column has it."""
        for widget, (region, clip) in self.visible_widgets.items():
            if not missing:
                return
            seen = region.intersection(clip)
            mine: list[_Span] = []
            others: list[_Span] = []
            for y, left, right in missing:
                start, stop = max(left, seen.x), min(right, seen.right)
                if not (seen.y <= y < seen.bottom and start < stop):
                    others.append(_Span(y, left, right))
                    continue
                mine.append(_Span(y, start, stop))
                others += [rest for rest in (_Span(y, left, start), _Span(y, stop, right)) if rest.left < rest.right]
            missing = others
            if mine:
                top, bottom = min(span.y for span in mine), max(span.y for span in mine) + 1
                strips = widget.render_lines(Region(0, top - region.y, region.width, bottom - top))
                for y, start, stop in mine:
                    yield _Piece(y, start, without_control(strips[y - top].crop(start - region.x, stop - region.x)))


class TightUpdate(CompositorUpdate):
    """Cursor movements, text, and styles where they differ from the last."""

    def __init__(self, pieces: list[_Piece]) -> None:
        self._pieces = pieces

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.render_segments(console)

    def render_segments(self, console: Console) -> str:
        out: list[str] = []
        current: Style | None = None
        for y, x, strip in self._pieces:
            out.append(Control.move_to(x, y).segment.text)
            for text, style, _ in strip:
                if style != current:
                    out.append(_RESET + _opening(style, console))
                    current = style
                out.append(text)
        return "".join([*out, _RESET])


_RESET = "\x1b[0m"
_openings: dict[tuple[Style, ColorSystem], str] = {}


def _opening(style: Style | None, console: Console) -> str:
    """The escape sequence that turns a style on; hyperlinks, which no widget here has, are left out."""
    if style is None:
        return ""
    system = console._color_system or ColorSystem.TRUECOLOR
    key = (style, system)
    if key not in _openings:
        rendered = style.update_link(None).render("x", color_system=system)
        _openings[key] = rendered.partition("x")[0]
    return _openings[key]


OPENED_WITHIN_S = 2.0
"""The longest that keys and clicks wait for a window that opens."""
_MOST_CELLS = 1 << 20
"""Of a terminal that says its own size; a larger one is none."""


class Parser(XTermParser):
    """Turns what a terminal sends into keys, clicks and pastes, and raises nothing."""

    def parse_mouse_code(self, code: str) -> Message | None:
        try:
            return super().parse_mouse_code(code)
        except (ValueError, ArithmeticError):
            return None

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[events.Key]:
        try:
            keys = list(super()._sequence_to_key_events(sequence, alt))
        except (ValueError, OverflowError):  # a number that is no character's
            return [events.Key(Keys.Ignore, None)]
        return [key if _is_text(key.character) else events.Key(Keys.Ignore, None) for key in keys]

    def feed(self, data: str) -> Iterable[Message]:
        return (message for message in super().feed(data) if not _is_no_size(message))


def _is_text(character: str | None) -> bool:
    return not any(0xD800 <= ord(each) <= 0xDFFF or ord(each) > sys.maxunicode for each in character or "")


def _is_no_size(message: Message) -> bool:
    return isinstance(message, events.Resize) and not 0 < message.size.width * message.size.height <= _MOST_CELLS


_LOCAL_MODES = 3
"""The place of a terminal's local modes among its settings."""


class Driver(LinuxDriver):
    """Textual's driver with a `Parser`, and with a sign for each byte that is not UTF-8."""

    _usual: list[Any] | None = None
    """The terminal's settings that are to be brought back when all is written."""

    def stop_application_mode(self) -> None:
        self._usual, self.attrs_before = self.attrs_before, None
        super().stop_application_mode()

    def _sigcont_application(self, *_: object) -> None:
        """Begin anew after a stop. A terminal that goes sends this signal, too, to an app that was not stopped."""
        with contextlib.suppress(termios.error):
            if termios.tcgetattr(self.fileno)[_LOCAL_MODES] & termios.ICANON:  # which is the shell's
                super()._sigcont_application()

    def close(self) -> None:
        super().close()
        if self._usual is not None:
            with contextlib.suppress(termios.error):
                termios.tcflush(self.fileno, termios.TCIFLUSH)  # what was typed to the app is not for the shell
                termios.tcsetattr(self.fileno, termios.TCSANOW, self._usual)

    def run_input_thread(self) -> None:
        parser, decode = Parser(self._debug), getincrementaldecoder("utf-8")("replace").decode
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(0.1) and (text := decode(os.read(self.fileno, 1 << 12))):
                    for message in parser.feed(text):
                        self.process_message(message)
                for message in parser.tick():
                    self.process_message(message)


class SteadyApp(App[None]):
    """An app that bears whatever its terminal and its user do, and whenever they do it."""

    def get_driver_class(self) -> type[TextualDriver]:
        found = super().get_driver_class()
        return Driver if found is LinuxDriver else found  # another one was asked for in the environment

    async def on_event(self, event: events.Event) -> None:
        """Keys and clicks wait for a window that is being opened, and mean nothing to an app that is ending."""
        if isinstance(event, events.InputEvent) and not event.is_forwarded and self.screen_stack:
            if self._exit:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.screen._mounted_event.wait(), OPENED_WITHIN_S)
        await super().on_event(event)

    def on_resize(self, event: events.Resize) -> None:
        """Repaint all: a terminal that shrank and grew back has lost its content, and Textual sees no new size. Its
        signal handler may be interrupted by itself, and then an older size is the last that it tells."""
        self.screen.refresh()
        if not self.is_headless and (actual := Size(*shutil.get_terminal_size())) != event.size:
            self.post_message(events.Resize(actual, actual))

    def _handle_exception(self, error: Exception) -> None:
        """As Textual's; that a handler finds its widgets gone while the app ends is no crash."""
        cause = error.error if isinstance(error, WorkerFailed) else error
        if not ((self._exit or not self.is_running) and isinstance(cause, NoMatches | MountError)):
            super()._handle_exception(error)
