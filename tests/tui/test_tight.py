"""Partial updates leave the same screen as a full update."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pyte
import pytest
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from textual.geometry import Size
from textual.strip import Strip

from benchmarks.reporting import app as app_command
from cs336_tui.events.events import StepsTimed
from cs336_tui.session.log import LogReader
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.compositor import Drawn, TightUpdate, _Piece
from tests.terminal import Terminal
from tests.tui.watched import DEMO_LOG, on_screen, press, until

WIDTH, HEIGHT = 120, 40


def shown(terminal: pyte.Screen) -> list[list[tuple[str, str, str]]]:
    """Character, foreground and background of every cell of an emulated terminal."""
    rows = (terminal.buffer[y] for y in range(HEIGHT))
    return [[(row[x].data, row[x].fg, row[x].bg) for x in range(WIDTH)] for row in rows]


def meant(app: Cs336App) -> list[list[tuple[str, str, str]]]:
    """Character, foreground and background of every cell that the app wants to show."""

    def cells(segment: Segment) -> list[tuple[str, str, str]]:
        style = segment.style
        assert style is not None
        both = (style.color, style.bgcolor)
        colors = [color.get_truecolor().hex.removeprefix("#") if color else "default" for color in both]
        return [(char, colors[0], colors[1]) for char in segment.text]

    strips = app.screen._compositor.render_strips()
    return [[cell for segment in strip for cell in cells(segment)] for strip in strips]


async def test_a_session_of_partial_updates_leaves_the_screen_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = pyte.Screen(WIDTH, HEIGHT)
    stream = pyte.Stream(terminal)
    app = Cs336App()
    app.console._color_system = ColorSystem.TRUECOLOR
    async with on_screen(app, "Nothing has run yet", size=(WIDTH, HEIGHT)) as (_, pilot):
        partial = 0

        def emulate(_: Any, update: Any) -> None:
            nonlocal partial
            if update is not None:
                partial += isinstance(update, TightUpdate)
                stream.feed(update.render_segments(app.console).replace("\n", "\r\n"))

        monkeypatch.setattr(app, "_display", emulate)
        app.screen.refresh()
        await until(pilot, "Nothing has run yet")
        for number, event in enumerate(LogReader(DEMO_LOG)):
            app.take(app.live, [event])
            if number % 7 == 0 or isinstance(event, StepsTimed):
                await pilot.pause()
                app.paint()
            if number == 120:
                break
        await press(pilot, "5", "4", "down", seen="small")
        wanted, seen = meant(app), shown(terminal)
        # A blank has no visible foreground.
        differ = [
            (x, y, w, s)
            for y in range(HEIGHT)
            for x, (w, s) in enumerate(zip(wanted[y], seen[y], strict=True))
            if (w[0], w[2]) != (s[0], s[2]) or (w[0] != " " and w[1] != s[1] and s[0] != " ")
        ]
        assert not [d for d in differ if d[2][0] != " " or d[3][0] != " "][:5]
        assert partial > 30


def drawn(*texts: str) -> tuple[str, list[str]]:
    """The last text as a terminal shows it, and all that was written, where one row showed the texts in turn."""
    terminal, onto, console = pyte.Screen(WIDTH, 1), Drawn(), Console(color_system="truecolor")
    stream, written = pyte.Stream(terminal), []
    for text in texts:
        update = TightUpdate([_Piece(0, 0, Strip([Segment(text.ljust(20))]))])
        update.onto = onto
        written.append(update.render_segments(console))
        stream.feed(written[-1])
    return "".join(terminal.buffer[0][x].data for x in range(20)).rstrip(), written


def test_only_what_differs_is_written_and_nothing_where_nothing_does() -> None:
    assert drawn("step 1 of 10", "step 2 of 10") == ("step 2 of 10", [ANY, "\x1b[1;6H\x1b[0m2\x1b[0m"])
    assert drawn("step 1 of 10", "step 1 of 10")[1][1] == ""
    assert "\x1b[2" not in drawn("\x1b[2Jstep\x07", "step")[1][0]


@pytest.mark.parametrize("word", ["漢字", "e\u0301", "漢e\u0301"])
def test_a_row_with_characters_of_other_widths_is_written_whole(word: str) -> None:
    before, after = f"{word} 1 of 10", f"{word} 2 of 10"
    shown, (_, second) = drawn(before, after)
    assert "2 of 10" in shown
    assert f"\x1b[1;1H\x1b[0m{after}" in second
    assert "漢" not in drawn(before, "step 2 of 10")[0]


def test_nothing_is_written_beyond_a_terminal_that_became_smaller_than_the_layout() -> None:
    pieces = [_Piece(y, x, Strip([Segment("edge")])) for y, x in ((0, 6), (0, 10), (1, 0))]
    update = TightUpdate(pieces)
    update.size = Size(8, 1)
    assert update.render_segments(Console(color_system="truecolor")) == "\x1b[1;7H\x1b[0med\x1b[0m"


def test_a_key_and_another_size_draw_the_whole_screen_anew(tmp_path: Path) -> None:
    """The terminal may show something else than was written: it cuts what is written beyond its new size."""
    with closing(Terminal([*app_command(), "--session-dir", str(tmp_path)], columns=80, rows=24)) as terminal:
        terminal.until("Quit")  # the last row
        for again in (lambda: terminal.send("\x0c"), lambda: terminal.resize(78, 24)):
            terminal.look(lambda screen: screen.erase_in_display(2))
            again()
            terminal.until(lambda text: "cs336-tui" in text and "Quit" in text)
