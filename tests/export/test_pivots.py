"""Pivots, comparisons and reference points as tables."""

import re

import pytest

from cs336_tui.analysis.comparison import compare
from cs336_tui.analysis.merge import Result
from cs336_tui.analysis.pivot import VALUES, pivot
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import ReportFinished, ReportStarted
from cs336_tui.export.pivot import pivot_table
from cs336_tui.export.reference import reference_table, reference_tables
from cs336_tui.export.subjects.comparison import comparison_table
from cs336_tui.export.subjects.results import TableError
from cs336_tui.export.writing.files import FORMATS
from cs336_tui.export.writing.formats import render_all
from cs336_tui.export.writing.tables import Table
from tests.export.grids import LAPTOP, SMALL, by, grid, merged, usual_times
from tests.made_memory import a_memory_report
from tests.samples import START, a_spec, cell_end, cell_start, session_start, sized, state_of, steps
from tests.session.made import Cell, results_of

GRID = by(pass_=["forward", "train-step"])


def of(results: tuple[Result, ...], value: str = "mean", **more: object) -> Table:
    return pivot_table(pivot(results, ["size"], ["pass"], value, **more), results)


def test_means_with_std_by_size_and_pass() -> None:
    table = of(merged(grid(GRID)))
    assert [column.header for column in table.columns] == ["size", "forward", "train-step"]
    assert table.rows == (("small", "10.00 ± 0.12", "40.00 ± 0.46"), ("medium", "30.00 ± 0.35", "120.0 ± 1.4"))
    assert table.caption == "Mean step time ± std (ms), size by pass"
    assert len(table.records) == 4
    assert table.records[0] == {
        "size": "small", "pass": "forward", "mean_s": pytest.approx(0.01), "std_s": pytest.approx(0.0001155, rel=1e-3),
        "n": 4, "runs": 1, "note": None, "marks": "",
    }  # fmt: skip


def test_the_footnotes_say_what_a_reader_must_know() -> None:
    notes = "\n".join(of(merged(grid(GRID))).footnotes)
    for words in ("n: 4 measured steps", "context 128", "precision fp32", "sample standard deviation", "NVIDIA H100",
                  "as read back"):  # fmt: skip
        assert words in notes


@pytest.mark.parametrize("value", VALUES)
def test_every_value_has_a_table(value: str) -> None:
    baseline = {"pass": "forward"} if value == "speedup" else None
    table = of(merged(grid(GRID)), value, baseline=baseline)
    assert all(all(row) for row in table.rows)


def test_a_speedup_has_its_interval_and_says_over_what() -> None:
    cells = by([SMALL], pass_=["forward", "train-step"], precision=["fp32", "bf16-mixed"])
    results = merged(grid(cells, times=often))
    made = pivot(results, ["pass"], ["precision"], "speedup", {"precision": "fp32"})
    table = pivot_table(made, results)
    assert table.rows[0][1] == "1 (baseline)"
    assert re.fullmatch(r"2\.00\d* \[1\.9\d*, 2\.0\d*\]", table.rows[0][2])
    assert "over precision fp32" in table.caption


def test_a_cell_without_a_time_says_why() -> None:
    table = of(merged(grid(GRID, oom=[3])))
    assert table.rows[1] == ("medium", "30.00 ± 0.35", "OOM")
    assert table.records[3]["note"] == "OOM"
    assert table.records[3]["mean_s"] is None


def slower(spec: CellSpec) -> list[float]:
    return [2 * time_s for time_s in often(spec)]


def often(spec: CellSpec) -> list[float]:
    return usual_times(spec) * 3


def test_a_comparison_has_a_row_for_each_pair() -> None:
    one = merged(grid(GRID, session="one", times=often))
    other = merged(grid(GRID[:3], session="two", times=slower))
    table = comparison_table(compare(one, other))
    assert len(table.rows) == 3
    title, a, b, ratio, interval, verdict = table.rows[0]
    assert title.startswith("small · ctx 128 · forward · fp32 · cuda:0")
    assert (a, b, ratio, verdict) == ("10.00 ± 0.10", "20.00 ± 0.21", "0.5", "faster")
    assert interval.startswith("[0.49")
    assert "one" in table.caption
    assert "two" in table.caption
    assert any(note.startswith("only in A: medium") for note in table.footnotes)
    assert table.records[0]["verdict"] == "faster"
    assert comparison_table(compare(one, other), doubts=["small: throttled"]).footnotes[0] == "small: throttled"


def test_a_comparison_of_two_machines_says_what_differs() -> None:
    laptop = merged(grid(by([SMALL], device=["mps"]), session="laptop", environment=LAPTOP))
    table = comparison_table(compare(laptop, merged(grid(by([SMALL]), session="box"))))
    assert len(table.rows) == 1
    assert any("mps | cuda:0" in note for note in table.footnotes)


def test_published_times_stand_below_ones_own_with_what_differs() -> None:
    specs = by([SMALL], pass_=["forward"], context_length=[256], warmup_steps=[5], edition=["2025"])
    table = reference_table(merged(grid(specs)))
    own, published, *_ = table.rows
    assert own[:3] == ("small · forward · fp32 · ctx 256 · batch 4 · warm-up 5", "20.00", "0.23")
    assert published[0] == ""
    assert published[3] == "1.27", "20 ms here over 15.797 there"
    assert "write-up A" in published[5]
    assert "batch assumed" in published[6]
    assert table.records[0]["reference_mean_s"] == pytest.approx(0.0157969)
    assert any("not truth" in note for note in table.footnotes)


def test_a_caveat_is_always_said() -> None:
    specs = by([SMALL], pass_=["forward"], context_length=[64], warmup_steps=[5])
    rows = reference_table(merged(grid(specs))).rows
    assert len(rows) > 1
    assert all("64 here" in row[6] or "context unstated" in row[6] for row in rows[1:])


def test_nothing_to_set_beside_is_an_error() -> None:
    with pytest.raises(TableError, match="no cell has measured steps"):
        reference_table(merged(grid(by([SMALL]), oom=[0])))


def test_memory_of_the_whole_process_is_not_called_allocated() -> None:
    specs = by(pass_=["forward"], device=["cpu"])
    events = session_start(specs, environment=LAPTOP)
    for cell in range(len(specs)):
        events += [*cell_start(cell), *steps(cell, (), (0.1, 0.1)), cell_end(cell, peak_rss_bytes=900_000_000)]
    results = merged(state_of(events))
    table = pivot_table(pivot(results, ["size"], [], "memory"), results)
    assert table.caption == "Peak RSS of the whole process (GB), size"
    assert [row[1] for row in table.rows] == ["0.900", "0.900"]


def test_published_peaks_and_kernels_are_tables_of_their_own() -> None:
    big = a_spec(**sized("2.7B", "2025"), pass_="train-step", context_length=128)
    large = a_spec(**sized("large", "2025"), context_length=1024)
    tables = reference_tables(results_of(Cell(big, [0.3], peak=55_100_000_000), Cell(large, [0.3])))
    assert [table.label for table in tables] == ["reference", "reference-peaks", "reference-kernels"]
    peaks, kernels = tables[1:]
    whole = next(place for place, row in enumerate(peaks.rows) if row[1] == "peak")
    assert peaks.rows[whole][2] == "55.1"
    assert ("55.2", "1.00", "A800 80GB") in [row[2:5] for row in peaks.rows[whole:]], "published as 51.416 GiB"
    record = next(each for each in peaks.records if each["reference_peak"] == "46 GB")
    assert (record["part"], record["reference_peak_bytes"]) == ("forward", 46_000_000_000)
    assert record["reference_source"] == "write-up A (2025)"
    assert record["peak_bytes"] is record["seen"] is None, "nothing was recorded of the forward"
    assert next(each for each in peaks.records if each["part"] is None)["peak_bytes"] == 55_100_000_000
    (published,) = (row for row in kernels.rows if row[3] == "145")
    assert (published[4], published[7]) == ("46.8 %", "write-up A (2025)")
    record = next(each for each in kernels.records if each["reference_top_launches"] == 145)
    assert record["reference_top_share"] == pytest.approx(0.468)
    for format_ in FORMATS:
        assert any(figure in render_all(tables, format_) for figure in ("46.8", "0.468")), format_


def test_a_session_of_reports_alone_has_its_published_peaks() -> None:
    spec = a_spec(**sized("2.7B", "2025"), pass_="train-step", context_length=512)
    events = [
        ReportStarted(at=START, report=0, kind="memory", spec=spec),
        ReportFinished(at=START, report=0, status="ok", content=a_memory_report(spec=spec)),
    ]
    tables = reference_tables((), states=[state_of([*session_start([]), *events])], caption="mine")
    assert [table.label for table in tables] == ["reference-peaks"]
    assert tables[0].caption == "mine"
    own = next(row for row in tables[0].rows if row[1] == "peak in forward")
    assert own[-1] == "memory report"


def test_cells_for_which_nothing_is_published_have_times_alone() -> None:
    assert len(reference_tables(merged(grid(by([SMALL], context_length=[64]))))) == 1


def test_reference_records_tell_variants_and_automatic_warm_up() -> None:
    specs = [a_spec(attention=each, warmup_auto=True) for each in ("naive", "sdpa")]
    table = reference_table(merged(grid(specs)))
    assert list(dict.fromkeys(record["variants"] for record in table.records)) == ["", "sdpa"]
    assert {record["warmup"] for record in table.records} == {"auto:2"}
    assert "warm-up auto:2" in table.rows[0][0]
