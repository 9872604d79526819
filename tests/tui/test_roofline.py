"""The Roofline tab: drawing, table, measuring a peak; a session of collectives: its columns, its curve of busbw."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from cs336_tui.analysis.published import published
from cs336_tui.analysis.roofline import Ceiling, Curve, Point
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.peaks import PeakCache, PeakError, peak_key
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.charts.roofline import CellPoint, Roof, bandwidth_lines, roofline_chart
from cs336_tui.tui.tabs.cell_detail import cell_detail
from cs336_tui.tui.tabs.kernels import KernelsPane
from cs336_tui.tui.tabs.live import live_lines
from cs336_tui.tui.tabs.memory import MemoryPane
from cs336_tui.tui.tabs.precision import PrecisionPane
from cs336_tui.tui.tabs.report import ReportPane, Subject
from cs336_tui.tui.tabs.roofline import RooflinePane, chart_lines, doubts, roofline_of
from cs336_tui.tui.widgets.columns import Laid
from cs336_tui.tui.widgets.lines import Line
from cs336_tui.tui.widgets.rows import Rows
from tests.made_peaks import made_peak
from tests.samples import ENVIRONMENT, a_spec
from tests.session.made import Cell, events_of, results_of, session_of
from tests.tui.one_pane import showing
from tests.tui.watched import SMALL, WIDE, Benches, absent, on_screen, press, replaying, text, until

UNIT = ("TFLOP/s", 1e12)
CEILING = Ceiling(flops_per_s=50e12, bytes_per_s=2.5e12, source="made")  # ridge at 20 FLOP/B
CELLS = (
    Cell(a_spec(), [0.1] * 12),
    Cell(a_spec(precision="bf16-mixed"), [0.05] * 12),
    Cell(a_spec(pass_="forward"), [0.04] * 12),
)


def rows(lines: Sequence[Line]) -> list[str]:
    return ["".join(span.text for span in spans) for spans in lines]


def roof(ceiling: Ceiling = CEILING, role: str = "measured", *, dashed: bool = False) -> Roof:
    return Roof(ceiling.attainable, ceiling.ridge, role, dashed)


def chart(*marks: CellPoint, roofs: Sequence[Roof] = (roof(),), width: int = 80, height: int = 16) -> list[str]:
    return rows(roofline_chart(roofs, marks, width=width, height=height, unit=UNIT))


def is_braille(char: str) -> bool:
    return 0x2800 < ord(char) <= 0x28FF


def test_a_point_lies_below_its_ceiling_and_right_of_the_ridge_where_compute_bounds() -> None:
    shown = chart(CellPoint(200.0, 20e12, 7))
    (row,) = [number for number, text in enumerate(shown) if "●7" in text]
    column = shown[row].index("●")
    roofs = [number for number, text in enumerate(shown) if len(text) > column and is_braille(text[column])]
    assert roofs
    assert max(roofs) < row
    flat = [number for number, text in enumerate(shown) if is_braille(text[-1])]
    sloped = [number for number, text in enumerate(shown) if any(map(is_braille, text[:25]))]
    assert max(sloped) > max(flat)  # left of the ridge it comes down


def test_axes_have_units_and_powers_of_ten() -> None:
    shown = chart(CellPoint(1.0, 1e11, 1), CellPoint(1000.0, 40e12, 2))
    assert shown[0].strip().startswith("TFLOP/s")
    assert [text.split()[0] for text in shown if "┤" in text] == ["10", "1", "0.1"]
    assert shown[-1].split() == ["1", "10", "100", "1000", "FLOP/B"]
    assert len({len(text) for text in shown}) == 1


def test_the_solid_ceiling_is_unbroken_and_the_dashed_one_is_not() -> None:
    solid = roofline_chart([roof()], [CellPoint(1000.0, 1e12, 1)], width=80, height=16, unit=UNIT)
    dashed = roofline_chart([roof(dashed=True)], [CellPoint(1000.0, 1e12, 1)], width=80, height=16, unit=UNIT)

    def columns(lines: Sequence[Line]) -> set[int]:
        return {at for text in rows(lines) for at, char in enumerate(text) if is_braille(char)}

    assert columns(solid) == set(range(10, 80))
    assert 30 < len(columns(dashed)) < 70


def test_cells_in_one_place_share_a_point_and_the_chosen_one_is_never_hidden() -> None:
    shown = "\n".join(chart(CellPoint(100.0, 10e12, 1), CellPoint(100.0, 10e12, 2), CellPoint(100.1, 10e12, 3)))
    assert "●1,2,3" in shown
    many = [CellPoint(100.0, 10e12, number) for number in range(1, 60)]
    crowded = "\n".join(chart(*many, width=40))
    assert "59…" in crowded
    beside = "\n".join(chart(*(CellPoint(100.0 * 1.02**number, 10e12, number) for number in range(30))))
    assert "29" in beside
    assert any("●1" in text for text in chart(CellPoint(10.0, 1e9, 1), roofs=())), "one cell without any ceiling"


def test_it_fits_any_room() -> None:
    both = (roof(), roof(Ceiling(flops_per_s=None, bytes_per_s=1e12, source="half"), dashed=True))
    for roofs, width, height in product(((), both), (1, 20, 30, 80, 200), range(0, 30, 3)):
        shown = chart(CellPoint(1.0, 1e9, 1), CellPoint(50.0, 60e12, 2), roofs=roofs, width=width, height=height)
        assert len(shown) in (0, height)
        assert all(len(text) == width for text in shown)


def app_of(folder: Path, *, measured: bool = True) -> Cs336App:
    peaks = PeakCache(folder / "peaks")
    if measured:
        peaks.put(peak_key(ENVIRONMENT, "cuda:0", "fp32", 32), made_peak(50e12))
    return replaying(events_of(*CELLS), folder, peaks=peaks)


@pytest.mark.parametrize("width", [57, 80, 100])
def test_rows_are_told_apart_by_what_cells_do_not_share(width: int) -> None:
    roofline = roofline_of(session_of(*CELLS), lambda _: None, None)
    laid = Laid(roofline.sheet, width)
    names = [text.split()[-3:] for text in rows(laid.lines(0, 3))]
    assert names == [
        ["forward+backward", "·", "fp32"],
        ["forward+backward", "·", "bf16-mixed"],
        ["forward", "·", "fp32"],
    ]
    assert "all cells: small · ctx " in " ".join(rows(laid.lines(0, len(laid))))
    if width == 57:
        assert "% peak" not in rows([laid.heading])[0]  # nothing but dashes
        assert "% sheet" in rows([laid.heading])[0]


def test_a_doubted_peak_of_a_cpu_is_said_above_the_drawing_with_what_to_press() -> None:
    state = session_of(Cell(a_spec(device="cpu"), [0.1] * 12))
    busy = made_peak(1e11, 2e10, device="cpu", busy_cores=1.0)
    roofline = roofline_of(state, lambda _: busy, ENVIRONMENT)
    said = " ".join(rows(doubts(roofline, 0, can_measure=True, width=200)))
    assert "other processes kept 1.0 core busy meanwhile" in said
    assert "n measures it again when the machine is idle" in said
    assert "n measures" not in " ".join(rows(doubts(roofline, 0, can_measure=False, width=200)))
    assert "measured 100~ GFLOP/s" in " ".join(rows(chart_lines(roofline, 0, 120, 20)))
    assert "--refresh" not in " ".join(roofline.sheet.table.footnotes)
    quiet = roofline_of(state, lambda _: made_peak(1e13, 2e10, device="cpu", busy_cores=0.1), ENVIRONMENT)
    assert doubts(quiet, 0, can_measure=True, width=200) == []
    assert "~" not in " ".join(rows(chart_lines(quiet, 0, 120, 20)))
    gpu = roofline_of(session_of(CELLS[0]), lambda _: made_peak(50e12), ENVIRONMENT)
    assert doubts(gpu, 0, can_measure=True, width=200) == []
    assert any("other processes and throttling were not observed" in note for note in gpu.sheet.table.footnotes)


async def test_the_cursor_chooses_the_ceilings_and_the_cell_of_every_pane_and_follows_it(tmp_path: Path) -> None:
    async with on_screen(app_of(tmp_path), "at its end") as (app, pilot):
        assert not app.query(RooflinePane), "it is made when it is first opened"
        shown = await press(pilot, "l", seen="% peak")
        assert "╌╌ data sheet 67 TFLOP/s, 3350 GB/s" in shown
        await press(pilot, "home", "asterisk", seen="cell 1/3")
        await press(pilot, "down", seen=lambda shown: "HBM3 · bf16-mixed" in shown or "HBM3 · fp32" in shown)
        await until(pilot, "cell 2/3")
        await press(pilot, "enter", seen="Measured steps, ms")
        await press(pilot, "escape", "c", seen=lambda _: "| cell" in app.clipboard)
        assert "% of measured peak" in app.clipboard
        assert app.clipboard.count("small · ") >= 3, "the whole table"
        await press(pilot, "4", "end", seen="cell 3/3")
        app.main.open("roofline")
        app.main.set_focus(None)
        await until(pilot, lambda _: app.query_one("#roofline-rows", Rows).cursor == 2)


async def test_a_session_that_cannot_measure_says_where_to(tmp_path: Path) -> None:
    async with on_screen(app_of(tmp_path, measured=False), "at its end", size=SMALL) as (_, pilot):
        assert "n Measure" not in await press(pilot, "l", seen="run cs336-tui peak on the machine of these cells")


async def test_without_cells_it_says_what_to_do() -> None:
    async with on_screen(Cs336App(Benches()), "NVIDIA", size=SMALL) as (_, pilot):
        await press(pilot, "l", seen="No cell has been measured yet.")
        await until(pilot, "Choose cells in Configure (1) and press r")


async def test_a_peak_is_measured_kept_and_drawn_or_it_says_why_not(tmp_path: Path) -> None:
    benches = Benches()
    async with on_screen(Cs336App(benches, peaks=PeakCache(tmp_path)), "NVIDIA H100 80GB HBM3") as (app, pilot):
        benches.made[0].peak = PeakError("out of memory")
        await press(pilot, "r", seen="▶ running")
        for _ in range(3):
            benches.finish_one()
        await until(pilot, lambda shown: shown.count("✓ ok") >= 3 and "r Run" in shown)
        await press(pilot, "l", seen="Press n to measure this device's peak: cuda:0 fp32")
        await press(pilot, "n", seen="measuring cuda:0 fp32 ...")
        assert "s Stop" in await until(pilot, "s Stop")
        await pilot.press("n")  # once is enough
        benches.go_on.set()
        await until(pilot, "! cuda:0 fp32: out of memory")
        await until(pilot, lambda _: not app.run_in_progress)
        benches.made[0].peak = made_peak(50e12)
        await press(pilot, "n", seen="── measured 50 TFLOP/s")
        assert benches.peaks_measured == [("cuda:0", "fp32")] * 2
        assert not app.run_in_progress
        key = peak_key(ENVIRONMENT, "cuda:0", "fp32", 32)
        assert PeakCache(tmp_path).get(key) == made_peak(50e12)


@pytest.mark.parametrize("passes", [("forward",), ("forward", "train-step")])
def test_what_all_cells_have_that_is_not_as_usual_is_named(passes: tuple[str, ...]) -> None:
    cells = [Cell(a_spec(pass_=pass_, compile="default", checkpoint=2), [0.1] * 12) for pass_ in passes]
    sheet = roofline_of(session_of(*cells), lambda _: None, None).sheet
    named = " ".join([*sheet.table.texts("cell"), *sheet.table.footnotes[:1]])
    assert not absent(named, "compile default", "checkpoint 2")


TIMES_S = {"1MB": 0.001, "10MB": 0.004, "100MB": 0.02}
OTHERS = ("pass", "tokens/s", "FLOP/s", "ctx", "batch")


def specs(**choices: object) -> tuple[CellSpec, ...]:
    several = {"sizes": tuple(TIMES_S), "ranks": (2, 4), "devices": ("cpu",)}
    return sweep_from(**{"workload": "collective"} | several | choices).cells()


def cells(**choices: object) -> tuple[Cell, ...]:
    return tuple(Cell(spec, [TIMES_S[spec.size] * spec.ranks / 2] * 12) for spec in specs(**choices))


async def curve_after(key: str, folder: Path, size: tuple[int, int]) -> str:
    """The screen once it shows the curve of busbw, after a key in a replayed session of collectives."""
    async with on_screen(replaying(events_of(*cells()), folder), size=size) as (_, pilot):
        return await press(pilot, key, seen="busbw of all-reduce")


async def test_results_have_the_columns_of_collectives_and_the_curve_below(tmp_path: Path) -> None:
    shown = await curve_after("4", tmp_path, SMALL)
    heading = next(row for row in shown.splitlines() if " operation " in row)
    assert not absent(heading, "size", "ranks", "mean ms", "busbw", "verdict")
    assert not any(title in heading for title in OTHERS)
    # 100 MB in 20 ms over 2 ranks are 5 GB/s; over 4 in 40 ms 2.5 GB/s x 6/4
    rows = [row.split() for row in shown.splitlines() if " 100MB " in row and "all-reduce" in row]
    assert [("5" in row, "3.75" in row) for row in rows] == [(True, False), (False, True)]
    assert not absent(shown, "●4", "GB/s")


async def test_the_roofline_of_collectives_is_their_curve(tmp_path: Path) -> None:
    assert "100MB" in await curve_after("l", tmp_path, WIDE)


def test_curves_are_of_the_chosen_operation_and_higher_where_faster() -> None:
    results = results_of(*cells(collectives=("all-reduce", "broadcast")))
    chosen = next(spec for spec in specs() if spec.ranks == 4)
    heading, *rows = text(bandwidth_lines(results, chosen, (), 70, 14)).splitlines()
    assert "busbw of all-reduce" in heading
    marked = [row.index("●") for row in rows if "●" in row]
    assert len(marked) >= 3
    assert marked == sorted(marked, reverse=True)  # the smaller the size, the lower it is
    assert "1MB" in rows[-1]


def test_published_curves_stand_beside_ones_own_and_those_that_differ_in_more_than_ranks_are_named() -> None:
    (chosen, *_) = specs()
    shown = text(bandwidth_lines(results_of(*cells()), chosen, published(), 100, 16))
    assert "○ published on CPU of a machine with H100s" in shown
    assert "PCIe" not in shown
    assert "published" not in text(bandwidth_lines(results_of(*cells()), chosen, (), 100, 16))
    several = (*cells(), *cells(precisions=("bf16",)))
    shown = text(bandwidth_lines(results_of(*several), several[0].spec, (), 100, 16))
    assert "bf16" in shown.splitlines()[0] + shown.splitlines()[1]


@pytest.mark.parametrize("size", [(10, 3), (70, 4), (23, 20)])
def test_without_room_or_two_sizes_there_is_no_curve(size: tuple[int, int]) -> None:
    chosen = specs()[0]
    assert bandwidth_lines(results_of(*cells()), chosen, (), *size) == []
    assert bandwidth_lines(results_of(*cells(sizes=("1MB",))), chosen, (), 70, 14) == []
    assert bandwidth_lines((), chosen, (), 70, 14) == []


def test_live_and_details_speak_of_messages_alone() -> None:
    state = session_of(Cell(specs()[0], [0.001] * 12))
    (cell,) = state.cells.values()
    shown = text(live_lines(state, cell, 60, 30)) + text(cell_detail(state, cell, 80))
    assert "algbw 1, busbw 1 GB/s" in shown
    for word in ("forward", "tokens", "parameters", "context", "Mean of each phase"):
        assert word not in shown


@pytest.mark.parametrize("pane", [KernelsPane, MemoryPane, PrecisionPane])
async def test_reports_of_a_collective_are_not_offered(pane: type[ReportPane]) -> None:
    state = session_of(*cells())
    async with showing(pane(), Subject(state, state.cells[0].spec, 0, can_ask=True)) as (_, shown, _app):
        assert "A collective has no model" in shown.text
        assert "Press n" not in shown.text


async def test_a_message_without_room_is_told_and_not_tried_again() -> None:
    spec = specs()[0]
    async with showing(MemoryPane(), Subject(session_of(Cell(spec, status="oom")), spec, 0)) as (_, pane, _app):
        assert "Cells of several ranks are not run again" in " ".join(pane.text.split())


def test_points_between_two_sizes_lie_on_a_line() -> None:
    from cs336_tui.tui.charts.roofline import _between

    curve = Curve("", specs()[0], (Point("1MB", 10**6, 1e9), Point("100MB", 10**8, 4e9)))
    assert _between(curve.points, 1e7) == pytest.approx(2e9)
    assert _between(curve.points, 9e5) == _between(curve.points, 2e8) == 0
