"""Pivots, comparisons and reference points as tables."""

import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.comparison import compare
from cs336_tui.analysis.merge import Result
from cs336_tui.analysis.pivot import VALUES, pivot
from cs336_tui.config.spec import CellSpec
from cs336_tui.export.pivot import pivot_table
from cs336_tui.export.reference import reference_table, reference_tables
from cs336_tui.export.subjects.comparison import comparison_table
from cs336_tui.export.subjects.results import TableError
from cs336_tui.export.writing.tables import Table
from tests.export.grids import SMALL, by, grid, merged, usual_times
from tests.export.keeping import kept
from tests.made_memory import a_memory_report
from tests.samples import LAPTOP, a_spec, report_events, session_start, sized, state_of
from tests.session.made import Cell, results_of

GRID = by(pass_=["forward", "train-step"])


def of(results: tuple[Result, ...], value: str = "mean", **more: object) -> Table:
    return pivot_table(pivot(results, ["size"], ["pass"], value, **more), results)


def test_means_with_std_by_size_and_pass_and_why_a_cell_has_no_time(snapshot: SnapshotAssertion) -> None:
    lost = of(merged(grid(GRID, oom=[3])))
    assert (lost.records[3]["note"], lost.records[3]["mean_s"]) == ("OOM", None)
    assert kept(of(merged(grid(GRID))), lost) == snapshot


@pytest.mark.parametrize("value", VALUES)
def test_every_value_has_a_table(value: str) -> None:
    baseline = {"pass": "forward"} if value == "speedup" else None
    table = of(merged(grid(GRID)), value, baseline=baseline)
    assert all(all(row) for row in table.rows)


def test_a_speedup_has_its_interval_and_memory_of_the_whole_process_its_name(snapshot: SnapshotAssertion) -> None:
    cells = by([SMALL], pass_=["forward", "train-step"], precision=["fp32", "bf16-mixed"])
    results = merged(grid(cells, times=often))
    speedups = pivot_table(pivot(results, ["pass"], ["precision"], "speedup", {"precision": "fp32"}), results)
    on_cpu = {"environment": LAPTOP, "times": lambda _: [0.1, 0.1], "ends": lambda _: {"peak_rss_bytes": 900_000_000}}
    results = merged(grid(by(pass_=["forward"], device=["cpu"]), **on_cpu))
    assert kept(speedups, pivot_table(pivot(results, ["size"], [], "memory"), results)) == snapshot


def slower(spec: CellSpec) -> list[float]:
    return [2 * time_s for time_s in often(spec)]


def often(spec: CellSpec) -> list[float]:
    return usual_times(spec) * 3


def test_a_comparison_has_a_row_for_each_pair_and_says_what_differs(snapshot: SnapshotAssertion) -> None:
    one = merged(grid(GRID, session="one", times=often))
    other = merged(grid(GRID[:3], session="two", times=slower))
    laptop = merged(grid(by([SMALL], device=["mps"]), session="laptop", environment=LAPTOP))
    machines = comparison_table(compare(laptop, merged(grid(by([SMALL]), session="box"))))
    assert kept(comparison_table(compare(one, other), doubts=["small: throttled"]), machines) == snapshot


def test_published_times_stand_below_ones_own_with_what_differs(snapshot: SnapshotAssertion) -> None:
    """20 ms here are 1.27 times 15.797 ms there; variants and an automatic warm-up are in the records."""
    specs = by([SMALL], pass_=["forward"], context_length=[256], warmup_steps=[5], edition=["2025"])
    table = reference_table(merged(grid(specs)))
    variants = reference_table(merged(grid([a_spec(attention=each, warmup_auto=True) for each in ("naive", "sdpa")])))
    assert list(dict.fromkeys(record["variants"] for record in variants.records)) == ["", "sdpa"]
    assert {record["warmup"] for record in variants.records} == {"auto:2"}
    assert kept(table) == snapshot


def test_a_caveat_is_always_said() -> None:
    specs = by([SMALL], pass_=["forward"], context_length=[64], warmup_steps=[5])
    rows = reference_table(merged(grid(specs))).rows
    assert len(rows) > 1
    assert all("64 here" in row[6] or "context unstated" in row[6] for row in rows[1:])


def test_nothing_to_set_beside_is_an_error() -> None:
    with pytest.raises(TableError, match="no cell has measured steps"):
        reference_table(merged(grid(by([SMALL]), oom=[0])))


def test_published_peaks_and_kernels_are_tables_of_their_own(snapshot: SnapshotAssertion) -> None:
    """A peak that was published as 51.416 GiB is 55.2 GB; of the forward nothing was recorded."""
    big = a_spec(**sized("2.7B", "2025"), pass_="train-step", context_length=128)
    large = a_spec(**sized("large", "2025"), context_length=1024)
    _, peaks, kernels = reference_tables(results_of(Cell(big, [0.3], peak=55_100_000_000), Cell(large, [0.3])))
    record = next(each for each in peaks.records if each["reference_peak"] == "46 GB")
    assert (record["part"], record["reference_peak_bytes"]) == ("forward", 46_000_000_000)
    assert record["peak_bytes"] is record["seen"] is None
    assert next(each for each in peaks.records if each["part"] is None)["peak_bytes"] == 55_100_000_000
    record = next(each for each in kernels.records if each["reference_top_launches"] == 145)
    assert record["reference_top_share"] == pytest.approx(0.468)
    assert kept(peaks, kernels) == snapshot


def test_a_session_of_reports_alone_has_its_published_peaks(snapshot: SnapshotAssertion) -> None:
    spec = a_spec(**sized("2.7B", "2025"), pass_="train-step", context_length=512)
    state = state_of([*session_start([]), *report_events(a_memory_report(spec=spec))])
    assert kept(*reference_tables((), states=[state], caption="mine")) == snapshot


def test_cells_for_which_nothing_is_published_have_times_alone() -> None:
    assert len(reference_tables(merged(grid(by([SMALL], context_length=[64]))))) == 1
