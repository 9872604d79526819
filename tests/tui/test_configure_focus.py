"""The Configure pane in use: focus, scrolling, buttons, terminal sizes, and problems, explained at the entry and beside
Run."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.widget import Widget

from cs336_tui.config.sweep import Sweep
from cs336_tui.tui.widgets.entries import Chips, Entry, TextEntry
from tests.tui.configuring import HERE, NARROW, WIDE, Hand, opened, reachable


def in_sight(hand: Hand, widget: Widget) -> bool:
    """True if all of the widget is within the part of the form that is shown, or it is one of the buttons."""
    shown = widget.region.intersection(hand.pane.query_one("#form").region)
    return shown.height == widget.region.height or hand.button("run").parent is widget.parent


@pytest.mark.parametrize(("forward", "back"), [("tab", "shift+tab"), ("down", "up")])
async def test_tab_and_arrows_reach_everything(forward: str, back: str) -> None:
    async with opened((40, 12)) as hand:
        await hand.unfold()
        await hand.unfold("variants")
        await hand.tick("size", "custom")
        stops = reachable(hand)
        await hand.go_to(stops[0])
        order = [stops[0]]
        while len(order) < len(stops):
            await hand.press(forward)
            focused = hand.host.focused
            if forward == "tab" or focused is not order[-1]:
                assert focused not in order
                assert in_sight(hand, focused), focused
                order.append(focused)
        assert order == stops
        for _ in range(3 * len(stops)):
            if hand.host.focused is not stops[0]:
                await hand.press(back)
        assert hand.host.focused is stops[0]


async def test_a_fold_that_is_opened_shows_its_entries() -> None:
    async with opened((34, 22)) as hand:
        for name, first in (("more", "edition"), ("variants", "workload")):
            await hand.unfold(name)
            assert in_sight(hand, hand.entry(first, Chips)), name


@pytest.mark.parametrize("size", [NARROW, WIDE, (40, 12), (28, 6)])
async def test_the_summary_and_the_buttons_are_always_in_sight(size: tuple[int, int]) -> None:
    async with opened(size) as hand:
        for name in ("run", "stop", "export"):
            assert name.capitalize() in hand.seen(hand.button(name))
        assert "cells" in hand.summary
        await hand.type("batch_size", "x")
        assert "✗ batch size x" in hand.summary


@pytest.mark.parametrize("size", [(34, 25), (80, 20)])
async def test_all_that_is_chosen_first_fits_without_scrolling(size: tuple[int, int]) -> None:
    async with opened(size) as hand:
        assert hand.pane.query_one("#form").max_scroll_y == 0
        labels = "preset size context pass precision batch warm-up steps device".split()
        seen = hand.seen()
        assert all(label in seen for label in labels)


async def test_from_typing_enter_moves_on_and_escape_leads_to_the_buttons() -> None:
    async with opened() as hand:
        await hand.type("batch_size", "8")
        await hand.press("enter")
        assert hand.entry("warmup_steps", TextEntry).has_focus_within
        assert hand.asked("run") == []
        assert hand.pane.form.sweep == Sweep(batches=(8,))
        await hand.press("escape")
        assert hand.button("run").has_focus
        await hand.type("batch_size", "x")
        await hand.press("escape")
        assert hand.button("export").has_focus, "Run cannot be pressed"


async def test_buttons_follow_the_run_and_keep_the_focus() -> None:
    async with opened() as hand:
        run, stop, export = (hand.button(name) for name in ("run", "stop", "export"))
        assert (run.disabled, stop.disabled, export.disabled) == (False, True, False)
        assert "[ Run ]" in hand.seen(run)
        assert "[" not in hand.seen(stop)
        await hand.go_to(run)
        hand.pane.set_running(True)
        await hand.pilot.pause()
        assert (run.disabled, stop.disabled) == (False, False)
        assert run.has_focus
        assert hand.pane.has_class("-focused")
        assert "[ Add ]" in hand.seen(run)
        await hand.press("enter")
        assert len(hand.asked("run")) == 1
        await hand.go_to(stop)
        await hand.press("enter")
        assert len(hand.asked("stop")) == 1
        hand.pane.set_running(True, stopping=True)
        await hand.pilot.pause()
        assert (run.disabled, stop.disabled) == (True, True)
        assert "Stop…" in hand.seen(stop)
        hand.pane.request_run()
        await hand.pilot.pause()
        assert len(hand.asked("run")) == 1, "nothing is added to what is being stopped"
        hand.pane.set_running(False)
        await hand.pilot.pause()
        assert (run.disabled, stop.disabled) == (False, True)
        assert run.has_focus
        await hand.pilot.click("#export")
        assert len(hand.asked("export")) == 1
        hand.host.screen.set_focus(None)
        await hand.settle()
        assert not hand.pane.has_class("-focused")
        hand.pane.set_running(True)
        await hand.type("batch_size", "9")
        hand.pane.set_running(False)
        assert hand.pane.form.sweep == Sweep(batches=(9,)), "what is typed during a run waits for the next one"


async def test_resizing_to_next_to_nothing_and_back_loses_nothing() -> None:
    async with opened() as hand:
        await hand.unfold()
        await hand.type("batch_size", "x")
        for size in ((40, 12), (12, 4), (1, 1), (200, 60), WIDE):
            await hand.pilot.resize_terminal(*size)
            await hand.pilot.pause()
        assert hand.entry("batch_size", TextEntry).value == "x"
        assert "✗ x: expected" in hand.seen(hand.entry("batch_size", TextEntry))


async def test_a_move_of_the_focus_styles_few_widgets_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as hand:
        await hand.unfold()
        styled: list[object] = []
        sheet, apply = hand.host.stylesheet, hand.host.stylesheet.apply
        monkeypatch.setattr(sheet, "apply", lambda node, **more: (styled.append(node), apply(node, **more)))
        await hand.press("tab")
        assert 0 < len(styled) < len(reachable(hand))


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_a_bad_number_is_explained_at_its_entry_and_beside_run(size: tuple[int, int]) -> None:
    async with opened(size) as hand:
        await hand.unfold()
        for field, text, good, said in (
            ("other_contexts", "0", "96", "0: expected a whole number, at least 1"),
            ("batch_size", "-4", "4", "-4: expected a whole number, at least 1"),
            ("warmup_steps", "five", "5", "five: expected a whole number, or several as 1,2,4"),
            ("timeout_s", "-1", "9", "-1: expected seconds, more than 0, or nothing"),
        ):
            await hand.type(field, text)
            entry = hand.entry(field, TextEntry)
            assert said in " ".join(hand.seen(entry).split())
            assert text in hand.seen(entry).splitlines()[0], "what was typed is still there"
            assert said in " ".join(hand.summary.split())
            assert hand.pane.form.sweep is None
            assert hand.button("run").disabled
            hand.pane.request_run()
            await hand.press("ctrl+u", *good)
            assert hand.pane.form.problems == ()
            assert not hand.button("run").disabled
            assert entry.size.height == 1
        assert hand.asked("run") == []


async def test_several_problems_are_all_shown_and_counted() -> None:
    async with opened() as hand:
        await hand.type("batch_size", "x")
        await hand.type("measure_steps", "y")
        assert "✗ batch size x" in hand.summary
        assert "(and 1 more)" in " ".join(hand.summary.split())
        assert "✗ y: expected a whole number" in hand.seen(hand.entry("measure_steps", TextEntry))


@pytest.mark.parametrize(("fold", "field"), [("more", "seed"), ("variants", "model")])
async def test_a_problem_that_is_folded_away_marks_the_fold(fold: str, field: str) -> None:
    async with opened() as hand:
        await hand.unfold(fold)
        await hand.type(field, "x")
        await hand.go_to(hand.fold(fold))
        await hand.press("space")
        assert f"▸ ✗ {fold}" in hand.seen(hand.fold(fold))
        assert f"{field} x" in hand.summary
        await hand.press("space")
        assert hand.entry(field, TextEntry).value == "x"


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
            pane = hand.pane
            assert (pane.form.sweep is None) == bool(pane.form.problems)
            assert hand.button("run").disabled == bool(pane.form.problems)
            told = {entry.field for entry in pane.query(Entry).results(Entry) if entry.problem}
            assert bool(told) <= bool(pane.form.problems)
            if pane.form.sweep:
                pane.form.sweep.with_devices(HERE.resolve(pane.form.sweep.devices)).cells()

    asyncio.run(play())
