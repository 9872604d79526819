"""Choices of the Configure pane, made by keyboard."""

import pytest
from textual.widgets import Static

from cs336_tui.config import spec
from cs336_tui.config.presets import bundled, preset
from cs336_tui.config.problems import problem_named
from cs336_tui.config.spec import AXES, ModelDims
from cs336_tui.config.sweep import Sweep
from cs336_tui.tui.configure.entries import PresetEntry, RecentEntry, listed
from cs336_tui.tui.requests import RunOptions
from cs336_tui.tui.widgets.entries import Chips, Entry, TextEntry
from tests.made_problems import problem_state
from tests.tui.configuring import HERE, NARROW, WIDE, Hand, opened


async def test_it_opens_on_the_quick_preset_and_needs_no_environment_to_run() -> None:
    async with opened(here=False) as hand:
        assert hand.pane.form.sweep == Sweep()
        assert hand.pane.form.options == RunOptions()
        assert hand.pane.form.problems == ()
        assert "quick ▾" in hand.seen()
        assert "■auto" in hand.seen(hand.entry("device", Chips))
        assert hand.entry("pass", Chips).chips == spec.PASSES
        assert hand.entry("precision", Chips).chips == spec.PRECISIONS
        assert hand.summary.strip() == "3 cells · 45 steps"
        await hand.go_to(hand.button("run"))
        await hand.press("enter")
        assert hand.asked("run") == [(Sweep(), RunOptions())]


async def test_all_that_the_flags_know_is_offered_and_every_choice_is_ticked_by_keyboard() -> None:
    async with opened((80, 60)) as hand:
        await hand.unfold("variants")
        await hand.unfold()
        for field in ("attention", "compile", "optimizer", "cuda_graph"):
            assert hand.entry(field, Chips).chips == AXES[field].values
        for field, value, attribute, expected, usual in (
            ("size", "small", "sizes", ("tiny", "small"), ""),
            ("context_length", "512", "contexts", (128, 512), ""),
            ("pass", "inference", "passes", ("inference", "forward", "forward+backward", "train-step"), ""),
            ("pass", "train-step", "passes", ("forward", "forward+backward"), ""),
            ("precision", "bf16", "precisions", ("fp32", "bf16"), ""),
            ("device", "cpu", "devices", ("auto", "cpu"), ""),
            ("edition", "2024", "edition", "2024", "2026"),
            ("arch", "gelu-learned", "arch", "gelu-learned", "swiglu-rope"),
            ("sync", "pipelined", "sync", "pipelined", "each-step"),
            ("attention", "sdpa", "attentions", ("naive", "sdpa"), ""),
            ("compile", "default", "compiles", ("off", "default"), ""),
            ("optimizer", "adamw-fused", "optimizers", ("adamw", "adamw-fused"), ""),
            ("workload", "attention", "workload", "attention", "language-model"),
        ):
            await hand.tick(field, value)
            assert getattr(hand.pane.form.sweep, attribute) == expected
            assert hand.asked("choices_changed")[-1] == (hand.pane.form.sweep, ())
            assert "quick * ▾" in hand.seen(hand.pane.query_one(PresetEntry)), field
            if hand.entry(field, Chips).multiple:
                await hand.press("enter")
            else:
                await hand.tick(field, usual)
            assert hand.pane.form.sweep == Sweep(), field


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_every_number_and_what_is_ones_own_is_typed(size: tuple[int, int]) -> None:
    typed: dict[tuple[str, str], tuple[str, object]] = {
        ("other_contexts", "64, 96"): ("contexts", (128, 64, 96)),
        ("batch_size", "2,8"): ("batches", (2, 8)),
        ("warmup_steps", "0,5"): ("warmups", (0, 5)),
        ("warmup_steps", "auto:50"): ("warmup_auto", True),
        ("measure_steps", "30"): ("steps", 30),
        ("measure_steps", "auto 2%"): ("steps_auto", 0.02),
        ("warmup_steps", "10s"): ("warmup_for", 10.0),
        ("measure_steps", "100ms"): ("steps_for", 0.1),
        ("seed", "7"): ("seed", 7),
        ("threads", "3"): ("threads", 3),
        ("checkpoint", "0,1,2"): ("checkpoints", (0, 1, 2)),
        ("loss", "my:loss"): ("loss", "my:loss"),
        ("other_optimizers", "my:AdamW"): ("optimizers", ("adamw", "my:AdamW")),
        ("model", "my:LM"): ("models", ("my:LM",)),
        ("model", "reference"): ("models", ("reference",)),
        ("other_attentions", "my:attend"): ("attentions", ("naive", "my:attend")),
    }
    async with opened(size) as hand:
        await hand.unfold("variants")
        await hand.unfold()
        for (field, text), (attribute, expected) in typed.items():
            await hand.type(field, text)
            assert getattr(hand.pane.form.sweep, attribute) == expected
            assert text in hand.seen(hand.entry(field, TextEntry))


async def test_ddof_and_timeout_are_options_in_the_form_from_the_start_and_a_preset_leaves_them() -> None:
    async with opened(options=RunOptions(ddof=0, timeout_s=30.0)) as hand:
        assert hand.pane.form.options == RunOptions(ddof=0, timeout_s=30.0)
        await hand.unfold()
        assert hand.entry("timeout_s", TextEntry).value == "30"
        assert "●0" in hand.seen(hand.entry("ddof", Chips))
        await hand.tick("ddof", "1")
        await hand.type("timeout_s", "1.5")
        assert hand.pane.form.options == RunOptions(ddof=1, timeout_s=1.5)
        assert hand.pane.form.sweep == Sweep()
        assert not hand.pane.query_one(PresetEntry).changed, "options are no change of the preset"
        hand.pane.load(bundled()[1])
        assert hand.pane.form.options == RunOptions(ddof=1, timeout_s=1.5)


async def test_the_machine_decides_which_devices_are_offered() -> None:
    async with opened(here=False) as hand:
        assert hand.entry("device", Chips).chips == ("auto",)
        hand.pane.set_environment(HERE)
        await hand.pilot.pause()
        assert hand.seen(hand.entry("device", Chips)).split()[1:] == ["■auto", "(cuda:0)", "□cpu", "□cuda:0"]
        await hand.tick("device", "cuda:0")
        assert "auto is cuda:0 here" in hand.pane.form.problems[0].allowed


async def test_a_custom_size_asks_for_its_dimensions_and_stands_beside_named_ones() -> None:
    async with opened(NARROW) as hand:
        await hand.tick("size", "custom")
        await hand.tick("size", "tiny")
        assert hand.entry("size", Chips).chosen == ("custom",)
        for field, text in {"d_model": "96", "d_ff": "200", "num_layers": "2", "num_heads": "6"}.items():
            await hand.type(field, text)
        await hand.type("vocab_size", "500")
        dims = ModelDims(d_model=96, d_ff=200, num_layers=2, num_heads=6, vocab_size=500)
        assert hand.pane.form.sweep.dims == dims
        await hand.type("num_heads", "7")
        assert "multiple of num_heads (7)" in hand.pane.form.problems[0].allowed
        await hand.type("num_heads", "6")
        await hand.tick("size", "tiny")
        assert (hand.pane.form.sweep.sizes, hand.pane.form.sweep.dims) == (("tiny", "custom"), dims)
        assert {cell.vocab_size for cell in hand.pane.form.sweep.with_devices(("cpu",)).cells()} == {500}
        await hand.tick("size", "custom")
        assert (hand.pane.form.sweep.dims, hand.pane.form.sweep.vocab_size) == (None, 500)
        assert hand.entry("vocab_size", TextEntry).display, "a vocabulary that counts is not hidden"
        assert not hand.entry("d_model", TextEntry).display
        await hand.tick("size", "custom")
        assert hand.entry("d_model", TextEntry).value == "96"


async def test_a_field_is_selected_whole_on_focus_so_that_typing_replaces_it() -> None:
    async with opened() as hand:
        batch = hand.entry("batch_size", TextEntry)
        await hand.go_to(batch)
        await hand.press("1", "6")
        assert batch.value == "16"
        await hand.press("down", "up", "right", "comma", "8")
        assert batch.value == "16,8", "an arrow keeps it"


def about(hand: Hand) -> str:
    return str(hand.pane.query_one("#about", Static).content)


@pytest.mark.parametrize("size", [NARROW, WIDE, (32, 24)])
async def test_the_line_below_the_form_says_what_is_under_the_cursor(size: tuple[int, int]) -> None:
    async with opened(size) as hand:
        hand.pane.set_environment(HERE)
        await hand.unfold()
        await hand.go_to(hand.entry("size", Chips))
        await hand.press("right")
        assert " ".join(about(hand).split()) == "small: d_model 768, d_ff 3072, 12 layers, 12 heads"
        await hand.go_to(hand.entry("device", Chips))
        await hand.press("right", "right")
        assert about(hand) == "cuda:0: a GPU"
        for entry in hand.pane.query(Entry):
            if entry.display and not isinstance(entry, PresetEntry | RecentEntry):
                await hand.go_to(entry)
                assert about(hand), entry.field
                assert "…" not in about(hand), f"{entry.field} is cut"
        await hand.go_to(hand.button("run"))
        assert about(hand).startswith("Runs these cells")
        hand.pane.screen.set_focus(None)
        await hand.settle()
        assert not hand.pane.query_one("#about").display


@pytest.mark.parametrize(
    ("field", "code", "name"),
    [
        ("model", "mine:Model: Model(vocab_size, context_length, d_model, num_layers, num_heads, d_ff)", "model"),
        ("other_attentions", "mine:attend: attend(q, k, v, is_causal), each (B, H, T, K); returns", "attention"),
        ("other_optimizers", "mine:AdamW: AdamW(parameters), a class of torch.optim.Optimizer", "optimizer"),
        ("other_parallels", "mine:get_ddp: get_ddp(module) returns a module", "wrapper"),
    ],
    ids=["model", "attention", "optimizer", "wrapper"],
)
async def test_a_field_for_own_code_says_what_it_takes_and_the_file_to_start_from(
    field: str, code: str, name: str
) -> None:
    async with opened(WIDE) as hand:
        await hand.unfold("variants")
        await hand.go_to(entry := hand.entry(field, TextEntry))
        said = " ".join(about(hand).split())
        assert said.startswith(code)
        assert said.endswith(f"To start from: cs336-tui example {name} > mine.py")
        assert hand.pane.query_one("#form").region.contains_region(entry.region), "the entry itself is in sight"


async def test_another_edition_offers_its_sizes_and_names_those_it_lacks() -> None:
    async with opened() as hand:
        await hand.tick("size", "10B")
        await hand.unfold()
        await hand.tick("edition", "2025")
        sizes = hand.entry("size", Chips)
        assert [*sizes.chips] == [
            "tiny", "small", "medium", "large", "xl", "2.7B", "10B", "custom",
        ]  # fmt: skip
        assert "✗ 10B: edition 2025 has tiny" in hand.seen(sizes)
        await hand.tick("size", "10B")
        assert hand.pane.form.problems == ()
        await hand.tick("edition", "2026")
        assert "2.7B" not in hand.seen(sizes)


async def test_a_preset_is_picked_from_a_list_and_fills_everything_and_escape_keeps_it() -> None:
    async with opened((90, 180)) as hand:
        await hand.unfold()
        await hand.type("batch_size", "nonsense")
        await hand.go_to(hand.pane.query_one(PresetEntry))
        await hand.press("enter")
        choices = listed(bundled(), None)
        assert {each.preset for each in choices} == set(bundled())
        for each in choices:
            assert each.preset.name in hand.seen()
            assert each.about[:40] in hand.seen(), "the rest may stand on a second line"
            assert each.heading in hand.seen()
        at = [each.preset.name for each in choices].index("2024/timeit")
        await hand.press("home", *["down"] * at, "enter")
        assert hand.pane.form.sweep == preset("2024/timeit").sweep
        assert hand.entry("batch_size", TextEntry).value == "16"
        assert hand.entry("size", Chips).chosen == ("small", "medium")
        assert "●2024" in hand.seen(hand.entry("edition", Chips))
        assert "●gelu-learned" in hand.seen(hand.entry("arch", Chips))
        assert hand.summary.strip() == "24 cells · 132 steps"
        assert "2024/timeit ▾" in hand.seen()
        await hand.go_to(hand.pane.query_one(PresetEntry))
        await hand.press("enter", "down", "escape")
        assert hand.pane.form.sweep == preset("2024/timeit").sweep


async def test_the_list_of_presets_tells_what_the_shown_session_has_of_each_problem() -> None:
    async with opened((90, 180)) as hand:
        hand.pane.show(problem_state(*problem_named("2026/nsys_profile")), None, {}, can_resume=False)
        await hand.go_to(hand.pane.query_one(PresetEntry))
        await hand.press("enter")
        seen = hand.seen()
        assert "✓ 18 of 18 cells · data for a b c d e" in seen
        assert "◐ 6 of 15 cells · data for b" in seen, "benchmarking_script: two of five sizes, at context 512"
        assert seen.index("Problems of 2026") < seen.index("2026/nsys_profile") < seen.index("Problems of 2025")
        assert seen.index("Other presets") < seen.index("2026/optimizers")


async def test_a_norm_alone_has_a_width_and_no_heads_and_a_preset_that_another_belongs_to_says_so() -> None:
    async with opened() as hand:
        for name, label, heads in (("2024/pytorch_layernorm", "width", False), ("2025/leaderboard", "head dim", True)):
            hand.pane.load(preset(name))
            await hand.settle()
            widths = hand.entry("head_dim", TextEntry)
            assert (widths.display, widths.label) == (True, label)
            assert hand.entry("heads", TextEntry).display is heads
        hand.pane.choose_preset(preset("2026/torch_compile"))
        await hand.pilot.pause()
        assert hand.pane.form.sweep == preset("2026/torch_compile").sweep
        assert any("2026/compiled_attention belongs to it" in note.message for note in hand.host._notifications)


async def test_reports_are_ticked_in_the_form_and_told_in_the_summary() -> None:
    async with opened((90, 80)) as hand:
        await hand.unfold()
        hand.pane.load(preset("2026/memory_profiling"))
        await hand.pilot.pause()
        assert hand.entry("reports", Chips).chosen == ("memory",)
        assert hand.summary.strip().endswith("then memory")
        await hand.tick("reports", "kernels")
        assert hand.pane.form.sweep.reports == ("kernels", "memory")
