"""The configure pane by keyboard and mouse, in the sizes it is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual import events
from textual.app import App, ComposeResult
from textual.containers import Container
from textual.message import Message
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Input

from cs336_tui import spec
from cs336_tui.presets import bundled, preset
from cs336_tui.spec import ModelDims
from cs336_tui.sweep import Sweep
from cs336_tui.tui.form import RunOptions
from cs336_tui.tui.panes.configure import ConfigurePane
from cs336_tui.tui.themes import VARIABLE_DEFAULTS
from cs336_tui.tui.widgets.chips import Chips, wrap
from cs336_tui.tui.widgets.entry import Entry, TextEntry
from cs336_tui.tui.widgets.fold import Fold
from cs336_tui.tui.widgets.preset_entry import PresetEntry
from tests.tui.test_form import HERE

W = TypeVar("W", bound=Widget)
NARROW, WIDE = (30, 24), (80, 20)
TYPED = {
    "comma": ",", "minus": "-", "full_stop": ".", "space": " ", "left_square_bracket": "[", "colon": ":",
    "percent_sign": "%",
}  # fmt: skip
"""What the keys that are named type."""


class Host(App[None]):
    """A screen that is all configure pane, and remembers what it asked for."""

    CSS = "Container { height: 1fr; }"

    def __init__(self, pane: ConfigurePane) -> None:
        super().__init__()
        self.animation_level = "none"
        self.pane = pane
        self.asked: list[Message] = []

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return VARIABLE_DEFAULTS

    def compose(self) -> ComposeResult:
        with Container():
            yield self.pane

    def on_configure_pane_changed(self, message: ConfigurePane.Changed) -> None:
        assert (message.sweep, message.problems) == (self.pane.sweep, self.pane.problems)
        self.asked.append(message)

    def on_configure_pane_run_requested(self, message: ConfigurePane.RunRequested) -> None:
        self.asked.append(message)

    def on_configure_pane_stop_requested(self, message: ConfigurePane.StopRequested) -> None:
        self.asked.append(message)

    def on_configure_pane_export_requested(self, message: ConfigurePane.ExportRequested) -> None:
        self.asked.append(message)


class Hand:
    """What a person does with the pane, and what they see."""

    def __init__(self, host: Host, pilot: Pilot[None]) -> None:
        self.host, self.pane, self.pilot = host, host.pane, pilot

    async def press(self, *keys: str) -> None:
        """Press keys, each when all that the one before set off has happened."""
        for key in keys:
            self.host.post_message(events.Key(key, TYPED.get(key, key if len(key) == 1 else None)))
            await self.settle()

    async def settle(self) -> None:
        """Let messages go from the innermost widget to the app, one hop a round."""
        for _ in range(6):
            await self.pilot.pause(0)

    def entry(self, field: str, kind: type[W]) -> W:
        return self.pane.query_one(f"#entry-{field.replace('_', '-')}", kind)

    async def go_to(self, widget: Widget) -> None:
        inner = widget.query_one(Input) if isinstance(widget, TextEntry) else widget
        inner.focus()
        await self.settle()

    async def tick(self, field: str, value: str) -> None:
        """Toggle a chip by keyboard."""
        chips = self.entry(field, Chips)
        await self.go_to(chips)
        at = [chip.value for chip in chips.chips].index(value)
        while chips.cursor != at:
            await self.press("right" if chips.cursor < at else "left")
        await self.press("space")

    async def type(self, field: str, text: str) -> None:
        """Replace what stands in a text entry."""
        names = {char: name for name, char in TYPED.items()}
        await self.go_to(self.entry(field, TextEntry))
        await self.press("end", "ctrl+u", *(names.get(char, char) for char in text))

    def fold(self, name: str = "more") -> Fold:
        return self.pane.query_one(f"#fold-{name}", Fold)

    async def unfold(self, name: str = "more") -> None:
        await self.go_to(self.fold(name))
        await self.press("enter")
        await self.pilot.pause()

    def seen(self, widget: Widget | None = None) -> str:
        """What the terminal shows of a widget, or of everything."""
        region = widget.region if widget else self.host.screen.region
        visible = region.intersection(self.host.screen.region)
        strips = self.host.screen._compositor.render_strips()
        return "\n".join(strip.crop(visible.x, visible.right).text for strip in strips[visible.y : visible.bottom])

    @property
    def summary(self) -> str:
        return self.seen(self.pane.query_one("#summary"))

    def button(self, name: str) -> Widget:
        return self.pane.query_one(f"#{name}")

    def asked(self, kind: type[Message]) -> list[Any]:
        return [message for message in self.host.asked if isinstance(message, kind)]


@asynccontextmanager
async def opened(size: tuple[int, int] = WIDE, *, here: bool = True, **options: Any) -> AsyncIterator[Hand]:
    host = Host(ConfigurePane(**options))
    async with host.run_test(size=size) as pilot:
        if here:
            host.pane.set_environment(HERE)
        await pilot.pause()
        yield Hand(host, pilot)


async def test_automatic_counts_are_typed_summed_up_and_corrected() -> None:
    async with opened() as hand:
        await hand.type("warmup_steps", "auto")
        await hand.type("measure_steps", "auto")
        assert hand.summary.strip() == "3 cells · at most 3300 steps"
        assert "quick * ▾" in hand.seen(hand.pane.query_one(PresetEntry))
        await hand.type("measure_steps", "auto:3")
        assert "at least 20" in hand.seen(hand.entry("measure_steps", TextEntry))
        assert hand.pane.sweep is None
        await hand.type("measure_steps", "")
        assert "10 or auto" in hand.seen(hand.entry("measure_steps", TextEntry))


async def test_it_opens_on_the_quick_preset_and_needs_no_environment_to_run() -> None:
    async with opened(here=False) as hand:
        assert hand.pane.sweep == Sweep()
        assert hand.pane.options == RunOptions()
        assert hand.pane.problems == ()
        assert "quick ▾" in hand.seen()
        assert "■auto" in hand.seen(hand.entry("device", Chips))
        assert hand.summary.strip() == "3 cells · 45 steps"
        await hand.go_to(hand.button("run"))
        await hand.press("enter")
        (request,) = hand.asked(ConfigurePane.RunRequested)
        assert (request.sweep, request.options) == (Sweep(), RunOptions())


@pytest.mark.parametrize(
    ("field", "value", "attribute", "expected"),
    [
        ("size", "small", "sizes", ("tiny", "small")),
        ("context_length", "512", "contexts", (128, 512)),
        ("pass", "inference", "passes", ("inference", "forward", "forward+backward", "train-step")),
        ("pass", "train-step", "passes", ("forward", "forward+backward")),
        ("precision", "bf16", "precisions", ("fp32", "bf16")),
        ("device", "cpu", "devices", ("auto", "cpu")),
        ("edition", "2024", "edition", "2024"),
        ("arch", "gelu-learned", "arch", "gelu-learned"),
        ("sync", "pipelined", "sync", "pipelined"),
    ],
)
async def test_every_choice_is_ticked_by_keyboard(field: str, value: str, attribute: str, expected: object) -> None:
    async with opened() as hand:
        await hand.unfold()
        await hand.tick(field, value)
        assert getattr(hand.pane.sweep, attribute) == expected
        assert hand.asked(ConfigurePane.Changed)[-1].sweep == hand.pane.sweep
        assert "quick * ▾" in hand.seen(hand.pane.query_one(PresetEntry))
        if hand.entry(field, Chips).multiple:
            await hand.press("enter")
            assert hand.pane.sweep == Sweep()


@pytest.mark.parametrize(
    ("field", "text", "attribute", "expected"),
    [
        ("other_contexts", "64, 96", "contexts", (128, 64, 96)),
        ("batch_size", "2,8", "batches", (2, 8)),
        ("warmup_steps", "0,5", "warmups", (0, 5)),
        ("warmup_steps", "auto:50", "warmup_auto", True),
        ("measure_steps", "30", "steps", 30),
        ("measure_steps", "auto 2%", "steps_auto", 0.02),
        ("seed", "7", "seed", 7),
        ("threads", "3", "threads", 3),
    ],
)
async def test_every_number_is_typed(field: str, text: str, attribute: str, expected: object) -> None:
    async with opened(NARROW) as hand:
        await hand.unfold()
        await hand.type(field, text)
        assert getattr(hand.pane.sweep, attribute) == expected
        assert text in hand.seen(hand.entry(field, TextEntry))


async def test_ddof_and_timeout_are_options_and_a_preset_leaves_them() -> None:
    async with opened() as hand:
        await hand.unfold()
        await hand.tick("ddof", "0")
        await hand.type("timeout_s", "1.5")
        assert hand.pane.options == RunOptions(ddof=0, timeout_s=1.5)
        assert hand.pane.sweep == Sweep()
        assert "quick ▾" in hand.seen(), "options are no change of the preset"
        hand.pane.load(bundled()[1])
        assert hand.pane.options == RunOptions(ddof=0, timeout_s=1.5)


async def test_options_given_at_the_start_are_in_the_form() -> None:
    async with opened(options=RunOptions(ddof=0, timeout_s=30.0)) as hand:
        assert hand.pane.options == RunOptions(ddof=0, timeout_s=30.0)
        await hand.unfold()
        assert hand.entry("timeout_s", TextEntry).value == "30"
        assert "●0" in hand.seen(hand.entry("ddof", Chips))


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
        assert hand.asked(ConfigurePane.RunRequested) == []


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


async def test_the_machine_decides_which_devices_are_offered() -> None:
    async with opened(here=False) as hand:
        assert [chip.label for chip in hand.entry("device", Chips).chips] == ["auto"]
        hand.pane.set_environment(HERE)
        await hand.pilot.pause()
        assert hand.seen(hand.entry("device", Chips)).split()[1:] == ["■auto", "(cuda:0)", "□cpu", "□cuda:0"]
        await hand.tick("device", "cuda:0")
        assert "auto is cuda:0 here" in hand.pane.problems[0].allowed


async def test_the_custom_size_stands_alone_and_asks_for_its_dimensions() -> None:
    async with opened(NARROW) as hand:
        await hand.tick("size", "small")
        await hand.tick("size", "custom")
        await hand.pilot.pause()
        assert hand.entry("size", Chips).chosen == ("custom",)
        for field, text in {"d_model": "96", "d_ff": "200", "num_layers": "2", "num_heads": "6"}.items():
            await hand.type(field, text)
        await hand.type("vocab_size", "500")
        assert hand.pane.sweep is not None
        assert hand.pane.sweep.dims == ModelDims(d_model=96, d_ff=200, num_layers=2, num_heads=6, vocab_size=500)
        await hand.type("num_heads", "7")
        assert "multiple of num_heads (7)" in hand.pane.problems[0].allowed
        await hand.tick("size", "tiny")
        assert hand.entry("size", Chips).chosen == ("tiny",)
        assert hand.pane.sweep is not None
        assert (hand.pane.sweep.dims, hand.pane.sweep.vocab_size) == (None, 500)
        assert hand.entry("vocab_size", TextEntry).display, "a vocabulary that counts is not hidden"
        assert not hand.entry("d_model", TextEntry).display
        await hand.tick("size", "custom")
        assert hand.entry("d_model", TextEntry).value == "96"


async def test_another_edition_offers_its_sizes_and_names_those_it_lacks() -> None:
    async with opened() as hand:
        await hand.tick("size", "10B")
        await hand.unfold()
        await hand.tick("edition", "2025")
        await hand.pilot.pause()
        sizes = hand.entry("size", Chips)
        assert [chip.value for chip in sizes.chips] == [
            "tiny", "small", "medium", "large", "xl", "2.7B", "10B", "custom",
        ]  # fmt: skip
        assert "✗ 10B: edition 2025 has tiny" in hand.seen(sizes)
        await hand.tick("size", "10B")
        assert hand.pane.problems == ()
        await hand.tick("edition", "2026")
        assert "2.7B" not in hand.seen(sizes)


async def test_a_preset_is_picked_from_a_list_and_fills_everything() -> None:
    async with opened((90, 80)) as hand:
        await hand.unfold()
        await hand.type("batch_size", "nonsense")
        await hand.go_to(hand.pane.query_one(PresetEntry))
        await hand.press("enter")
        await hand.pilot.pause()
        for known in bundled():
            assert known.name in hand.seen()
            assert known.about[:40] in hand.seen(), "the rest may stand on a second line"
        at = [known.name for known in bundled()].index("2024/timeit")
        await hand.press("home", *["down"] * at, "enter")
        await hand.pilot.pause()
        wanted = preset("2024/timeit").sweep
        assert hand.pane.sweep == wanted
        assert hand.entry("batch_size", TextEntry).value == "16"
        assert hand.entry("size", Chips).chosen == ("small", "medium")
        assert "●2024" in hand.seen(hand.entry("edition", Chips))
        assert "●gelu-learned" in hand.seen(hand.entry("arch", Chips))
        assert hand.summary.strip() == "24 cells · 132 steps"
        assert "2024/timeit ▾" in hand.seen()


async def test_escape_keeps_the_preset() -> None:
    async with opened() as hand:
        await hand.type("batch_size", "12")
        await hand.go_to(hand.pane.query_one(PresetEntry))
        await hand.press("enter")
        await hand.press("down", "escape")
        assert hand.pane.sweep == Sweep(batches=(12,))


async def test_every_preset_loads_unchanged() -> None:
    async with opened(NARROW, here=False) as hand:
        for known in bundled():
            hand.pane.load(known)
            await hand.settle()
            assert hand.pane.sweep == known.sweep
            assert not hand.pane.query_one(PresetEntry).changed


def reachable(hand: Hand) -> list[Widget]:
    """What takes the focus and is shown."""
    widgets = (widget for widget in hand.pane.query("*") if widget.focusable)
    return [widget for widget in widgets if all(each.display for each in widget.ancestors_with_self)]


@pytest.mark.parametrize(("forward", "back"), [("tab", "shift+tab"), ("down", "up")])
async def test_tab_and_arrows_reach_everything(forward: str, back: str) -> None:
    async with opened((40, 12)) as hand:
        await hand.unfold()
        await hand.unfold("variants")
        await hand.tick("size", "custom")
        await hand.pilot.pause()
        stops = reachable(hand)
        await hand.go_to(stops[0])
        order = [stops[0]]
        while len(order) < len(stops):
            await hand.press(forward)
            focused = hand.host.focused
            assert focused is not None
            if forward == "tab" or focused is not order[-1]:
                assert focused not in order
                order.append(focused)
        assert order == stops
        for _ in range(3 * len(stops)):
            if hand.host.focused is not stops[0]:
                await hand.press(back)
        assert hand.host.focused is stops[0]


@pytest.mark.parametrize("size", [NARROW, WIDE, (40, 12), (30, 8)])
async def test_what_has_the_focus_is_in_sight(size: tuple[int, int]) -> None:
    async with opened(size) as hand:
        await hand.unfold()
        await hand.unfold("variants")
        await hand.tick("size", "custom")
        for widget in reachable(hand):
            await hand.go_to(widget)
            await hand.pilot.pause()
            shown = widget.region.intersection(hand.pane.query_one("#form").region)
            assert shown.height == widget.region.height or hand.button("run").parent is widget.parent, widget


@pytest.mark.parametrize("size", [NARROW, WIDE, (40, 12), (28, 6)])
async def test_the_summary_and_the_buttons_are_always_in_sight(size: tuple[int, int]) -> None:
    async with opened(size) as hand:
        for name in ("run", "stop", "export"):
            assert name.capitalize() in hand.seen(hand.button(name))
        assert "cells" in hand.summary
        await hand.type("batch_size", "x")
        await hand.pilot.pause()
        assert "✗ batch size x" in hand.summary


@pytest.mark.parametrize("size", [(34, 25), (80, 20)])
async def test_all_that_is_chosen_first_fits_without_scrolling(size: tuple[int, int]) -> None:
    async with opened(size) as hand:
        form = hand.pane.query_one("#form")
        assert form.max_scroll_y == 0
        labels = "preset size context pass precision batch warm-up steps device".split()
        seen = hand.seen()
        assert all(label in seen for label in labels)


async def test_enter_while_typing_moves_on_and_runs_nothing() -> None:
    async with opened() as hand:
        await hand.type("batch_size", "8")
        await hand.press("enter")
        assert hand.entry("warmup_steps", TextEntry).has_focus_within
        assert hand.asked(ConfigurePane.RunRequested) == []
        assert hand.pane.sweep == Sweep(batches=(8,))


async def test_escape_leads_from_typing_to_the_buttons() -> None:
    async with opened() as hand:
        await hand.type("batch_size", "8")
        await hand.press("escape")
        assert hand.button("run").has_focus
        await hand.type("batch_size", "x")
        await hand.press("escape")
        assert hand.button("export").has_focus, "Run cannot be pressed"


async def test_chips_toggle_by_mouse_and_say_their_state_without_colour() -> None:
    async with opened() as hand:
        chips = hand.entry("context_length", Chips)
        assert "■128 □256 □512 □1024" in hand.seen(chips)
        await hand.pilot.click(chips, offset=(hand.seen(chips).index("□512") + 2, 0))
        assert "■128 □256 ■512 □1024" in hand.seen(chips)
        await hand.pilot.click(chips, offset=(2, 0))
        await hand.pilot.click(chips, offset=(hand.seen(chips).index(" □1024"), 0))
        assert "■128 □256 ■512 □1024" in hand.seen(chips), "neither the label nor a gap is a chip"


async def test_chips_of_a_second_row_toggle_by_mouse() -> None:
    async with opened(NARROW) as hand:
        chips = hand.entry("pass", Chips)
        row = hand.seen(chips).splitlines()[1]
        await hand.pilot.click(chips, offset=(row.index("train"), 1))
        assert hand.pane.sweep == Sweep(passes=("forward", "forward+backward"))


async def test_up_and_down_move_between_rows_of_chips_before_they_leave() -> None:
    async with opened(NARROW) as hand:
        chips = hand.entry("pass", Chips)
        await hand.go_to(chips)
        await hand.press("right", "down")
        assert chips.has_focus
        assert chips.chips[chips.cursor].label == "train", "the one below, not the next"
        await hand.press("up")
        assert chips.chips[chips.cursor].label == "fwd"
        await hand.press("down", "down")
        assert hand.entry("precision", Chips).has_focus
        await hand.press("up")
        assert chips.has_focus


async def test_one_choice_only_behaves_like_a_radio_button() -> None:
    async with opened() as hand:
        await hand.unfold()
        await hand.tick("sync", "each-step")
        assert hand.asked(ConfigurePane.Changed) == [], "the chosen one stays chosen"
        assert "●each-step ○pipelined" in hand.seen(hand.entry("sync", Chips))


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
        assert "[ Add ]" in hand.seen(run)
        await hand.press("enter")
        assert len(hand.asked(ConfigurePane.RunRequested)) == 1
        await hand.go_to(stop)
        await hand.press("enter")
        assert len(hand.asked(ConfigurePane.StopRequested)) == 1
        hand.pane.set_running(True, stopping=True)
        await hand.pilot.pause()
        assert (run.disabled, stop.disabled) == (True, True)
        assert "Stop…" in hand.seen(stop)
        hand.pane.request_run()
        await hand.pilot.pause()
        assert len(hand.asked(ConfigurePane.RunRequested)) == 1, "nothing is added to what is being stopped"
        hand.pane.set_running(False)
        await hand.pilot.pause()
        assert (run.disabled, stop.disabled) == (False, True)
        assert run.has_focus
        await hand.pilot.click("#export")
        assert len(hand.asked(ConfigurePane.ExportRequested)) == 1


async def test_what_is_typed_during_a_run_waits_for_the_next_one() -> None:
    async with opened() as hand:
        hand.pane.set_running(True)
        await hand.type("batch_size", "9")
        assert hand.pane.sweep == Sweep(batches=(9,))
        hand.pane.set_running(False)
        assert hand.pane.sweep == Sweep(batches=(9,))


async def test_resizing_to_next_to_nothing_and_back_loses_nothing() -> None:
    async with opened() as hand:
        await hand.unfold()
        await hand.type("batch_size", "x")
        for size in ((40, 12), (12, 4), (1, 1), (200, 60), WIDE):
            await hand.pilot.resize_terminal(*size)
            await hand.pilot.pause()
        assert hand.entry("batch_size", TextEntry).value == "x"
        assert "✗ x: expected" in hand.seen(hand.entry("batch_size", TextEntry))


@given(st.lists(st.integers(1, 30), max_size=12), st.integers(-3, 40))
def test_chips_wrap_in_order_and_fit_where_one_can(widths: list[int], available: int) -> None:
    rows = wrap(widths, available)
    assert [index for row in rows for index in row] == list(range(len(widths)))
    for row in rows:
        taken = sum(widths[index] for index in row) + max(len(row) - 1, 0)
        assert taken <= available or len(row) <= 1


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


async def test_every_pass_and_precision_is_offered() -> None:
    async with opened() as hand:
        assert [chip.value for chip in hand.entry("pass", Chips).chips] == list(spec.PASSES)
        assert [chip.value for chip in hand.entry("precision", Chips).chips] == list(spec.PRECISIONS)
