"""Reads the terminal, whatever bytes come from it, and keeps in mind what it shows.

Textual's driver and parser end the app at bytes that are not UTF-8 and at key codes that are no character. At the end
they give Ctrl+S its usual meaning, which holds the output, before the last output is written: it hangs.

Rests on Textual's internals; hence its exact pin.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import shutil
import sys
import termios
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Awaitable, Iterable
from types import NoneType
from typing import Any

from rich.console import RenderableType
from textual import events
from textual._time import get_time
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.content import Content
from textual.css.query import NoMatches
from textual.dom import DOMNode
from textual.driver import Driver as TextualDriver
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Size
from textual.keys import Keys
from textual.message import Message
from textual.screen import Screen
from textual.widget import MountError
from textual.worker import WorkerFailed

from cs336_tui.runner.pipes import StopSignal
from cs336_tui.tui.compositor import Drawn, TightUpdate

_wrap_and_format = Content._wrap_and_format


def _wrap_and_format_in_some_width(content: Content, width: int, *more: Any, **named: Any) -> Any:
    """As Textual's, which fails where a terminal has no room for a text."""
    return _wrap_and_format(content, max(width, 1), *more, **named)


# In Textual's class, as its own widgets make texts too.
Content._wrap_and_format = _wrap_and_format_in_some_width  # type: ignore[assignment, method-assign]

OPENED_WITHIN_S = 2.0
"""The longest that keys and clicks wait for a window, or for a tab and its rows."""
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
        for place, key in enumerate(keys):
            if any(0xD800 <= ord(each) <= 0xDFFF or ord(each) > sys.maxunicode for each in key.character or ""):
                keys[place] = events.Key(Keys.Ignore, None)
        return keys

    def feed(self, data: str) -> Iterable[Message]:
        for message in super().feed(data):
            if not isinstance(message, events.Resize) or 0 < message.size.width * message.size.height <= _MOST_CELLS:
                yield message

    @property
    def waits_s(self) -> float | None:
        """Seconds until `tick` takes what has come for a whole key; None if nothing has begun."""
        return None if self._timeout_time is None else max(self._timeout_time - get_time(), 0.0)


_LOCAL_MODES = 3
"""The place of a terminal's local modes among its settings."""


class Driver(LinuxDriver):
    """Textual's driver with a `Parser`, and with a sign for each byte that is not UTF-8. Its thread sleeps until there
    is input: Textual's wakes up ten times a second, a third of what an idle app costs."""

    _usual: list[Any] | None = None
    """The terminal's settings that are to be brought back when all is written."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.exit_event = StopSignal()  # type: ignore[assignment]  # which a selector can wait for

    def start_application_mode(self) -> None:
        if isinstance(self._app, SteadyApp):
            self._app.drawn.forget()
        super().start_application_mode()  # type: ignore[no-untyped-call]

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
            selector.register(self.exit_event, selectors.EVENT_READ)  # type: ignore[arg-type]
            while True:
                ready = selector.select(parser.waits_s)
                if self.exit_event.is_set():
                    return
                if ready and (text := decode(os.read(self.fileno, 1 << 12))):
                    for message in parser.feed(text):
                        self.process_message(message)
                for message in parser.tick():
                    self.process_message(message)


async def in_time(opening: Awaitable[object]) -> None:
    """Wait for what opens, but not without end."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(opening, OPENED_WITHIN_S)


class SteadyApp(App[None]):
    """An app that bears whatever its terminal and its user do, and whenever they do it."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = Drawn()
        self._drawn_size: Size | None = None
        self._drawing: tuple[Screen[Any] | None, asyncio.Task[bool] | None] = (None, None)
        """The screen that `laid_out` last waited for."""
        self._typed: deque[events.InputEvent] = deque()
        """Keys that were typed behind one that is still being taken."""
        self._taking: asyncio.TimerHandle | None = None
        """Goes on with what was typed, should the key that is being taken get lost; None: no key is."""

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        """A terminal of another size may show something else than was written: it cuts what is beyond its edge."""
        if screen.size != self._drawn_size or not isinstance(renderable, TightUpdate | NoneType):
            self.drawn.forget()
        self._drawn_size = screen.size
        if isinstance(renderable, TightUpdate):
            renderable.onto, renderable.size = self.drawn, screen.size
        super()._display(screen, renderable)

    def get_driver_class(self) -> type[TextualDriver]:
        found = super().get_driver_class()
        return Driver if found is LinuxDriver else found  # another one was asked for in the environment

    def update_styles(self, node: DOMNode, animate: bool = True) -> None:
        """As Textual's, but for nodes that are not mounted yet: they are styled then."""
        if node is self or node.parent is not None:
            super().update_styles(node, animate)

    async def on_event(self, event: events.Event) -> None:
        """Keys and clicks wait for the key before them and for a window that is being opened, and mean nothing to an
        app that is ending."""
        if isinstance(event, events.InputEvent) and not event.is_forwarded and self.screen_stack:
            if self._exit:
                return
            if self._taking is not None:
                self._typed.append(event)
                return
            screen: Any = self.screen  # whose event has no type
            await in_time(screen._mounted_event.wait())
            if isinstance(event, events.Key):
                self._taking = asyncio.get_running_loop().call_later(OPENED_WITHIN_S, self.call_later, self._go_on)
                self.call_next(self._climb, list((self.focused or self.screen).ancestors_with_self))
        await super().on_event(event)

    async def _climb(self, takers: list[DOMNode]) -> None:
        """Follow a key from the widget with the focus to the app, which does what its keys ask for."""
        while takers:
            if takers.pop(0).call_later(self._climb, takers):
                return
        await self._go_on()

    async def _go_on(self) -> None:
        """The key has been taken: what was typed behind it is next."""
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None
        while self._typed and self._taking is None:
            await self.on_event(self._typed.popleft())

    def action_redraw(self) -> None:
        """Write the whole screen, whatever the terminal is known to show."""
        self.drawn.forget()
        self.screen.refresh()

    async def laid_out(self) -> None:
        """Wait until the screen has been laid out and drawn; what is typed meanwhile waits. One that was not drawn in
        time is not waited for again before it is, so that many keys in one burst do not wait for long each."""
        screen, drawing = self._drawing
        if screen is not self.screen or drawing is None or drawing.done():
            drawing = asyncio.create_task(self.screen.wait_for_refresh())
            self._drawing = self.screen, drawing
            await asyncio.wait([drawing], timeout=OPENED_WITHIN_S)

    def on_resize(self, event: events.Resize) -> None:
        """Repaint all: a terminal that shrank and grew back has lost its content, and Textual sees no new size. Its
        signal handler may be interrupted by itself, and then an older size is the last that it tells."""
        self.action_redraw()
        if not self.is_headless and (actual := Size(*shutil.get_terminal_size())) != event.size:
            self.post_message(events.Resize(actual, actual))

    def _handle_exception(self, error: Exception) -> None:
        """As Textual's; that a handler finds its widgets gone while the app ends is no crash."""
        cause = error.error if isinstance(error, WorkerFailed) else error
        if not ((self._exit or not self.is_running) and isinstance(cause, NoMatches | MountError)):
            super()._handle_exception(error)
