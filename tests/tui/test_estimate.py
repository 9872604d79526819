"""Predictions shown before a run: the Estimate tab and Configure's summary; of many cells and several variants, too."""

import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import product

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from cs336_tui.analysis.targets import Target, named_target
from cs336_tui.config.presets import Preset
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.sweep import Sweep
from cs336_tui.events.events import CellsPredicted
from cs336_tui.events.gpus import find_gpu
from cs336_tui.events.prediction import Collective, Prediction
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.configure import preview
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.configure.preview import MOST, CellChoices, Cells, cells_of, needs, needs_of
from cs336_tui.tui.controllers.estimates import BatchSearch
from cs336_tui.tui.tabs.estimate import EstimateList, EstimatePane
from tests.made_predictions import made_prediction, on
from tests.samples import START, a_spec, cell_end, cell_start, session_start, steps
from tests.tui.watched import SMALL, WIDE, Benches, comes, on_screen, press, until
from tests.watching import small_spec

SWEEP = Sweep(sizes=("small",), contexts=(128, 256), passes=("forward", "train-step"), devices=("auto",))
GB = 10**9


def sized(spec: CellSpec) -> Prediction:
    """A prediction of 10 GB, more for longer contexts, and 90 GB for a train step at context 256."""
    peak = 90 * GB if (spec.context_length, spec.pass_) == (256, "train-step") else 10 * GB + spec.context_length
    return resized(made_prediction(spec), peak)


def resized(prediction: Prediction, peak: int) -> Prediction:
    by_category = dict.fromkeys(prediction.by_category, 0) | {"activations": peak}
    return msgspec.structs.replace(prediction, peak_bytes=peak, by_category=by_category)


def answer(app: Cs336App, bench: Benches, made: Callable[[CellSpec], Prediction] = made_prediction) -> None:
    """Deliver predictions of the cells that were asked for last, also as ones of the GPU elsewhere."""
    found = tuple(made(spec) for spec in bench.predicted[-1])
    app.take(app.live, [CellsPredicted(at=START, predictions=found, elsewhere=on) for on in {None, bench.capability}])


def summary(app: Cs336App) -> str:
    return " ".join(str(app.main.query_one("#summary").render()).split())


async def asked(pilot, bench: Benches, times: int = 1) -> tuple[CellSpec, ...]:  # type: ignore[no-untyped-def]
    await until(pilot, lambda _: bool(bench.made) and len(bench.predicted) >= times)
    return bench.predicted[-1]


@asynccontextmanager
async def estimating(
    bench: Benches, sweep: Sweep, size: tuple[int, int], made: Callable[[CellSpec], Prediction] = made_prediction
) -> AsyncIterator[tuple[Cs336App, Pilot[None], EstimatePane]]:
    """An app with the predictions of a sweep's cells, its Estimate tab open."""
    async with on_screen(Cs336App(bench, initial=sweep), size=size) as (app, pilot):
        await pilot.press("escape", "i")
        await asked(pilot, bench)
        answer(app, bench, made)
        yield app, pilot, app.main.query_one(EstimatePane)


async def test_choices_are_predicted_once_for_all_that_need_the_same_and_the_summary_says_so(bench: Benches) -> None:
    async with on_screen(Cs336App(bench, initial=SWEEP)) as (app, pilot):
        await until(pilot, lambda _: summary(app) == "4 cells · 60 steps · predicting ...")
        specs = await asked(pilot, bench)
        wanted = product((128, 256), ("forward", "train-step"), ("cuda:0",))
        assert sorted((spec.context_length, spec.pass_, spec.device) for spec in specs) == [*wanted]
        answer(app, bench)
        await until(pilot, lambda _: "fits" in summary(app))
        assert summary(app).startswith("4 cells · 60 steps · peak ")
        assert len(bench.predicted) == 1
        answer(app, bench, sized)
        await until(pilot, lambda _: "peak 90.0 GB · 1 of 4 does not fit" in summary(app))
        assert app.main.query_one("#summary").has_class("-caution")
        answer(app, bench, lambda spec: resized(made_prediction(spec), 84 * GB))
        await until(pilot, lambda _: "peak 84.0 GB fits tightly" in summary(app))
        answer(app, bench, lambda spec: resized(made_prediction(spec), 200 * GB))
        await until(pilot, lambda _: "peak 200 GB · 4 of 4 do not fit" in summary(app))
        assert app.main.query_one("#summary").has_class("-bad")
        answer(app, bench)
        await until(pilot, lambda _: "fits" in summary(app))
        app.load_preset(Preset("same", "", msgspec.structs.replace(SWEEP, steps=30, warmups=(1, 5))))
        await until(pilot, lambda _: "8 cells" in summary(app) and "fits" in summary(app))
        assert not any(bench.predicted[1:])
        app.load_preset(Preset("more", "", msgspec.structs.replace(SWEEP, batches=(4, 8))))
        await until(pilot, lambda _: {spec.batch_size for spec in bench.predicted[-1]} == {8})


async def test_a_change_of_the_choices_is_taken_up_without_another_event_and_no_others_prediction_is_shown(
    bench: Benches, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, may_work_out = Cs336App(bench, initial=SWEEP), threading.Event()
    may_work_out.set()

    def slow(choices: CellChoices) -> Cells:
        may_work_out.wait()
        return cells_of(choices)

    monkeypatch.setattr(preview, "cells_of", slow)
    async with app.run_test(size=WIDE) as pilot:
        await asked(pilot, bench)
        answer(app, bench, lambda spec: resized(made_prediction(spec), 12 * GB))
        await until(pilot, lambda _: "peak 12.0 GB fits" in summary(app))
        may_work_out.clear()
        app.load_preset(Preset("larger", "", msgspec.structs.replace(SWEEP, batches=(8,))))
        assert summary(app) == "4 cells · 60 steps · predicting ...", "at once"
        app.paint()
        assert summary(app) == "4 cells · 60 steps · predicting ...", "while its cells are worked out"
        may_work_out.set()
        await comes(pilot, lambda: len(bench.predicted) == 2)
        assert summary(app) == "4 cells · 60 steps · predicting ...", "until it is there"
        answer(app, bench, lambda spec: resized(made_prediction(spec), 24 * GB))
        await comes(pilot, lambda: "peak 24.0 GB fits" in summary(app))
        app.load_preset(Preset("small", "", msgspec.structs.replace(SWEEP, batches=(2,))))
        await comes(pilot, lambda: len(bench.predicted) == 3)
        answer(app, bench)
        await comes(pilot, lambda: "fits" in summary(app))
        pane = app.main.query_one(ConfigurePane)
        pane._set(pane._entries.with_value("repeats", "2"))
        await comes(pilot, lambda: "8 cells" in summary(app) and "fits" in summary(app))
        await app.action_open("estimate")
        tab = app.main.query_one(EstimatePane)
        await comes(pilot, lambda: "fits" in tab.text)
        may_work_out.clear()
        app.load_preset(Preset("larger", "", msgspec.structs.replace(SWEEP, batches=(16,))))
        app.paint()
        assert "predicting ..." in tab.text
        assert "fits" not in tab.text, "of the choices before"
        may_work_out.set()


@pytest.mark.parametrize("size", [SMALL, WIDE, (200, 60), (40, 12)])
async def test_every_cell_has_a_row_and_its_detail_is_a_key_away(size: tuple[int, int], bench: Benches) -> None:
    async with estimating(bench, SWEEP, size, sized) as (app, pilot, pane):
        rows = pane.query_one(EstimateList)
        await until(pilot, lambda _: "✓ fits" in pane.text)
        await until(pilot, lambda _: rows.has_focus)
        if size == (200, 60):  # with room for the detail of the cell under the cursor
            assert "forward has no gradients" in await until(pilot, "small · ctx 128 · forward · fp32")
        await press(pilot, "end", seen=lambda _: "✗ does not fit" in pane.text and "90.0" in pane.text)
        if size == (200, 60):
            assert "optimizer state" in await until(pilot, "small · ctx 256 · train-step · fp32")
        text = await press(pilot, "enter", seen="128,634,624")
        assert "120,954,624 less" in text
        if size[1] >= 24:
            assert "does not fit, by" in text
            assert "residual stream" in text
            assert "end of forward" in text
        await press(pilot, "end", seen="transformer.py:124")
        await press(pilot, "escape", seen=lambda _: len(app.screen_stack) == 1)


def by_batch(spec: CellSpec) -> Prediction:
    """Needs 2 GB and 0.7 GB for each sequence, half as much for a forward."""
    each = 7 * GB // 10 if spec.pass_ == "train-step" else 35 * GB // 100
    return resized(made_prediction(spec), 2 * GB + each * spec.batch_size)


async def test_the_largest_batch_that_fits_an_a100_is_found_with_eight_keys(bench: Benches) -> None:
    app = Cs336App(bench, initial=msgspec.structs.replace(SWEEP, contexts=(128,)))
    keys = ("i", "g", *"a100", "enter", "n")
    assert len(keys) <= 8
    async with on_screen(app, size=SMALL) as (_, pilot):
        await press(pilot, *keys[:2], seen="Target GPU (blank: this machine)")
        await pilot.press(*keys[2:-1])
        pane = app.main.query_one(EstimatePane)
        await until(pilot, lambda _: "A100 SXM 80GB" in pane.text)
        await until(pilot, lambda _: pane.query_one(EstimateList).has_focus)
        await pilot.press(keys[-1])
        asked = 0
        while "looking" in pane.text or "…" in pane.text or not asked:
            await until(pilot, lambda _, asked=asked: len(bench.predicted) > asked or "…" not in pane.text)
            asked = len(bench.predicted)
            answer(app, bench, by_batch)
            await pilot.pause()
        room = named_target(find_gpu("A100")).room_bytes(1)
        for each in (7 * GB // 10, 35 * GB // 100):
            most = (room - 2 * GB) // each
            assert re.search(rf" {most} ", pane.text), most
        assert asked < 20, "few predictions"
        assert bench.capability == (8, 0), "workspaces and kernels are an A100's, as for the command fit"
        await press(pilot, "n", seen=lambda _: "largest batch" not in pane.text)


async def test_another_gpu_is_chosen_by_words_of_its_name_from_a_list_with_their_memory(bench: Benches) -> None:
    def large(spec: CellSpec) -> Prediction:
        return resized(made_prediction(spec), 30 * GB)

    async with estimating(bench, SWEEP, WIDE, large) as (app, pilot, pane):
        await until(pilot, lambda _: "✓ fits" in pane.text)
        assert "79.1 GiB" in await press(pilot, "g", seen="this machine")
        await press(pilot, *"nonsense", "enter", seen="none has all of these words")
        words = app.screen.query_one(Input)
        words.value = "a100 40"
        await until(pilot, lambda text: "A100 SXM 40GB" in text and "this machine " not in text)
        words.value = "NVIDIA GeForce RTX 3090"
        await until(pilot, lambda text: "RTX 3090 24GB" in text and "A100" not in text)
        before = len(bench.predicted)
        await pilot.press("enter")
        await asked(pilot, bench, before + 1)
        answer(app, bench, large)
        await until(pilot, lambda _: "✗ does not fit" in pane.text)
        assert "RTX 3090" in pane.text.splitlines()[0]
        assert "fits" in summary(app)
        assert "not fit" not in summary(app)
        await press(pilot, "g", "enter", seen=lambda _: "✓ fits" in pane.text)


async def test_what_ranks_communicate_and_how_long_that_takes_by_the_link_that_is_named(bench: Benches) -> None:
    choices = {"contexts": (128,), "passes": ("train-step",), "ranks": (4,), "parallels": ("ddp",), "devices": ("cpu",)}
    ranks = msgspec.structs.replace(SWEEP, **choices)
    made = partial(made_prediction, communication=(Collective(op="all-reduce", calls=3, bytes=9 * GB),))
    async with estimating(bench, ranks, (200, 60), made) as (app, pilot, pane):
        await until(pilot, lambda _: "unknown; L sets it" in pane.text)
        assert "of each rank" in pane.text
        await press(pilot, "L", *"fast", "enter", seen="expected a bandwidth such as 450GB/s")
        await pilot.press("ctrl+u", *"400Gb/s", "enter")
        # 2 x 3/4 x 9 GB over links of 50 GB/s, then of an H100's 450 GB/s.
        await until(pilot, lambda _: "all-reduce 3 calls, 9.00 GB, at least 270.000 ms" in pane.text)
        await pilot.press("L", "enter", "g", *"H100", "enter")
        await asked(pilot, bench, 2)
        answer(app, bench, made)
        await until(pilot, lambda _: "at least 30.000 ms" in pane.text)
        assert "450 GB/s, NVLink of H100 SXM 80GB by its data sheet" in " ".join(pane.text.split())


async def test_ranks_that_have_no_gpus_here_are_predicted_on_a_named_one(bench: Benches) -> None:
    choices = {"contexts": (128,), "passes": ("train-step",), "ranks": (8,), "parallels": ("ddp",)}
    app = Cs336App(bench, initial=msgspec.structs.replace(SWEEP, **choices))
    async with on_screen(app, "own, and there is 1 GPU") as (_, pilot):
        await pilot.press("escape", "i")
        pane = app.main.query_one(EstimatePane)
        await until(pilot, lambda _: "Fix the errors" in pane.text)
        await pilot.press("g", *"A100", "enter")
        (spec,) = await asked(pilot, bench)
        assert (spec.ranks, spec.device) == (8, "cuda:0")
        answer(app, bench)
        await until(pilot, lambda _: "✓ fits" in pane.text)


async def test_predictions_wait_while_cells_run_and_choices_and_session_are_switched_by_key(bench: Benches) -> None:
    async with on_screen(Cs336App(bench, initial=SWEEP)) as (app, pilot):
        await press(pilot, "escape", "r", seen="▶ running")
        await press(pilot, "i", seen="predictions resume after the run")
        assert "predicting" not in summary(app)
        bench.go_on.set()
        await until(pilot, lambda _: len(app.state.finished_cells) == 4 and not app.run_in_progress)
        pane = app.main.query_one(EstimatePane)
        await until(pilot, lambda _: "Configure's choices" in pane.text)
        await press(pilot, "v", seen=lambda _: "session's cells" in pane.text)
        await press(pilot, "v", seen=lambda _: "Configure's choices" in pane.text)


def test_cells_that_need_the_same_and_run_alike_are_counted_with_all_their_steps() -> None:
    specs = [a_spec(warmup_steps=warmup) for warmup in (0, 2)] + [a_spec(context_length=256)]
    assert [(need.spec, need.cells, need.steps) for need in needs(specs)] == [(specs[0], 2, 10), (specs[2], 1, 6)]
    specs = [a_spec(compile=compile_) for compile_ in ("off", "default", "default")] + [a_spec(cuda_graph="step")]
    assert [(need.spec, need.cells) for need in needs(specs)] == [(specs[0], 1), (specs[1], 2), (specs[3], 1)]


def test_it_counts_what_the_allocator_takes_of_the_device() -> None:
    """10 bytes a sequence at the peak, of which the allocator takes 15 of the device."""
    target = Target(name="A GPU", device="cuda:0", capacity_bytes=100, free_bytes=100, source="made", context=0)
    specs = [small_spec(device="cuda:0", batch_size=size) for size in range(1, 65)]
    predictions = {
        needs_of(each): made_prediction(each, peak_bytes=10 * each.batch_size, reserved_bytes=15 * each.batch_size)
        for each in specs
    }
    largest = BatchSearch().of(predictions, {}, specs[0], target)
    assert largest.fit.largest == 6


CONTEXTS = tuple(128 * number for number in range(1, MOST + 3))
MANY = Sweep(sizes=("small",), contexts=CONTEXTS, passes=("forward",), devices=("auto",))
BOTH = msgspec.structs.replace(SWEEP, contexts=(128,), passes=("train-step",), compiles=("off", "default"))


def one_gigabyte(spec: CellSpec) -> Prediction:
    return resized(made_prediction(spec), GB)


def longest_misfits(spec: CellSpec) -> Prediction:
    return resized(made_prediction(spec), 200 * GB if spec.context_length == CONTEXTS[-1] else GB)


async def open_tab(pilot: Pilot[None]) -> EstimatePane:
    await pilot.press("escape", "i")
    return pilot.app.screen.query_one(EstimatePane)


async def test_of_too_many_kinds_the_largest_are_predicted_and_listed(bench: Benches) -> None:
    async with on_screen(Cs336App(bench, initial=MANY)) as (app, pilot):
        assert [spec.context_length for spec in await asked(pilot, bench)] == list(CONTEXTS[2:])
        answer(app, bench, longest_misfits)
        said = f"peak 200 GB (of the {MOST} largest kinds) · at least 1 of {MOST + 2} does not fit"
        await until(pilot, lambda _: said in summary(app))
        assert app.main.query_one("#summary").has_class("-caution")
        answer(app, bench, one_gigabyte)
        await until(pilot, lambda _: f"fits (of the {MOST} largest kinds) · takes more than " in summary(app))
        pane = await open_tab(pilot)
        await until(pilot, lambda _: f"the {MOST} largest of {MOST + 2} kinds" in pane.text)
        await until(pilot, lambda _: "all steps more than " in pane.text)


async def test_of_a_cell_that_cannot_be_predicted_the_time_is_not_known_and_its_row_says_why(bench: Benches) -> None:
    sweep, why = msgspec.structs.replace(MANY, contexts=CONTEXTS[-3:]), "not computed within 60 s"
    async with on_screen(Cs336App(bench, initial=sweep), "") as (app, pilot):
        specs = await asked(pilot, bench)
        for made in (longest_misfits, one_gigabyte):
            predicted = tuple(made(spec) for spec in specs[1:])
            app.take(app.live, [CellsPredicted(at=START, predictions=predicted, failed=specs[:1], why=why)])
            if made is longest_misfits:
                await until(pilot, lambda _: "at least 1 of 3 does not fit · takes more than " in summary(app))
        pane = await open_tab(pilot)
        await until(pilot, lambda _: "all steps more than " in pane.text)
        assert ", 1 not predicted" in pane.text
        assert pane.text.count("✓ fits") == 2
        assert pane.text.count("! unknown") == 1
        assert "not predicted: not computed within 60 s" in pane.text


async def test_compiled_cells_have_rows_of_their_own_and_not_the_time_of_cells_as_written(bench: Benches) -> None:
    async with on_screen(Cs336App(bench, initial=BOTH)) as (app, pilot):
        (spec,) = await asked(pilot, bench)
        cell = [*cell_start(0), *steps(0, (0.1,), (0.1,) * 4), cell_end(0)]
        app.take(app.live, [*session_start([on(spec, compile="off")]), *cell])
        answer(app, bench)
        await until(pilot, lambda _: "takes 3 s and compiling, partly from other variants" in summary(app))
        pane = await open_tab(pilot)
        await until(pilot, lambda _: "all steps 3 s and compiling, partly from other variants" in pane.text)
        assert pane.text.count("train-step") >= 2
        assert {"default", "off"} <= {*pane.query_one(EstimateList).text.split()}
