"""Problems of a sweep are explained in the Configure pane: at the entry and beside Run."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cs336_tui.tui.widgets.entries import Chips, Entry, TextEntry
from tests.tui.configuring import HERE, NARROW, WIDE, opened


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_a_bad_number_is_explained_at_its_entry_and_beside_run(size: tuple[int, int]) -> None:
    async with opened(size) as hand:
        await hand.unfold()
        for field, text, good, said in (
            ("other_contexts", "0", "96", "0: expected a whole number, at least 1"),
            ("batch_size", "-4", "4", "-4: expected a whole number, at least 1"),
            ("warmup_steps", "five", "5", "five: expected a whole number, or several as 1,2,4"),
            ("measure_steps", "0", "10", "0: expected a whole number, at least 1"),
            ("seed", "x", "1", "x: expected a whole number"),
            ("threads", "0", "2", "0: expected a whole number, at least 1"),
            ("timeout_s", "-1", "9", "-1: expected seconds, more than 0, or nothing"),
        ):
            await hand.type(field, text)
            await hand.pilot.pause()
            entry = hand.entry(field, TextEntry)
            assert said in " ".join(hand.seen(entry).split())
            assert text in hand.seen(entry).splitlines()[0], "what was typed is still there"
            assert said in " ".join(hand.summary.split())
            assert hand.pane.sweep is None
            assert hand.button("run").disabled
            hand.pane.request_run()
            await hand.press("ctrl+u", *good)
            assert hand.pane.problems == ()
            assert not hand.button("run").disabled
            assert entry.size.height == 1
        assert hand.asked("run") == []


async def test_nothing_chosen_is_a_problem_at_that_row() -> None:
    async with opened() as hand:
        await hand.tick("pass", "forward")
        await hand.tick("pass", "forward+backward")
        await hand.tick("pass", "train-step")
        await hand.pilot.pause()
        assert "✗ (none): choose at least one" in hand.seen(hand.entry("pass", Chips))
        assert "✗ pass (none): choose at least one" in hand.summary


async def test_several_problems_are_all_shown_and_counted() -> None:
    async with opened() as hand:
        await hand.type("batch_size", "x")
        await hand.type("measure_steps", "y")
        await hand.pilot.pause()
        assert "✗ batch size x" in hand.summary
        assert "(and 1 more)" in " ".join(hand.summary.split())
        assert "✗ y: expected a whole number" in hand.seen(hand.entry("measure_steps", TextEntry))


async def test_a_problem_that_is_folded_away_marks_the_fold() -> None:
    async with opened() as hand:
        await hand.unfold()
        await hand.type("seed", "x")
        await hand.go_to(hand.fold())
        await hand.press("space")
        await hand.pilot.pause()
        assert "▸ ✗ more" in hand.seen(hand.fold())
        assert "seed x" in hand.summary
        await hand.press("space")
        assert hand.entry("seed", TextEntry).value == "x"


async def test_a_device_that_cannot_do_a_precision_says_what_it_can() -> None:
    async with opened() as hand:
        await hand.tick("precision", "tf32")
        assert hand.pane.problems == ()
        await hand.tick("device", "cpu")
        await hand.pilot.pause()
        seen = " ".join(hand.seen(hand.entry("precision", Chips)).split())
        assert "✗ tf32: cpu (a CPU) can do fp32, bf16-mixed" in seen


KEYS = st.sampled_from(
    ["tab", "shift+tab", "up", "down", "left", "right", "space", "enter", "escape", "home", "end", "backspace",
     "ctrl+u", "pagedown", "0", "1", "5", "9", "x", "comma", "minus", "full_stop", "q", "left_square_bracket", "é"]
)  # fmt: skip


@settings(max_examples=10, deadline=None)
@given(keys=st.lists(KEYS, min_size=10, max_size=60), size=st.sampled_from([NARROW, WIDE, (40, 12)]))
def test_whatever_is_pressed_there_is_a_sweep_or_a_reason(keys: list[str], size: tuple[int, int]) -> None:
    async def play() -> None:
        async with opened(size) as hand:
            await hand.press(*keys)
            await hand.pilot.pause()
            pane = hand.pane
            assert (pane.sweep is None) == bool(pane.problems)
            assert hand.button("run").disabled == bool(pane.problems)
            told = {entry.field for entry in pane.query(Entry).results(Entry) if entry.problem}
            assert bool(told) <= bool(pane.problems)
            if pane.sweep:
                pane.sweep.with_devices(HERE.resolve(pane.sweep.devices)).cells()

    asyncio.run(play())
