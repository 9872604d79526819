"""Peaks and estimates of variants: a compiled cell has its eager cell's prediction but a measurement of its own."""

from pathlib import Path

import msgspec
import pytest

from cs336_tui.analysis.estimates import judge
from cs336_tui.analysis.targets import Target
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import CellsPredicted, Event
from cs336_tui.events.prediction import Prediction
from cs336_tui.tui.tabs.estimate import EstimatePane
from cs336_tui.tui.tabs.estimate_texts import EstimateRow, brief, flops, table
from cs336_tui.tui.tabs.memory_tables import peaks_page
from tests.made_memory import MB, a_prediction
from tests.made_predictions import made_prediction
from tests.samples import START, a_spec, cell_end, cell_start, session_start, state_of, steps
from tests.tui.one_pane import LARGE
from tests.tui.watched import on_screen, press, replaying, text

WRITTEN = a_spec(pass_="train-step")
COMPILED = msgspec.structs.replace(WRITTEN, compile="default")
GPU = Target(name="A GPU", device="cuda:0", capacity_bytes=10**10, free_bytes=None, source="its maker")
OWN = a_spec(pass_="train-step", model="package.module:GPT")


def ran(*specs: CellSpec) -> list[Event]:
    """A session in which they ran, the first with a peak of 500 MB, each other one with 100 MB less."""
    events = [*session_start(specs)]
    for place in range(len(specs)):
        peak = (500 - 100 * place) * MB
        events += [*cell_start(place), *steps(place, (0.1,) * 2, (0.1,) * 4)]
        events.append(cell_end(place, peak_allocated_bytes=peak, peak_reserved_bytes=peak))
    return events


@pytest.mark.parametrize("specs", [(WRITTEN, COMPILED), (COMPILED, WRITTEN)], ids=["compiled last", "compiled first"])
def test_what_was_measured_compiled_is_not_told_of_what_is_written(specs: tuple[CellSpec, ...]) -> None:
    predicted = CellsPredicted(at=START + 60, predictions=(a_prediction(WRITTEN, peak_bytes=450 * MB),))
    page = peaks_page(state_of([*ran(*specs), predicted]), WRITTEN, LARGE[0])
    heading, *rows = text([page.heading[-1], *page.rows[:2]]).splitlines()
    timed = {spec.compile: f"{500 - 100 * place}.000" for place, spec in enumerate(specs)}
    of = {"default" if "default" in row else "off": row.split() for row in rows}
    assert heading.rstrip().endswith("timed  pred. / timed")
    assert {name: row[-2] for name, row in of.items()} == timed
    assert of["off"][0] == ">"
    assert of["default"][0] != ">"
    assert of["default"][-1] == "–", "the prediction is of the model as it is written"


@pytest.mark.parametrize("width", [60, 80])
def test_several_variants_leave_room_for_a_figure(width: int) -> None:
    alone = msgspec.structs.replace(COMPILED, checkpoint=2, device="cpu")
    sharded = msgspec.structs.replace(alone, ranks=2, parallel="zero1", backend="gloo")
    page = peaks_page(state_of(ran(alone, sharded)), None, width)
    heading, *rows = (row.split() for row in text([page.heading[-1], *page.rows[:2]]).splitlines())
    assert heading[-1] == "timed"
    assert [row[-1] for row in rows] == ["500.000", "400.000"]
    assert [row[heading.index("parallel")] for row in rows] == ["none", "zero1"]


async def test_the_estimate_of_a_session_stands_beside_the_peak_of_its_own_cells(tmp_path: Path) -> None:
    predicted = CellsPredicted(at=START + 3, predictions=(made_prediction(WRITTEN),))
    events = [*ran(WRITTEN, COMPILED, a_spec()), predicted]
    async with on_screen(replaying(events, tmp_path), "at its end") as (app, pilot):
        await press(pilot, "i", seen=lambda _: "session's cells" in app.main.query_one(EstimatePane).text)
        pane = app.main.query_one(EstimatePane)
        assert "0.500" in pane.text, "not the 0.4 GB of the compiled one"
        await press(pilot, "enter", seen="measured 0.500 GB (")
        await press(pilot, "escape", "end", seen=lambda _: "No prediction" in pane.text)


def test_cells_of_an_estimate_are_told_apart_by_their_variants_and_a_model_of_ones_own_is_named() -> None:
    sweep = sweep_from(workload="attention", head_dims=(16,), passes=("forward",), contexts=(64,), devices=("cpu",),
                       attentions=("naive", "sdpa"))  # fmt: skip
    assert table([EstimateRow(spec, None) for spec in sweep.cells()]).texts("attention") == ("naive", "sdpa")
    shown = table([EstimateRow(OWN, None), EstimateRow(msgspec.structs.replace(OWN, batch_size=8), None)])
    assert shown.texts("model") == ("GPT", "GPT")


def test_flops_have_a_prefix_that_shows_them() -> None:
    words = ["2.31 TFLOP", "48.0 GFLOP", "1.05 MFLOP", "524 kFLOP"]
    assert list(map(flops, (2_310_000_000_000, 48_000_000_000, 1_050_000, 524_288))) == words


def test_what_is_very_small_is_said_in_its_own_unit_and_what_is_nothing_is_not_said() -> None:
    few = dict.fromkeys(made_prediction(WRITTEN).by_category, 1000)
    small: Prediction = msgspec.structs.replace(
        made_prediction(WRITTEN), peak_bytes=41_000, residual_stream_bytes=0, by_category=few
    )
    first, second = ("".join(span.text for span in row) for row in brief(EstimateRow(WRITTEN, judge(small, GPU)), 80))
    assert "peak 0.041 MB" in first, first
    assert "residual" not in second
    assert not second.rstrip().endswith(("GB", "·"))
    for width in range(40, 120):
        for row in brief(EstimateRow(WRITTEN, judge(made_prediction(WRITTEN), GPU)), width):
            said = "".join(span.text for span in row)
            assert len(said) <= width, "whole facts that fit"
            assert "…" not in said
