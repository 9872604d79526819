"""Roofline and measured peaks, as tables and as a figure."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from cs336_tui.analysis.merge import merge
from cs336_tui.analysis.roofline import RooflinePoint, points
from cs336_tui.config.spec import Precision
from cs336_tui.events.events import CellsPredicted
from cs336_tui.events.peaks import peak_key
from cs336_tui.export.subjects.roofline import (
    MOST_POINTS,
    PeakRow,
    left_out,
    peak_table,
    roofline_figure,
    roofline_table,
)
from cs336_tui.export.writing.drawing import Absent, Drawing
from cs336_tui.export.writing.files import FORMATS
from cs336_tui.export.writing.formats import render
from cs336_tui.export.writing.tables import Table
from cs336_tui.stats.quantities import Rate
from tests.made_peaks import made_peak
from tests.made_predictions import made_prediction
from tests.samples import ENVIRONMENT, START, a_spec
from tests.session.made import Cell, session_of

CPU, GPU = ENVIRONMENT.devices
KEY = peak_key(ENVIRONMENT, "cuda:0", "fp32")
PEAKS = {KEY: made_peak(50e12, 2.5e12)}


def made(*cells: Cell, peaks: Any = PEAKS, flops: int = 10**12, bytes_moved: int = 10**9) -> tuple[RooflinePoint, ...]:
    state = session_of(*cells)
    predicted = [made_prediction(each.spec, flops={"forward": flops}, min_bytes_moved=bytes_moved) for each in cells]
    state.apply(CellsPredicted(at=START, predictions=tuple(predicted)))
    return points(merge([("one", state)]), peaks.get)


def column(table: Table, header: str) -> list[str]:
    place = [each.header for each in table.columns].index(header)
    return [row[place] for row in table.rows]


def test_a_row_a_cell_with_its_shares() -> None:
    table = roofline_table(made(Cell(a_spec(), [0.1]), Cell(a_spec(pass_="forward"), [0.05])))
    assert column(table, "cell") == [
        "small · context 128 · forward+backward · fp32",
        "small · context 128 · forward · fp32",
    ]
    assert column(table, "achieved (TFLOP/s)") == ["10", "20"]
    assert column(table, "% of data sheet") == ["14.9", "29.9"]
    assert column(table, "% of measured peak") == ["20", "40"]
    assert column(table, "intensity (FLOP/B)") == ["1000", "1000"]
    assert column(table, "bound") == ["compute", "compute"]
    assert not any(each.header.startswith("bandwidth") for each in table.columns)


def test_the_same_device_in_two_hosts_is_told_apart_by_the_host() -> None:
    other = msgspec.structs.replace(ENVIRONMENT, host="other-box")
    cells = (Cell(a_spec(), [0.1]), Cell(a_spec(), [0.1], repeat=2, on=other))
    assert column(roofline_table(made(*cells)), "device") == [
        "NVIDIA H100 80GB HBM3 · gpu-box", "NVIDIA H100 80GB HBM3 · other-box",
    ]  # fmt: skip
    assert column(roofline_table(made(cells[0])), "device") == ["NVIDIA H100 80GB HBM3"]


def test_bandwidth_is_shown_where_it_is_the_bound() -> None:
    table = roofline_table(made(Cell(a_spec(), [0.1]), flops=10**11, bytes_moved=10**11))
    assert column(table, "bound") == ["bandwidth"]
    assert column(table, "bandwidth (GB/s)") == ["≥ 1000"]
    assert column(table, "% of bandwidth") == ["≥ 40"]


def test_what_is_not_known_says_so_and_what_to_do() -> None:
    table = roofline_table(made(Cell(a_spec(device="cpu"), [0.1])))
    assert column(table, "% of data sheet") == ["unknown"]
    assert column(table, "% of measured peak") == ["not measured"]
    assert column(table, "bound") == ["n/a"]
    assert "not measured: run cs336-tui peak on the machine of these cells" in table.footnotes
    assert "Some CPU 9000 · gpu-box: data sheet: unknown" in table.footnotes
    (record,) = table.records
    assert record["share_of_sheet"] is record["share_of_measured"] is record["bound"] is None


def test_sources_of_both_ceilings_are_below() -> None:
    notes = roofline_table(made(Cell(a_spec(), [0.1]))).footnotes
    assert any("data sheet: NVIDIA H100 Tensor Core GPU Datasheet" in note for note in notes)
    assert any(
        "fp32: 50 TFLOP/s and 2500 GB/s, measured: matrix products of 4096, torch 2.13.0" in note for note in notes
    )
    assert not any(note.startswith("not measured") for note in notes)


def test_more_than_the_measured_peak_is_shown_and_explained() -> None:
    table = roofline_table(made(Cell(a_spec(), [0.01])))
    assert column(table, "% of measured peak") == ["200 (wrong peak)"]
    assert any("cs336-tui peak --refresh" in note for note in table.footnotes)


def test_more_than_the_data_sheet_is_doubted() -> None:
    notes = roofline_table(made(Cell(a_spec(), [0.01]), peaks={})).footnotes
    assert any(note.startswith("above 100 % of the data sheet: ") for note in notes)


def test_another_precision_than_asked_for_is_said() -> None:
    notes = roofline_table(made(Cell(a_spec(precision="tf32"), [0.1]))).footnotes
    assert "tf32 was asked for, fp32 was in force and is what the peaks are of" in notes


def test_records_are_in_base_units() -> None:
    (record,) = roofline_table(made(Cell(a_spec(), [0.1]))).records
    assert record["flops_per_s"] == pytest.approx(10e12)
    assert record["share_of_measured"] == pytest.approx(0.2)
    assert (record["flops"], record["min_bytes_moved"], record["bound"]) == (10**12, 10**9, "compute")
    assert (record["size"], record["precision_in_force"]) == ("small", "fp32")


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_takes_both_tables(format_: str) -> None:
    assert "compute" in render(roofline_table(made(Cell(a_spec(), [0.1]))), format_)
    assert "fp32" in render(peak_table([row()]), format_)


def texts(figure: Drawing | Absent) -> list[str]:
    assert isinstance(figure, Drawing), figure
    root = ElementTree.fromstring(figure.render("svg"))
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_the_figure_numbers_its_cells_and_names_its_ceilings() -> None:
    found = made(Cell(a_spec(), [0.1]), Cell(a_spec(pass_="forward"), [0.05]), Cell(a_spec(device="cpu"), [100.0]))
    said = texts(roofline_figure(found))
    for text in (
        "1: small · context 128 · forward+backward · fp32", "2: small · context 128 · forward · fp32",
        "NVIDIA H100 80GB HBM3 · gpu-box", "Some CPU 9000 · gpu-box", "data sheet",
        "measured peak (other processes on the device not observed)",
        "achieved (TFLOP/s)", "achieved (GFLOP/s)", "arithmetic intensity (FLOP/B), at most", "1", "2", "3",
    ):  # fmt: skip
        assert text in said


def lines_of(found: tuple[RooflinePoint, ...]) -> list[tuple[str, list[float], list[float]]]:
    """Style and points of every line of the figure's one panel that is a ceiling."""
    from matplotlib.figure import Figure

    drawing = roofline_figure(found)
    assert isinstance(drawing, Drawing)
    figure = Figure()
    drawing.draw(figure)
    (axis,) = figure.axes
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    lines = [line for line in axis.get_lines() if line.get_linestyle() != "None"]
    return [(line.get_linestyle(), [*line.get_xdata()], [*line.get_ydata()]) for line in lines]  # type: ignore[misc]


def test_both_ceilings_are_drawn_where_they_are() -> None:
    measured, sheet = lines_of(made(Cell(a_spec(), [0.1])))
    assert measured[0] == "-."
    assert measured[1][1] == pytest.approx(20)  # 50 TFLOP/s over 2.5 TB/s
    assert measured[2] == pytest.approx([measured[1][0] * 2.5, 50, 50])
    assert sheet[0] == "--"
    assert sheet[1][1] == pytest.approx(67 / 3.35)
    assert sheet[2] == pytest.approx([sheet[1][0] * 3.35, 67, 67])


def test_without_ceilings_the_points_are_still_drawn() -> None:
    found = made(Cell(a_spec(device="cpu"), [0.1]))
    assert lines_of(found) == []
    said = texts(roofline_figure(found))
    assert "1: small · context 128 · forward+backward · fp32" in said
    assert not any(text.startswith(("data sheet", "measured peak")) for text in said)


@pytest.mark.parametrize(
    ("busy", "style", "name"),
    [(1.5, "-.", "measured peak (may be too low: other processes used the cores)"), (0.0, "-", "measured peak")],
)
def test_a_peak_in_doubt_is_marked_and_only_what_is_drawn_is_in_the_legend(busy: float, style: str, name: str) -> None:
    peak = made_peak(device="cpu", device_name=CPU.label, allow_tf32=None, busy_cores=busy)
    found = made(Cell(a_spec(device="cpu"), [0.1]), peaks={peak_key(ENVIRONMENT, "cpu", "fp32", 32): peak})
    assert [line[0] for line in lines_of(found)] == [style]
    said = texts(roofline_figure(found))
    assert name in said
    assert "data sheet" not in said


def test_the_figure_is_the_same_each_time() -> None:
    figure = roofline_figure(made(Cell(a_spec(), [0.1])))
    assert isinstance(figure, Drawing)
    assert figure.render("png", dpi=50) == figure.render("png", dpi=50)


def test_many_cells_say_how_many_are_shown() -> None:
    cells = [Cell(a_spec(seed=seed), [0.1]) for seed in range(MOST_POINTS + 1)]
    assert f"Roofline (the first {MOST_POINTS} of {MOST_POINTS + 1} cells)" in texts(roofline_figure(made(*cells)))


def test_nothing_to_draw_says_why() -> None:
    figure = roofline_figure(())
    assert isinstance(figure, Absent)
    assert figure.reason == "no cell was measured"
    assert roofline_table(()).rows == ()


def row(precision: Precision = "fp32", **changes: Any) -> PeakRow:
    return PeakRow(**({"device": GPU, "precision": precision, "peak": made_peak(50e12, 2.5e12, precision)} | changes))


def test_peaks_stand_beside_the_data_sheet() -> None:
    table = peak_table([row(), row("bf16", peak=made_peak(800e12, precision="bf16"))])
    assert column(table, "matmul (TFLOP/s)") == ["50", "800"]
    assert column(table, "data sheet (TFLOP/s)") == ["67", "989.4"]
    assert column(table, "% of data sheet") == ["74.6", "80.9"]
    assert column(table, "size") == ["4096", "4096"]
    assert column(table, "copy (GB/s)") == ["2500", "2500"]
    assert column(table, "data sheet (GB/s)") == ["3350", "3350"]
    assert any("NVIDIA H100 Tensor Core GPU Datasheet" in note for note in table.footnotes)
    assert any("fp32: float32, float32 matmul precision highest, TF32 off" in note for note in table.footnotes)
    first = table.records[0]
    assert first["sizes"] == (1024.0, 4096.0)
    assert first["sizes_flops_per_s"] == pytest.approx((25e12, 50e12))
    assert first["matmul_flops_per_s"] == pytest.approx(50e12)


def test_a_device_in_no_table_has_an_unknown_sheet() -> None:
    table = peak_table([row(device=CPU, peak=made_peak(2e11, 7e10, device="cpu", allow_tf32=None))])
    assert column(table, "matmul (GFLOP/s)") == ["200"]
    assert column(table, "data sheet (GFLOP/s)") == ["unknown"]
    assert column(table, "% of data sheet") == ["unknown"]
    assert "cpu: data sheet: unknown" in table.footnotes
    assert any("32 threads" in note for note in table.footnotes)


def test_noise_that_had_not_settled_is_marked() -> None:
    peak = made_peak()
    noisy = msgspec.structs.replace(peak, copy=msgspec.structs.replace(peak.copy, spread=0.05))
    table = peak_table([row(peak=noisy)])
    assert column(table, "copy (GB/s)") == ["2500~"]
    assert column(table, "matmul (TFLOP/s)") == ["50"]
    assert any(note.startswith("~ noise had not settled") for note in table.footnotes)


def test_a_peak_measured_on_a_busy_machine_says_so() -> None:
    table = peak_table([row(device=CPU, peak=made_peak(device="cpu", busy_cores=1.5, note="made"))])
    assert any("cpu, fp32: other processes kept 1.5 cores busy" in note for note in table.footnotes)
    assert "cpu, fp32: made" in table.footnotes
    assert table.records[0]["busy_cores"] == 1.5


def test_what_could_not_be_measured_leaves_its_reason() -> None:
    table = peak_table([row(peak=None, error="out of memory")])
    assert column(table, "measured") == ["failed"]
    assert column(table, "% of data sheet") == ["n/a"]
    assert column(table, "matmul (TFLOP/s)") == ["n/a"]
    assert "cuda:0, fp32: out of memory" in table.footnotes
    assert table.records[0]["note"] == "out of memory"


def test_rates_have_the_unit_of_the_largest() -> None:
    assert Rate.for_all([3e9, 2e12]).show(3e9) == "0.003"
    assert Rate.for_all([3e9, None]).show(3e9) == "3"
    assert Rate.for_all([]).show(None) == "n/a"


def of_own_models(why: str = "") -> tuple[tuple[RooflinePoint, ...], tuple[str, ...]]:
    """The table and figure of a cell of the reference and of one of a model without prediction."""
    own = a_spec(model="mine:GPT", model_path=("/somewhere",))
    state = session_of(Cell(a_spec(), [0.1]), Cell(own, [0.1]))
    if why:
        state.apply(CellsPredicted(at=START, failed=(own,), why=why))
    results = merge([("one", state)])
    return points(results, {}.get), left_out(results)


def test_what_has_no_place_because_its_flops_are_unknown_is_said_with_why() -> None:
    found, absent = of_own_models("model.py:64 in forward: it asks")
    assert absent == ("left out: FLOPs of GPT unknown: model.py:64 in forward: it asks",)
    table = roofline_table(found, left_out=absent)
    assert len(table.rows) == 1
    assert table.footnotes[0] == absent[0]
    assert absent[0] in texts(roofline_figure(found, absent))
    figure = roofline_figure((), absent)
    assert isinstance(figure, Absent)
    assert figure.reason == absent[0]
    assert of_own_models()[1] == ("left out: FLOPs of GPT unknown: no prediction of it in this session",)
    assert roofline_table((), left_out=absent).footnotes == absent


def test_rows_say_model_and_variants_where_they_are_not_as_usual() -> None:
    own = a_spec(model="mine:GPT", model_path=("/somewhere",))
    assert column(roofline_table(made(Cell(own, [0.1]))), "cell") == [
        "small · context 128 · forward+backward · fp32 · model mine:GPT"
    ]
    fused = a_spec(attention="sdpa", compile="default")
    assert column(roofline_table(made(Cell(fused, [0.1]))), "cell") == [
        "small · context 128 · forward+backward · fp32 · attention sdpa · compile default"
    ]


def test_records_of_variants_and_repeats_are_told_apart() -> None:
    cells = [
        Cell(a_spec(attention=each, warmup_steps=warmup), [0.1]) for each in ("naive", "sdpa") for warmup in (0, 2)
    ]
    records = roofline_table(made(*cells)).records
    assert [(record["variants"], record["warmup"]) for record in records] == [
        ("", 0),
        ("", 2),
        ("sdpa", 0),
        ("sdpa", 2),
    ]
    assert {record["repeat"] for record in records} == {1}


def test_long_names_are_wrapped_below_the_figure_and_what_all_cells_are_is_in_its_title() -> None:
    own = [
        a_spec(model=f"a_module_of_ones_own.models.transformer:A_Long_Name{each}", model_path=("/x",)) for each in "AB"
    ]
    state = session_of(*(Cell(spec, [0.1]) for spec in own))
    state.apply(CellsPredicted(at=START, predictions=tuple(map(made_prediction, own))))
    found = texts(roofline_figure(points(merge([("one", state)]), {}.get)))
    assert max(map(len, found)) <= 100
    assert "every cell: batch 4" in found
