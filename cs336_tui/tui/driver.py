"""Reads the terminal, whatever bytes come from it, and gives it back.

Textual's own driver and parser end the app at bytes that are not UTF-8 and at key codes that are no character. It gives
Ctrl+S its usual meaning, which is to hold the output, before the last output is written: an app that was left while
somebody typed that stayed for ever. Rests on Textual's internals, one more reason for its exact pin.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
import termios
from codecs import getincrementaldecoder
from collections.abc import Iterable
from typing import Any

from textual import events
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.keys import Keys
from textual.message import Message

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


class Driver(LinuxDriver):
    """Textual's driver with a `Parser`, and with a sign for each byte that is not UTF-8."""

    _usual: list[Any] | None = None
    """The terminal's settings that are to be brought back when all is written."""

    def stop_application_mode(self) -> None:
        self._usual, self.attrs_before = self.attrs_before, None
        super().stop_application_mode()

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
