"""Partial updates leave the same screen as a full update."""

from __future__ import annotations

from typing import Any

import pyte
import pytest
from rich.color import ColorSystem
from rich.segment import Segment

from cs336_tui.events.events import StepsTimed
from cs336_tui.session.log import LogReader
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.compositor import TightUpdate
from tests.tui.make_log import DEMO_LOG
from tests.tui.watched import until

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
    async with app.run_test(size=(WIDTH, HEIGHT)) as pilot:
        await until(pilot, "Nothing has run yet")
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
            app.sink([event])
            if number % 7 == 0 or isinstance(event, StepsTimed):
                await pilot.pause()
                app.paint()
            if number == 120:
                break
        await pilot.press("5", "4", "down")
        await until(pilot, "small")
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
