"""Entries of the configure pane: chips by mouse, over several rows, and one at a time; lines of text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.events import Key

from cs336_tui.config.sweep import Sweep
from cs336_tui.tui.widgets.entries import Chips, InputLine, wrap
from tests.tui.configuring import NARROW, opened


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
        assert hand.pane.sweep == Sweep(passes=("forward", "forward+backward"))


async def test_up_and_down_move_between_rows_of_chips_before_they_leave() -> None:
    async with opened(NARROW) as hand:
        chips = hand.entry("pass", Chips)
        await hand.go_to(chips)
        await hand.press("right", "down")
        assert chips.has_focus
        assert chips.chips[chips.cursor].label == "bwd", "the one below, not the next"
        await hand.press("up")
        assert chips.chips[chips.cursor].label == "fwd"
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
