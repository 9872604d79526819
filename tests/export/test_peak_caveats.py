"""Caveats of a measured peak stand wherever a share of that peak is shown."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from cs336_tui.analysis.roofline import points
from cs336_tui.events.peaks import DevicePeak, PeakCache, peak_key
from cs336_tui.export.record import to_csv, to_json
from cs336_tui.export.subjects.results import results_of, results_table
from cs336_tui.export.subjects.roofline import PeakRow, peak_table, roofline_table
from cs336_tui.export.summary import summary_markdown
from cs336_tui.export.writing.files import FORMATS
from cs336_tui.export.writing.formats import render
from cs336_tui.session.state import SessionState
from cs336_tui.tui.judging import assess
from cs336_tui.tui.tabs.live import live_lines
from tests.made_peaks import made_peak
from tests.samples import ENVIRONMENT, a_spec
from tests.session.made import Cell, session_of
from tests.tui.watched import text

(CPU,) = (device for device in ENVIRONMENT.devices if device.name == "cpu")


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
    (run,) = json.loads(to_json(state))["runs"]
    (row,) = csv.DictReader(io.StringIO(to_csv(state)))
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
    assert wrong.measured is not None
    assert wrong.measured.is_wrong
    assert wrong.ceiling is wrong.sheet
    (just,) = points(results_of(session_of(Cell(a_spec(), [0.1] * 5))), lambda _: made_peak(wrong.flops_per_s / 1.04))
    assert just.measured is not None
    assert not just.measured.is_wrong


DISTURBED = {
    "other processes kept 7.5 cores busy": {"device": "cpu", "threads": 8, "busy_cores": 7.5},
    "processes of others on the GPU: 2": {"others": 2},
    "measured twice, it came out 30 % lower once": {"disagreement": 0.3},
}


@pytest.mark.parametrize("why", DISTURBED)
def test_a_peak_that_was_disturbed_is_kept_neither_in_memory_nor_on_disk(tmp_path: Path, why: str) -> None:
    key = peak_key(ENVIRONMENT, "cuda:0", "fp32")
    good, cache = made_peak(disagreement=0.02, others=0), PeakCache(tmp_path)
    bad = made_peak(10e12, **DISTURBED[why])
    assert why in bad.disturbance
    cache.put(key, bad)
    assert cache.get(key) is None
    assert PeakCache(tmp_path).get(key) is None
    cache.put(key, good)
    cache.put(key, bad)
    assert cache.get(key) == PeakCache(tmp_path).get(key) == good


def test_a_disturbed_peak_that_was_kept_before_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = peak_key(ENVIRONMENT, "cpu", "fp32")
    busy = made_peak(1e11, device="cpu", busy_cores=20.0)
    with monkeypatch.context() as patch:
        patch.setattr(DevicePeak, "disturbance", "")
        PeakCache(tmp_path).put(key, busy)
    assert len(list(tmp_path.iterdir())) == 1
    assert PeakCache(tmp_path).get(key) is None


def test_the_peaks_table_says_why_a_peak_was_not_kept() -> None:
    _, peak = on_cpu(20.0)
    table = peak_table([PeakRow(device=CPU, precision="fp32", peak=peak)])
    assert any("not kept: other processes kept 20.0 cores busy meanwhile" in note for note in table.footnotes)
    assert table.records[0]["kept"] is False
