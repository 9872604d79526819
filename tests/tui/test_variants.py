"""A user's own models and variants on the screen: choosing, folding, running, reading results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cs336_tui.analysis.merge import merge
from cs336_tui.config.presets import Preset, RecentModel, recent_models, remember
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.sweep import Sweep
from cs336_tui.config.values import ATTENTIONS, COMPILES, CUDA_GRAPHS, OPTIMIZERS
from cs336_tui.events.events import CellStarted, EffectiveSettings, ModelBuilt, ModelPrepared, Notice, StageChanged
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.configure.entries import RecentEntry, fold_label
from cs336_tui.tui.configure.form import entries_of
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.format import title_rows, told_variants
from cs336_tui.tui.tabs.cell_detail import cell_detail
from cs336_tui.tui.tabs.compare import ComparePane
from cs336_tui.tui.tabs.compare_pages import pairs_page
from cs336_tui.tui.tabs.live import live_lines
from cs336_tui.tui.widgets.entries import Chips, Fold, TextEntry
from tests.samples import START, a_spec, cell_end, cell_start, session_start, state_of, steps
from tests.session.made import Cell, session_of
from tests.tui.configuring import NARROW, WIDE, opened
from tests.tui.watched import SMALL, Benches, log_of, nothing_in_background, text, until
from tests.tui.watched import WIDE as WIDE_SCREEN

MINE = Sweep(
    models=("my.model:LM",), model_args=(("dropout", "0.1"),), model_path=("/repo",), optimizers=("my.optim:AdamW",)
)


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("cs336_tui.config.presets._recent_models_file", lambda: tmp_path / "recent.json")
    return tmp_path / "recent.json"


# Choosing.


async def test_every_variant_is_ticked() -> None:
    async with opened() as hand:
        await hand.unfold("variants")
        for field, value, attribute, expected in (
            ("attention", "sdpa", "attentions", ("naive", "sdpa")),
            ("compile", "default", "compiles", ("off", "default")),
            ("optimizer", "adamw-fused", "optimizers", ("adamw", "adamw-fused")),
            ("workload", "attention", "workload", "attention"),
        ):
            await hand.tick(field, value)
            assert getattr(hand.pane.sweep, attribute) == expected


@pytest.mark.parametrize(
    ("field", "words", "attribute", "expected", "size"),
    [
        ("model", "my:LM", "models", ("my:LM",), NARROW),
        ("other_attentions", "my:attend", "attentions", ("naive", "my:attend"), WIDE),
        ("other_optimizers", "my:AdamW", "optimizers", ("adamw", "my:AdamW"), NARROW),
        ("checkpoint", "0,1,2", "checkpoints", (0, 1, 2), WIDE),
        ("loss", "my:loss", "loss", "my:loss", NARROW),
    ],
)
async def test_what_is_ones_own_is_typed(
    field: str, words: str, attribute: str, expected: object, size: tuple[int, int]
) -> None:
    async with opened(size) as hand:
        await hand.unfold("variants")
        await hand.type(field, words)
        assert getattr(hand.pane.sweep, attribute) == expected
        assert words in hand.seen(hand.entry(field, TextEntry))


async def test_all_that_the_flags_know_is_offered() -> None:
    async with opened() as hand:
        await hand.unfold("variants")
        offered = {"attention": ATTENTIONS, "compile": COMPILES, "optimizer": OPTIMIZERS, "cuda_graph": CUDA_GRAPHS}
        for field, values in offered.items():
            assert tuple(chip.value for chip in hand.entry(field, Chips).chips) == values


async def test_what_belongs_to_a_model_of_ones_own_is_asked_for_once_there_is_one() -> None:
    async with opened() as hand:
        await hand.unfold("variants")
        assert not any(hand.entry(field, TextEntry).display for field in ("model_args", "model_path", "annotations"))
        await hand.type("model", "my:LM")
        await hand.type("model_args", "dropout=0")
        await hand.type("model_path", "/repo")
        assert hand.pane.sweep == Sweep(models=("my:LM",), model_args=(("dropout", "0"),), model_path=("/repo",))
        await hand.type("model", "my:LM, reference")
        assert hand.pane.sweep is not None
        assert hand.pane.sweep.models == ("my:LM", "reference")


async def test_attention_alone_asks_for_widths_and_for_nothing_of_a_model() -> None:
    async with opened() as hand:
        await hand.unfold("variants")
        await hand.tick("workload", "attention")
        await hand.type("head_dim", "16,64")
        assert hand.pane.sweep == Sweep(
            workload="attention", head_dims=(16, 64), passes=("forward", "backward"), contexts=(1024,), batches=(8,)
        )
        for field in ("model", "optimizer", "checkpoint", "loss", "size"):
            assert not hand.pane.query_one(f"#entry-{field}").display
        assert "■1024" in hand.seen(hand.entry("context_length", Chips)), "what is usual for it is shown"
        await hand.type("heads", "8")
        assert hand.pane.sweep is not None
        assert (hand.pane.sweep.heads, hand.pane.sweep.head_dims) == (8, (16, 64))
        await hand.type("heads", "0")
        assert hand.pane.sweep is None
        said = " ".join(hand.seen(hand.entry("heads", TextEntry)).split())
        assert "✗ 0: expected a whole number, at least 1" in said
        await hand.type("heads", "1")
        await hand.type("head_dim", "16,x")
        await hand.pilot.pause()
        assert "✗ x: expected a whole number" in hand.seen(hand.entry("head_dim", TextEntry))
        await hand.tick("workload", "language-model")
        assert hand.pane.sweep == Sweep(), "what is hidden does not count"


async def test_a_preset_with_variants_fills_the_folded_entries_and_the_fold_tells() -> None:
    async with opened((80, 40)) as hand:
        hand.pane.load(Preset("mine", "", MINE))
        await hand.settle()
        assert hand.pane.sweep == MINE
        assert "▸ variants: LM, adamw/AdamW" not in hand.seen(hand.fold("variants"))
        assert "▸ variants: LM, AdamW" in hand.seen(hand.fold("variants"))
        await hand.unfold("variants")
        assert hand.entry("model", TextEntry).value == "my.model:LM"
        assert hand.entry("model_args", TextEntry).value == "dropout=0.1"
        assert "▾ model and variants" in hand.seen(hand.fold("variants"))


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        (Sweep(), "model, compile, ranks…"),
        (Sweep(attentions=("naive", "sdpa"), compiles=("default",)), "variants: naive/sdpa, compiled"),
        (Sweep(checkpoints=(0, 2), cuda_graphs=("step",)), "variants: checkpoint 0/2, CUDA graph"),
        (Sweep(workload="attention", causal=False), "variants: attention alone, not causal"),
        (Sweep(loss="my:loss", compiles=("off", "default")), "variants: compile off/default, loss"),
    ],
)
def test_a_closed_fold_says_what_is_not_as_usual(sweep: Sweep, said: str) -> None:
    assert fold_label(entries_of(sweep), is_open=False) == said


async def test_a_problem_of_a_variant_marks_the_closed_fold() -> None:
    async with opened((80, 30)) as hand:
        await hand.unfold("variants")
        await hand.type("model", "LM")
        await hand.pilot.pause()
        assert "✗ LM: expected one of reference" in " ".join(hand.seen(hand.entry("model", TextEntry)).split())
        await hand.go_to(hand.fold("variants"))
        await hand.press("enter")
        await hand.pilot.pause()
        assert "▸ ✗ variants" in hand.seen(hand.fold("variants"))


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
        assert hand.pane.sweep == Sweep()
        await hand.press("enter", "enter")
        assert hand.pane.sweep == Sweep(
            models=("my.model:LM",), model_args=(("dropout", "0.1"),), model_path=("/repo",)
        )
        assert hand.entry("model_args", TextEntry).value == "dropout=0.1"


async def test_without_any_there_is_no_such_entry() -> None:
    async with opened() as hand:
        await hand.unfold("variants")
        assert not hand.entry("recent", RecentEntry).display


async def test_a_run_keeps_its_models_and_offers_them() -> None:
    app = Cs336App(Benches(), initial=MINE)
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, "NVIDIA")
        pane = app.query_one(ConfigurePane)
        pane.query_one("#fold-variants", Fold).action_turn()
        await until(pilot, lambda _: bool(pane.query(RecentEntry)))
        pane.request_run()
        await until(pilot, lambda _: bool(pane.query_one(RecentEntry).models))
        (kept,) = recent_models()
        assert kept == RecentModel(model="my.model:LM", args=(("dropout", "0.1"),), path=("/repo",))
        assert pane.query_one(RecentEntry).display


# While it runs.


def live(spec: CellSpec, *events: object, width: int = 60, height: int = 30) -> str:
    state = state_of([*session_start([spec]), *cell_start(0), *events])  # type: ignore[list-item]
    cell = state.cells[0]
    return text(live_lines(state, cell, width, height))


@pytest.mark.parametrize(
    ("stage", "words"), [("compiling", "compiling the model, 0:12"), ("capturing", "capturing a CUDA graph, 0:12")]
)
def test_long_stages_say_how_long_they_have_lasted(stage: str, words: str) -> None:
    since = StageChanged(at=START + 20, cell=0, stage=stage)
    assert words in live(a_spec(compile="default"), since, Notice(at=START + 32, text=""))


def test_what_preparing_took_stands_beside_the_rates() -> None:
    prepared = ModelPrepared(at=START + 20, cell=0, compile_s=12.34, graphs=1, capture_s=0.256)
    ended = cell_end(0, before_backward_bytes=1_500_000_000)
    shown = live(a_spec(compile="default"), prepared, *steps(0, [0.2], [0.1] * 4), ended, width=110)
    assert "compiled in 12.3 s · captured in 0.26 s · before backward 1.50 GB" in shown


LONG = a_spec(
    workload="attention",
    pass_="forward+backward",
    attention="memory-efficient",
    compile="reduce-overhead",
    causal=False,
)


@pytest.mark.parametrize("width", [30, 53, 78, 120])
def test_a_long_title_takes_two_rows_and_loses_no_part_before_it_must(width: int) -> None:
    rows = title_rows(LONG.title, width)
    assert len(rows) <= 2
    assert " · ".join(row.removesuffix(" ·") for row in rows) == LONG.title
    assert len(rows[0]) <= width
    assert (len(rows) == 1) == (len(LONG.title) <= width)


def test_a_model_that_cannot_be_imported_says_so_in_one_line_and_what_it_printed() -> None:
    spec = a_spec(model="my.model:LM", model_path=("/repo",))
    why = "my.model: ModuleNotFoundError: No module named 'einops' (/repo/my/model.py, line 3)"
    shown = live(spec, cell_end(0, "failed", error=why, stage="building"), width=110)
    assert "✗ failed while building" in shown
    assert why in shown
    assert "· LM" in shown


# What was found.


def test_the_detail_of_a_cell_tells_variants_with_units() -> None:
    spec = a_spec(
        model="my.model:LM", model_args=(("dropout", "0.1"),), model_path=("/repo",), compile="default",
        checkpoint=2, optimizer="my.optim:AdamW", pass_="train-step",
    )  # fmt: skip
    in_force = EffectiveSettings(
        matmul_precision="highest", attention="LM's own", model_revision="a1b2c3d, my/model.py 0f0f0f0f"
    )
    prepared = ModelPrepared(
        at=START + 13, cell=0, compile_s=31.04, graphs=2, graph_breaks=("call to print (my/model.py:12)",)
    )
    built = ModelBuilt(at=START + 12, cell=0, num_params=10, num_params_without_head=9, in_force=in_force)
    ended = cell_end(0, recompilations=1)
    events = [CellStarted(at=START + 10, cell=0), built, prepared, *steps(0, [0.3], [0.1] * 4), ended]
    state = state_of([*session_start([spec]), *events])
    shown = text(cell_detail(state, state.cells[0], 100))
    for row in (
        "compiling       31.0 s",
        "graphs          2",
        "graph breaks    1",
        "call to print (my/model.py:12)",
        "recompiled 1 time during the steps",
        "model           my.model:LM",
        "arguments       dropout=0.1",
        "module path     /repo",
        "torch.compile   default",
        "checkpoint      activations recomputed in groups of 2 blocks",
        "optimizer       my.optim:AdamW",
        "model revision  a1b2c3d, my/model.py 0f0f0f0f",
        "attention       LM's own",
    ):
        assert row in shown


def test_the_detail_of_attention_alone_names_no_model() -> None:
    spec = a_spec(
        workload="attention", size="d64", d_model=64, num_heads=1, pass_="forward", attention="sdpa", cuda_graph="step"
    )
    prepared = ModelPrepared(at=START + 12, cell=0, capture_s=0.0421)
    ended = cell_end(0, before_backward_bytes=268_435_456, peak_allocated_bytes=300_000_000)
    events = [*cell_start(0), prepared, *steps(0, [0.3], [0.1] * 4), ended]
    state = state_of([*session_start([spec]), *events])
    shown = text(cell_detail(state, state.cells[0], 100))
    for row in (
        "workload        attention alone, no model around it",
        "head dim        64",
        "mask            causal",
        "attention       sdpa",
        "capturing       0.04 s",
        "before backward 0.268 GB",
    ):
        assert row in shown
    assert "vocabulary" not in shown
    assert "graph breaks" not in shown


def test_a_table_has_a_column_for_each_variant_that_tells() -> None:
    assert told_variants([a_spec(), a_spec(context_length=512)]) == {}
    assert list(told_variants([a_spec(), a_spec(attention="sdpa", compile="default")])) == ["attention", "compile"]
    assert list(told_variants([a_spec(attention="sdpa")])) == ["attention"], "not as usual, though all alike"
    alone = a_spec(workload="attention", pass_="forward")
    assert list(told_variants([alone])) == []
    assert list(told_variants([alone, a_spec(pass_="forward")])) == ["workload"]


def variants_session(choices: Sequence[dict[str, Any]] = ({}, {"attention": "sdpa"})) -> list[object]:
    specs = [a_spec(**({"pass_": "forward"} | changes)) for changes in choices]
    events: list[object] = list(session_start(specs))
    for cell, time_s in enumerate((0.2, 0.1)):
        events += [*cell_start(cell), *steps(cell, [0.3], [time_s * (1 + 0.001 * n) for n in range(4)]), cell_end(cell)]
    return events


@pytest.mark.parametrize("size", [SMALL, WIDE_SCREEN, (200, 60)])
async def test_results_and_queue_show_what_tells_the_cells_apart(size: tuple[int, int], tmp_path: Path) -> None:
    app = Cs336App(replay=log_of(variants_session(), tmp_path), speed=0)  # type: ignore[arg-type]
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda _: not app.run_in_progress)
        await pilot.press("4")
        seen = await until(pilot, lambda shown: "attention" in shown and "sdpa" in shown)
        assert "naive" in seen
        await pilot.press("8")
        await until(pilot, "Mean step time")
        pane = app.query_one(ComparePane)
        await until(pilot, lambda _: nothing_in_background() and "attention" in pane.text)


OWN: dict[str, Any] = {"model": "course.basics.model:BasicsTransformerLM", "model_args": (("tie", "yes"),)}


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ([OWN, OWN], ["all cells: model course.basics.model:BasicsTransformerLM, model args tie=yes"]),
        ([{}, OWN], ["size", "reference", "BasicsTransformerLM"]),
        ([OWN, OWN | {"model": "other.model:BasicsTransformerLM"}], ["course.basics.model:BasicsTransformerLM"]),
    ],
)
async def test_whose_model_it_is_is_seen_in_a_small_window(
    models: list[dict[str, Any]], told: list[str], tmp_path: Path
) -> None:
    events = variants_session([{"size": "custom", "batch_size": 2 + at} | of for at, of in enumerate(models)])
    app = Cs336App(replay=log_of(events, tmp_path), speed=0)  # type: ignore[arg-type]
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda _: not app.run_in_progress)
        await pilot.press("4")
        seen = await until(pilot, lambda shown: all(text in shown for text in told))
        assert "mean ms" in seen
        assert "attention" not in seen


def test_two_cells_that_differ_in_a_variant_say_in_which() -> None:
    times_s = [0.1 + 0.0001 * (step * 7 % 5) for step in range(30)]
    a = merge([("a", session_of(Cell(a_spec(pass_="forward"), times_s)))])
    b = merge([("b", session_of(Cell(a_spec(pass_="forward", attention="sdpa"), times_s)))])
    page = pairs_page(a, b, 200)
    assert "attention" in text(list(page.heading))
    assert "naive | sdpa" in text(list(page.rows))
