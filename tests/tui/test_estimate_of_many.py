"""Estimates of sweeps with many cells or several variants: cells shown and cells left out."""

from __future__ import annotations

import msgspec
from textual.pilot import Pilot

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.sweep import Sweep
from cs336_tui.events.events import CellsPredicted
from cs336_tui.events.prediction import Prediction
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.configure.preview import MOST, needs
from cs336_tui.tui.tabs.estimate import EstimateList, EstimatePane
from tests.made_predictions import made_prediction, on
from tests.samples import START, a_spec, cell_end, cell_start, session_start, steps
from tests.tui.test_estimate import GB, SWEEP, answer, asked, estimating, resized, summary
from tests.tui.watched import WIDE, Benches, on_screen, until

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


async def test_of_too_many_kinds_the_largest_are_predicted(bench: Benches) -> None:
    async with on_screen(Cs336App(bench, initial=MANY)) as (app, pilot):
        specs = await asked(pilot, bench)
        assert [spec.context_length for spec in specs] == list(CONTEXTS[2:])
        answer(app, bench, longest_misfits)
        said = f"peak 200 GB (of the {MOST} largest kinds) · at least 1 of {MOST + 2} does not fit"
        await until(pilot, lambda _: said in summary(app))
        assert app.main.query_one("#summary").has_class("-caution")
        answer(app, bench, one_gigabyte)
        await until(pilot, lambda _: f"fits (of the {MOST} largest kinds) · takes more than " in summary(app))


async def test_the_tab_says_that_it_lists_the_largest_only(bench: Benches) -> None:
    async with estimating(bench, MANY, WIDE) as (_, pilot, pane):
        await until(pilot, lambda _: f"the {MOST} largest of {MOST + 2} kinds" in pane.text)
        await until(pilot, lambda _: "all steps more than " in pane.text)


async def test_of_a_cell_that_cannot_be_predicted_the_time_is_not_known(bench: Benches) -> None:
    app = Cs336App(bench, initial=msgspec.structs.replace(MANY, contexts=CONTEXTS[-3:]))
    async with app.run_test(size=WIDE) as pilot:
        specs = await asked(pilot, bench)
        predicted = tuple(longest_misfits(spec) for spec in specs[1:])
        app.take(app.live, [CellsPredicted(at=START, predictions=predicted, failed=specs[:1])])
        await until(pilot, lambda _: "at least 1 of 3 does not fit · takes more than " in summary(app))


async def test_a_cell_that_cannot_be_predicted_costs_its_own_row_of_the_tab(bench: Benches) -> None:
    app = Cs336App(bench, initial=msgspec.structs.replace(MANY, contexts=CONTEXTS[-3:]))
    async with app.run_test(size=WIDE) as pilot:
        specs = await asked(pilot, bench)
        predicted = tuple(one_gigabyte(spec) for spec in specs[1:])
        app.take(
            app.live,
            [CellsPredicted(at=START, predictions=predicted, failed=specs[:1], why="not computed within 60 s")],
        )
        pane = await open_tab(pilot)
        await until(pilot, lambda _: "all steps more than " in pane.text)
        assert ", 1 not predicted" in pane.text
        assert pane.text.count("✓ fits") == 2
        assert pane.text.count("! unknown") == 1
        assert "not predicted: not computed within 60 s" in pane.text


async def test_cells_that_run_another_way_have_a_row_of_their_own(bench: Benches) -> None:
    async with estimating(bench, BOTH, WIDE) as (_, pilot, pane):
        assert len(bench.predicted[-1]) == 1
        await until(pilot, lambda _: pane.text.count("train-step") >= 2)
        rows = pane.query_one(EstimateList).text
        assert "default" in rows
        assert "off" in rows


async def test_the_time_of_compiled_cells_is_not_said_to_be_that_of_cells_as_written(bench: Benches) -> None:
    async with on_screen(Cs336App(bench, initial=BOTH)) as (app, pilot):
        (spec,) = await asked(pilot, bench)
        app.take(
            app.live,
            [*session_start([on(spec, compile="off")]), *cell_start(0), *steps(0, (0.1,), (0.1,) * 4), cell_end(0)],
        )
        answer(app, bench)
        await until(pilot, lambda _: "takes 3 s and compiling, partly from other variants" in summary(app))
        pane = await open_tab(pilot)
        await until(pilot, lambda _: "all steps 3 s and compiling, partly from other variants" in pane.text)


def test_cells_that_run_another_way_are_counted_apart() -> None:
    specs = [a_spec(compile=compile_) for compile_ in ("off", "default", "default")] + [a_spec(cuda_graph="step")]
    assert [(need.spec, need.cells) for need in needs(specs)] == [(specs[0], 1), (specs[1], 2), (specs[3], 1)]
