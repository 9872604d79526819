"""Lines, of which only what changed is painted, and a list of rows with a cursor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.geometry import Region

from cs336_tui.tui.widgets.lines import Line, Lines, Span, fit, line, spread, width_of
from cs336_tui.tui.widgets.rows import Rows
from tests.tui.one_pane import showing

words = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)
lines = st.lists(st.builds(Span, words, st.sampled_from(["text", "muted"])), max_size=5).map(tuple)


@given(spans=lines, width=st.integers(1, 60))
def test_fitted_lines_fit(spans: Line, width: int) -> None:
    fitted = fit(spans, width)
    assert width_of(fitted) <= width
    assert fitted == spans or "…" in "".join(span.text for span in fitted)


def test_the_right_half_gives_way() -> None:
    assert width_of(spread(line("left"), line("right"), 20)) == 20
    assert spread(line("left"), line("right"), 9) == line("left")


async def test_a_repaint_of_the_same_repaints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with showing(Lines(), size=(30, 3)) as (_, widget, _app):
        painted: list[Region] = []
        refresh = widget.refresh
        monkeypatch.setattr(widget, "refresh", lambda *regions, **_: painted.extend(regions) or refresh(*regions))
        widget.paint([line("step 1 of 10"), line(("153.20", "strong"))])
        assert painted
        painted.clear()
        widget.paint([line("step 1 of 10"), line(("153.20", "strong"))])
        assert painted == []
        widget.paint([line("step 2 of 10"), line(("153.20", "strong"))])
        assert painted == [Region(0, 0, 30, 1)]


async def test_markup_in_data_is_text() -> None:
    async with showing(Lines(), size=(30, 3)) as (pilot, widget, _):
        widget.paint([line("[bold red]50%[/] of $HOME")])
        await pilot.pause()
        assert widget.text == "[bold red]50%[/] of $HOME"


async def test_every_role_has_a_style_in_every_bundled_theme() -> None:
    from cs336_tui.tui.preferences import load_bundled
    from cs336_tui.tui.widgets.lines import _ROLES

    async with showing(Lines(), size=(30, 3)) as (pilot, widget, app):
        for theme in load_bundled().themes:
            app.register_theme(theme)
            app.theme = theme.name
            await pilot.pause()
            widget.paint([line(("x", role)) for role in _ROLES])
            assert {widget.style_of(role) for role in _ROLES}


async def test_a_cursor_on_a_row_that_is_still_to_come_stays_there() -> None:
    async with showing(Rows(cursor=True), size=(20, 5)) as (pilot, rows, _):
        rows.fill([line(("first", "text"))])
        rows.cursor = 3
        await pilot.resize_terminal(30, 8)
        await pilot.pause()
        rows.fill([line((str(number), "text")) for number in range(5)])
        assert rows.cursor == 3
        rows.fill([line(("only", "text"))])
        assert rows.cursor == 0
