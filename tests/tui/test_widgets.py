"""Parts of the screen: lines, of which only what changed is painted, rows with a cursor, entries of a form; and how
texts and numbers are written."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.events import Key
from textual.geometry import Region

from cs336_tui.config.sweep import Sweep
from cs336_tui.tui import format
from cs336_tui.tui.widgets.entries import Chips, InputLine, wrap
from cs336_tui.tui.widgets.lines import Line, Lines, Span, fit, line, spread, width_of
from cs336_tui.tui.widgets.rows import Rows
from tests.tui.configuring import NARROW, opened
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
    async with showing(Lines(), size=(30, 3)) as (pilot, widget, _):
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
        widget.paint([line("[bold red]50%[/] of $HOME")])
        await pilot.pause()
        assert widget.text == "[bold red]50%[/] of $HOME", "markup in data is text"


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


async def test_chips_toggle_by_mouse_and_say_their_state_without_colour() -> None:
    async with opened() as hand:
        chips = hand.entry("context_length", Chips)
        assert "■128 □256 □512 □1024" in hand.seen(chips)
        await hand.pilot.click(chips, offset=(hand.seen(chips).index("□512") + 2, 0))
        assert "■128 □256 ■512 □1024" in hand.seen(chips)
        await hand.pilot.click(chips, offset=(2, 0))
        await hand.pilot.click(chips, offset=(hand.seen(chips).index(" □1024"), 0))
        assert "■128 □256 ■512 □1024" in hand.seen(chips), "neither the label nor a gap is a chip"


async def test_chips_of_a_later_row_toggle_by_mouse() -> None:
    async with opened(NARROW) as hand:
        chips = hand.entry("pass", Chips)
        *_, row = rows = hand.seen(chips).splitlines()
        assert len(rows) > 1
        await hand.pilot.click(chips, offset=(row.index("train"), len(rows) - 1))
        assert hand.pane.form.sweep == Sweep(passes=("forward", "forward+backward"))


async def test_up_and_down_move_between_rows_of_chips_before_they_leave() -> None:
    async with opened(NARROW) as hand:
        chips = hand.entry("pass", Chips)
        await hand.go_to(chips)
        await hand.press("right", "down")
        assert chips.has_focus
        assert chips.labels[chips.under_cursor] == "bwd", "the one below, not the next"
        await hand.press("up")
        assert chips.labels[chips.under_cursor] == "fwd"
        await hand.press("down", "down", "down")
        assert hand.entry("precision", Chips).has_focus
        await hand.press("up")
        assert chips.has_focus


async def test_one_choice_only_behaves_like_a_radio_button() -> None:
    async with opened() as hand:
        await hand.unfold()
        await hand.tick("sync", "each-step")
        assert hand.asked("choices_changed") == [], "the chosen one stays chosen"
        assert "●each-step ○pipelined" in hand.seen(hand.entry("sync", Chips))


@given(st.lists(st.integers(1, 30), max_size=12), st.integers(-3, 40))
def test_chips_wrap_in_order_and_fit_where_one_can(widths: list[int], available: int) -> None:
    rows = wrap(widths, available)
    assert [index for row in rows for index in row] == list(range(len(widths)))
    for row in rows:
        taken = sum(widths[index] for index in row) + max(len(row) - 1, 0)
        assert taken <= available or len(row) <= 1


async def test_keys_of_one_burst_are_taken_in_their_order() -> None:
    """Letters behind a Backspace, as a slow connection delivers them together."""

    class Form(App[None]):
        def compose(self) -> ComposeResult:
            yield InputLine("12", select_on_focus=False)

    app = Form()
    async with app.run_test() as pilot:
        for key in ("3", "backspace", "home", "4", "delete", "5"):
            app.post_message(Key(key, key if key.isdigit() else None))
        await pilot.pause()
        assert app.query_one(InputLine).value == "452"


def test_milliseconds_are_as_fine_as_the_spread() -> None:
    assert (format.ms(0.1532, 0.00041), format.ms(0.1532, 0.012), format.ms(0.1532)) == ("153.20", "153", "153.2")
    assert (format.ms(0.0001532, 0.0000004), format.ms(None)) == ("0.15320", "–")


def test_the_std_is_labelled_and_left_out_while_unknown() -> None:
    assert format.mean_std(0.1532, 0.00041, 6) == "153.20 ms ± 0.41 std (n=6)"
    assert format.mean_std(0.1532, None, 1) == "153.2 ms (n=1)"


def test_what_a_device_does_not_report_is_not_available() -> None:
    assert format.percent(None) == format.number(None) == format.used_of(None, None) == "n/a"
    assert format.used_of(None, 80_000_000_000) == "n/a/80.0 GB"
    assert format.used_of(61_200_000_000, 80_000_000_000) == "61.2/80.0 GB"


def test_foreign_text_loses_what_could_drive_the_terminal() -> None:
    assert format.plain("\x1b[31mred\x1b[0m\x1b]52;c;AAAA\x07 \x07bell\tend") == "red bell    end"
    assert format.plain("[bold]not markup[/]") == "[bold]not markup[/]"


LONG = "not predicted: RuntimeError: " + "aten::something has no kernel for these " * 4 + "(model.py:64 in forward)"


@pytest.mark.parametrize("width", [30, 34, 78])
@pytest.mark.parametrize("most", [2, 3])
def test_a_text_that_is_cut_says_so_and_keeps_the_line_it_ends_with(width: int, most: int) -> None:
    lines = format.cut_to_lines(LONG, width, most)
    assert len(lines) <= most
    assert max(map(len, lines)) <= width
    text = " ".join(lines)
    assert text.startswith("not predicted:")
    assert text.endswith("(model.py:64 in forward)")
    assert ("…" in text) == (len(LONG) > width * most)


def test_a_text_that_fits_is_whole_and_one_without_a_place_ends_with_the_sign() -> None:
    assert " ".join(format.cut_to_lines(LONG, 40, 9)) == LONG
    assert format.cut_to_lines("word " * 50, 20, 2)[-1].endswith("…")
    assert format.cut_to_lines("x" * 50, 20, 2) == ["x" * 20, "x" * 20]


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("{}/res", "{}/results/"),
        ("{}/results/a", "{}/results/a b.json"),
        ("a.json,{}/se", "a.json,{}/session.jsonl"),
        ("{}/", "{}/results/"),
        ("{}/.h", "{}/.hidden"),
        ("{}/none", "{}/none"),
        ("{}/missing/a", "{}/missing/a"),
        ("res", "res"),
    ],
)
async def test_tab_completes_a_path_that_is_typed(typed: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    for name in ("results/a b.json", "session.jsonl", ".hidden"):
        (tmp_path / name).touch()

    class OneLine(App[None]):
        def compose(self) -> ComposeResult:
            yield InputLine()
            yield InputLine(id="next")

    async with OneLine().run_test() as pilot:
        typing = pilot.app.query(InputLine).first()
        typing.insert_text_at_cursor(typed.format(tmp_path))
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        await pilot.press("tab")
        assert typing.value == shown.format(tmp_path)
        assert typing.has_focus is (typed != shown), "without a path Tab goes on"
