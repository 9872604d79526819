"""Choices of models and variants in Configure, a user's own among them, and those that this machine cannot run."""

from functools import partial
from pathlib import Path

import msgspec
import pytest

from cs336_tui.config import presets
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.presets import Preset, RecentModel, recent_models, remember
from cs336_tui.config.sweep import Sweep
from cs336_tui.events.environment import DeviceInfo
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.configure.entries import RecentEntry, fold_label, listed
from cs336_tui.tui.configure.form import entries_of
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.format import told_variants
from cs336_tui.tui.widgets.entries import Chips, Fold, TextEntry
from tests.samples import ENVIRONMENT, a_spec
from tests.tui.configuring import opened
from tests.tui.watched import SMALL, Benches, ScriptedBench, on_screen, press, until
from tests.tui.watched import WIDE as WIDE_SCREEN

MINE = Sweep(
    models=("my.model:LM",), model_args=(("dropout", "0.1"),), model_path=("/repo",), optimizers=("my.optim:AdamW",)
)


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("cs336_tui.config.presets._recent_models_file", lambda: tmp_path / "recent.json")
    return tmp_path / "recent.json"


# Choosing.


async def test_what_belongs_to_a_model_of_ones_own_is_asked_for_once_there_is_one() -> None:
    async with opened() as hand:
        await hand.unfold("variants")
        assert not any(hand.entry(field, TextEntry).display for field in ("model_args", "model_path", "annotations"))
        assert not hand.entry("recent", RecentEntry).display, "no model was run before"
        for field, words in (("model", "my:LM"), ("model_args", "dropout=0"), ("model_path", "/repo")):
            await hand.type(field, words)
        assert hand.pane.form.sweep == Sweep(models=("my:LM",), model_args=(("dropout", "0"),), model_path=("/repo",))
        await hand.type("model", "my:LM, reference")
        assert hand.pane.form.sweep.models == ("my:LM", "reference")


async def test_arguments_of_an_attention_of_ones_own_are_asked_for_beside_it_and_may_have_several_values() -> None:
    async with opened() as hand:
        await hand.unfold("variants")
        assert not hand.entry("attention_args", TextEntry).display
        await hand.type("other_attentions", "mine:flash")
        assert hand.entry("attention_args", TextEntry).display
        assert not hand.entry("optimizer_args", TextEntry).display
        await hand.type("attention_args", "BLOCK_M='16,32', BLOCK_N=32")
        sweep = hand.pane.form.sweep
        assert sweep is not None
        assert sweep.attention_args == (("BLOCK_M", "16,32"), ("BLOCK_N", "32"))


async def test_attention_alone_asks_for_widths_and_for_nothing_of_a_model() -> None:
    async with opened() as hand:
        await hand.unfold("variants")
        await hand.tick("workload", "attention")
        await hand.type("head_dim", "16,64")
        assert hand.pane.form.sweep == Sweep(
            workload="attention", head_dims=(16, 64), passes=("forward", "backward"), contexts=(1024,), batches=(8,)
        )
        for field in ("model", "optimizer", "checkpoint", "loss", "size"):
            assert not hand.pane.query_one(f"#entry-{field}").display
        assert "■1024" in hand.seen(hand.entry("context_length", Chips)), "what is usual for it is shown"
        await hand.type("heads", "8")
        assert (hand.pane.form.sweep.heads, hand.pane.form.sweep.head_dims) == (8, (16, 64))
        await hand.type("heads", "0")
        assert hand.pane.form.sweep is None
        assert "✗ 0: expected a whole number, at least 1" in " ".join(hand.seen(hand.entry("heads", TextEntry)).split())
        await hand.type("heads", "1")
        await hand.type("head_dim", "16,x")
        await hand.pilot.pause()
        assert "✗ x: expected a whole number" in hand.seen(hand.entry("head_dim", TextEntry))
        await hand.tick("workload", "language-model")
        assert hand.pane.form.sweep == Sweep(), "what is hidden does not count"


async def test_a_preset_with_variants_fills_the_folded_entries_and_the_fold_tells() -> None:
    async with opened((80, 40)) as hand:
        hand.pane.load(Preset("mine", "", MINE))
        await hand.settle()
        assert hand.pane.form.sweep == MINE
        assert "▸ variants: LM, adamw/AdamW" not in hand.seen(hand.fold("variants"))
        assert "▸ variants: LM, AdamW" in hand.seen(hand.fold("variants"))
        await hand.unfold("variants")
        assert hand.entry("model", TextEntry).value == "my.model:LM"
        assert hand.entry("model_args", TextEntry).value == "dropout=0.1"
        assert "▾ model and variants" in hand.seen(hand.fold("variants"))


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        (Sweep(), "attention, model, ranks…"),
        (Sweep(attentions=("naive", "sdpa"), compiles=("default",)), "variants: naive/sdpa, compiled"),
        (Sweep(checkpoints=(0, 2), cuda_graphs=("step",)), "variants: checkpoint 0/2, CUDA graph"),
        (Sweep(workload="attention", causal=False), "variants: attention alone, not causal"),
        (Sweep(loss="my:loss", compiles=("off", "default")), "variants: compile off/default, loss"),
    ],
)
def test_a_closed_fold_says_what_is_not_as_usual(sweep: Sweep, said: str) -> None:
    assert fold_label(entries_of(sweep)) == said


# Recent models.


async def test_recent_models_are_picked_from_a_list() -> None:
    remember([RecentModel(model="my.model:LM", args=(("dropout", "0.1"),), path=("/repo",)), RecentModel(model="x:y")])
    async with opened((80, 40)) as hand:
        await hand.unfold("variants")
        entry = hand.entry("recent", RecentEntry)
        assert "2 models run before ▾" in hand.seen(entry)
        await hand.go_to(entry)
        await hand.press("enter")
        await hand.pilot.pause()
        assert "dropout=0.1 · in /repo" in hand.seen()
        await hand.press("escape")
        assert hand.pane.form.sweep == Sweep()
        await hand.press("enter", "enter")
        assert hand.pane.form.sweep == Sweep(
            models=("my.model:LM",), model_args=(("dropout", "0.1"),), model_path=("/repo",)
        )
        assert hand.entry("model_args", TextEntry).value == "dropout=0.1"


async def test_a_run_keeps_its_models_and_offers_them() -> None:
    async with on_screen(Cs336App(Benches(), initial=MINE), "NVIDIA", size=SMALL) as (app, pilot):
        pane = app.query_one(ConfigurePane)
        pane.query_one("#fold-variants", Fold).action_turn()
        await until(pilot, lambda _: bool(pane.query(RecentEntry)))
        pane.request_run()
        await until(pilot, lambda _: bool(pane.query_one(RecentEntry).models))
        (kept,) = recent_models()
        assert kept == RecentModel(model="my.model:LM", args=(("dropout", "0.1"),), path=("/repo",))
        assert pane.query_one(RecentEntry).display


# What was found.


def test_a_table_has_a_column_for_each_variant_that_tells() -> None:
    assert told_variants([a_spec(), a_spec(context_length=512)]) == {}
    assert list(told_variants([a_spec(), a_spec(attention="sdpa", compile="default")])) == ["attention", "compile"]
    assert list(told_variants([a_spec(attention="sdpa")])) == ["attention"], "not as usual, though all alike"
    alone = a_spec(workload="attention", pass_="forward")
    assert list(told_variants([alone])) == []
    assert list(told_variants([alone, a_spec(pass_="forward")])) == ["workload"]


WITHOUT_COMPILER = "no C++ compiler was found"
BARE = msgspec.structs.replace(
    ENVIRONMENT,
    devices=(DeviceInfo(name="cpu", label="A CPU", precisions=("fp32", "bf16"), cannot_compile=WITHOUT_COMPILER),),
)
"""A machine that has no compiler."""
NAME = "2026/attention"


def bare(**options: object) -> Cs336App:
    return Cs336App(partial(ScriptedBench, environment=BARE), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [SMALL, WIDE_SCREEN])
async def test_a_preset_of_the_palette_loses_what_the_machine_lacks_and_says_so(size: tuple[int, int]) -> None:
    async with on_screen(bare(), "A CPU", size=size, notifications=True) as (app, pilot):
        app.load_preset(presets.preset(NAME))
        await until(pilot, "left out: compile default")
        pane = app.query_one(ConfigurePane)
        asked = presets.preset(NAME).sweep
        assert pane.form.sweep == msgspec.structs.replace(asked, compiles=("off",))
        assert pane.form.sweep.devices == ("auto",), "what stays is as the preset has it"
        await until(pilot, f"{NAME} * ▾")


async def test_a_preset_of_the_list_does_too() -> None:
    async with on_screen(bare(), "A CPU", notifications=True) as (app, pilot):
        await press(pilot, "1", "home", "enter", seen="Presets")
        place = [each.preset.name for each in listed(presets.bundled(), None)].index(NAME)
        await press(pilot, *["down"] * place, "enter", seen=WITHOUT_COMPILER)
        assert app.query_one(ConfigurePane).form.sweep.compiles == ("off",)


@pytest.mark.parametrize(
    ("may_leave_out", "problems"), [(("compile",), 0), ((), 1)], ids=["of a preset", "asked for by name"]
)
async def test_choices_of_the_command_line(may_leave_out: tuple[str, ...], problems: int) -> None:
    async with on_screen(bare(initial=sweep_from(preset_name=NAME), may_leave_out=may_leave_out)) as (app, pilot):
        await until(pilot, "A CPU")
        assert len(app.query_one(ConfigurePane).form.problems) == problems


async def test_what_somebody_chose_meanwhile_stays() -> None:
    async with opened(here=False) as hand:
        hand.pane.load(presets.preset(NAME), ("compile",))
        await hand.type("batch_size", "2")
        hand.pane.set_environment(BARE)
        await hand.settle()
        (problem,) = hand.pane.form.problems
        assert problem.field == "compile"


async def test_one_of_which_nothing_would_be_left_is_shown_with_what_is_wrong() -> None:
    async with opened(here=False) as hand:
        hand.pane.set_environment(BARE)
        hand.pane.load(Preset("mine", "", Sweep(compiles=("default",))), ("compile",))
        await hand.settle()
        (problem,) = hand.pane.form.problems
        assert (problem.field, problem.allowed) == ("compile", WITHOUT_COMPILER)
