"""Roofline and measured peaks, as tables and as a figure; caveats of a peak stand wherever a share of it is shown."""

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.merge import merge, results_of
from cs336_tui.analysis.roofline import RooflinePoint, points
from cs336_tui.config.spec import Precision
from cs336_tui.events.events import CellsPredicted
from cs336_tui.events.peaks import DevicePeak, PeakCache, peak_key
from cs336_tui.export.record import document_of, to_csv, to_json
from cs336_tui.export.subjects.results import results_table
from cs336_tui.export.subjects.roofline import (
    MOST_POINTS,
    PeakRow,
    left_out,
    peak_table,
    roofline_figure,
    roofline_table,
)
from cs336_tui.export.summary import summary_markdown
from cs336_tui.export.writing.drawing import Absent, Drawing
from cs336_tui.export.writing.files import FORMATS
from cs336_tui.export.writing.formats import render
from cs336_tui.session.state import SessionState
from cs336_tui.tui.judging import assess
from cs336_tui.tui.tabs.live import live_lines
from tests.export.keeping import as_drawn, csv_rows, kept
from tests.made_peaks import made_peak
from tests.made_predictions import made_prediction
from tests.samples import ENVIRONMENT, START, a_spec
from tests.session.made import Cell, session_of
from tests.tui.watched import text

CPU, GPU = ENVIRONMENT.devices
KEY = peak_key(ENVIRONMENT, "cuda:0", "fp32")
PEAKS = {KEY: made_peak(50e12, 2.5e12)}


def made(*cells: Cell, peaks: Any = PEAKS, flops: int = 10**12, bytes_moved: int = 10**9) -> tuple[RooflinePoint, ...]:
    state = session_of(*cells)
    predicted = [made_prediction(each.spec, flops={"forward": flops}, min_bytes_moved=bytes_moved) for each in cells]
    state.apply(CellsPredicted(at=START, predictions=tuple(predicted)))
    return points(merge([("one", state)]), peaks.get)


OTHER = msgspec.structs.replace(ENVIRONMENT, host="other-box")
CASES: dict[str, tuple[RooflinePoint, ...]] = {
    "the same device in two hosts is told apart by the host": made(
        Cell(a_spec(), [0.1]), Cell(a_spec(), [0.1], repeat=2, on=OTHER)
    ),
    "bound by compute": made(Cell(a_spec(), [0.1]), Cell(a_spec(pass_="forward"), [0.05])),
    "bound by bandwidth": made(Cell(a_spec(), [0.1]), flops=10**11, bytes_moved=10**11),
    "nothing known": made(Cell(a_spec(device="cpu"), [0.1])),
    "more than the measured peak": made(Cell(a_spec(), [0.01])),
    "more than the data sheet": made(Cell(a_spec(), [0.01]), peaks={}),
    "another precision than asked for": made(Cell(a_spec(precision="tf32"), [0.1])),
}


@pytest.mark.parametrize("case", CASES)
def test_a_row_a_cell_with_its_shares_and_what_is_not_known(case: str, snapshot: SnapshotAssertion) -> None:
    assert kept(roofline_table(CASES[case])) == snapshot


def beside_others(busy_cores: float) -> tuple[RooflinePoint, ...]:
    """A cell of a CPU whose peak was measured while other processes kept so many cores busy."""
    peak = made_peak(device="cpu", device_name=CPU.label, allow_tf32=None, busy_cores=busy_cores)
    return made(Cell(a_spec(device="cpu"), [0.1]), peaks={peak_key(ENVIRONMENT, "cpu", "fp32", 32): peak})


OWN = "a_module_of_ones_own.models.transformer:A_Long_Name"

FIGURES: dict[str, tuple[RooflinePoint, ...]] = {
    "numbered cells, and ceilings of two devices": made(
        Cell(a_spec(), [0.1]), Cell(a_spec(pass_="forward"), [0.05]), Cell(a_spec(device="cpu"), [100.0])
    ),
    "ridges at 50 TFLOP/s over 2.5 TB/s and 67 over 3.35": made(Cell(a_spec(), [0.1])),
    "points without ceilings": made(Cell(a_spec(device="cpu"), [0.1])),
    "a peak in doubt": beside_others(1.5),
    "a measured peak": beside_others(0.0),
    "variants": made(Cell(a_spec(attention="sdpa", compile="default"), [0.1])),
    "long names are wrapped, and the title says what all cells are": made(
        *(Cell(a_spec(model=f"{OWN}{each}", model_path=("/x",)), [0.1]) for each in "AB")
    ),
}


@pytest.mark.parametrize("case", FIGURES)
def test_the_figure_numbers_its_cells_and_names_its_ceilings(case: str, snapshot: SnapshotAssertion) -> None:
    assert as_drawn(roofline_figure(FIGURES[case])) == snapshot


def test_no_number_is_printed_on_another() -> None:
    cells = [Cell(a_spec(seed=seed), [0.1 + 0.001 * (seed % 5)]) for seed in range(9)]
    drawing = roofline_figure(made(*cells))
    assert isinstance(drawing, Drawing)
    figure = Figure(figsize=drawing.size, layout="constrained")
    FigureCanvasAgg(figure)
    drawing.draw(figure)
    figure.draw_without_rendering()
    boxes = [number.get_window_extent() for axis in figure.axes for number in axis.texts]
    assert len(boxes) == len(cells)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_many_cells_say_how_many_are_shown_and_nothing_to_draw_says_why() -> None:
    cells = [Cell(a_spec(seed=seed), [0.1]) for seed in range(MOST_POINTS + 1)]
    many = roofline_figure(made(*cells))
    assert many.title.startswith(f"Roofline (the first {MOST_POINTS} of {MOST_POINTS + 1} cells)")
    assert roofline_figure(()) == Absent("roofline", "no cell was measured")
    assert roofline_table(()).rows == ()


def row(precision: Precision = "fp32", **changes: Any) -> PeakRow:
    return PeakRow(**({"device": GPU, "precision": precision, "peak": made_peak(50e12, 2.5e12, precision)} | changes))


def test_peaks_stand_beside_the_data_sheet_with_what_is_wrong_with_them(snapshot: SnapshotAssertion) -> None:
    peak = made_peak()
    noisy = msgspec.structs.replace(peak, copy=msgspec.structs.replace(peak.copy, spread=0.05))
    both = peak_table([row(), row("bf16", peak=made_peak(800e12, precision="bf16"))])
    in_no_table = peak_table([row(device=CPU, peak=made_peak(2e11, 7e10, device="cpu", allow_tf32=None))])
    busy = peak_table([row(device=CPU, peak=made_peak(device="cpu", busy_cores=1.5, note="made"))])
    failed = peak_table([row(peak=None, error="out of memory")])
    not_kept = peak_table([row(device=CPU, peak=made_peak(device="cpu", busy_cores=20.0))])
    assert kept(both, in_no_table, peak_table([row(peak=noisy)]), busy, failed, not_kept) == snapshot


def of_own_models(why: str = "") -> tuple[tuple[RooflinePoint, ...], tuple[str, ...]]:
    """The table and figure of a cell of the reference and of one of a model without prediction."""
    own = a_spec(model="mine:GPT", model_path=("/somewhere",))
    state = session_of(Cell(a_spec(), [0.1]), Cell(own, [0.1]))
    if why:
        state.apply(CellsPredicted(at=START, failed=(own,), why=why))
    results = merge([("one", state)])
    return points(results, {}.get), left_out(results)


def test_what_has_no_place_because_its_flops_are_unknown_is_said_with_why(snapshot: SnapshotAssertion) -> None:
    found, absent = of_own_models("model.py:64 in forward: it asks")
    assert absent == ("left out: FLOPs of GPT unknown: model.py:64 in forward: it asks",)
    assert kept(roofline_table(found, left_out=absent)) == snapshot
    assert as_drawn(roofline_figure(found, absent)) == snapshot
    assert roofline_figure((), absent) == Absent("roofline", absent[0])
    assert of_own_models()[1] == ("left out: FLOPs of GPT unknown: no prediction of it in this session",)
    assert roofline_table((), left_out=absent).footnotes == absent


def test_records_of_variants_and_repeats_are_told_apart() -> None:
    ways = [(attention, warmup) for attention in ("naive", "sdpa") for warmup in (0, 2)]
    cells = [Cell(a_spec(attention=attention, warmup_steps=warmup), [0.1]) for attention, warmup in ways]
    records = roofline_table(made(*cells)).records
    found = [(record["variants"] or "naive", record["warmup"], record["repeat"]) for record in records]
    assert found == [(*way, 1) for way in ways]


def on_cpu(busy_cores: float, matmul_flops: float = 1e14) -> tuple[SessionState, DevicePeak]:
    """A measured cell, and a peak of its device that was measured beside others."""
    state = session_of(Cell(a_spec(device="cpu"), [0.1] * 12))
    return state, made_peak(matmul_flops, 1e13, device="cpu", busy_cores=busy_cores)


CAVEATS = {"doubted": ("so that it may be too low", 1e14), "wrong": ("this peak is wrong: a cell achieved", 1e9)}


@pytest.mark.parametrize("case", CAVEATS)
@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_of_every_table_with_shares_has_the_caveat(format_: str, case: str) -> None:
    said, flops = CAVEATS[case]
    state, peak = on_cpu(1.0, flops)
    results = results_of(state)
    tables = [
        results_table(results, columns=["size", "peak"], peaks=lambda _: peak),
        roofline_table(points(results, lambda _: peak)),
    ]
    if case == "doubted":
        tables.append(peak_table([PeakRow(device=CPU, precision="fp32", peak=peak)]))
    for table in tables:
        rendered = " ".join(render(table, format_).replace("\\", "").split())
        assert said in rendered or "may be too low: other processes used the cores" in rendered, (format_, table.label)


@pytest.mark.parametrize("case", CAVEATS)
def test_the_data_and_the_summary_of_a_session_have_the_caveat(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, flops = CAVEATS[case]
    state, peak = on_cpu(0.9, flops)
    monkeypatch.setattr(PeakCache, "get", lambda *_: peak)
    (run,) = json.loads(to_json(document_of(state)))["runs"]
    (row,) = csv_rows(to_csv(document_of(state)))
    for found in (run["measured_peak_doubt"], row["measured_peak_doubt"]):
        assert found == "may be too low: other processes used the cores" or found.startswith("this peak is wrong: ")
        assert found.startswith("this peak is wrong") == (case == "wrong")
    assert said in summary_markdown(state)
    if case == "wrong":
        found = assess(state, state.cells[0], PeakCache(tmp_path))
        shown = text(live_lines(state, state.cells[0], 160, 30, found=found))
        assert "of a wrong peak" in shown


def test_a_wrong_peak_bounds_nothing_and_the_data_sheet_takes_its_place() -> None:
    (wrong,) = points(results_of(session_of(Cell(a_spec(), [0.1] * 5))), lambda _: made_peak(1e9, 1e6))
    assert wrong.measured.is_wrong
    assert wrong.ceiling is wrong.sheet
    (just,) = points(results_of(session_of(Cell(a_spec(), [0.1] * 5))), lambda _: made_peak(wrong.flops_per_s / 1.04))
    assert not just.measured.is_wrong


DISTURBED = {
    "other processes kept 7.5 cores busy": {"device": "cpu", "threads": 8, "busy_cores": 7.5},
    "processes of others on the GPU: 2": {"others": 2},
    "measured twice, it came out 30 % lower once": {"disagreement": 0.3},
}


@pytest.mark.parametrize("why", DISTURBED)
def test_a_peak_that_was_disturbed_is_kept_neither_in_memory_nor_on_disk(tmp_path: Path, why: str) -> None:
    good, cache = made_peak(disagreement=0.02, others=0), PeakCache(tmp_path)
    bad = made_peak(10e12, **DISTURBED[why])
    assert why in bad.disturbance
    cache.put(KEY, bad)
    assert cache.get(KEY) is None
    assert PeakCache(tmp_path).get(KEY) is None
    cache.put(KEY, good)
    cache.put(KEY, bad)
    assert cache.get(KEY) == PeakCache(tmp_path).get(KEY) == good


def test_a_disturbed_peak_that_was_kept_before_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = peak_key(ENVIRONMENT, "cpu", "fp32")
    busy = made_peak(1e11, device="cpu", busy_cores=20.0)
    with monkeypatch.context() as patch:
        patch.setattr(DevicePeak, "disturbance", "")
        PeakCache(tmp_path).put(key, busy)
    assert len(list(tmp_path.iterdir())) == 1
    assert PeakCache(tmp_path).get(key) is None
