"""Achieved rates of one cell against its ceilings."""

from __future__ import annotations

import pytest

from cs336_tui.analysis.roofline import RooflinePoint, point_of, work_of
from cs336_tui.config.flops import step_flops
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.peaks import DevicePeak, PeakKey, peak_key
from tests.made_peaks import made_peak
from tests.samples import ENVIRONMENT, a_spec
from tests.session.made import Cell, results_of

PEAKS = {peak_key(ENVIRONMENT, "cuda:0", "fp32"): made_peak(50e12, 2.5e12)}


def limit(spec: CellSpec, peaks: dict[PeakKey, DevicePeak] | None = None) -> RooflinePoint:
    (result,) = results_of(Cell(spec, [0.1, 0.1]))
    found = point_of(result, (peaks or {}).get)
    assert found
    work = work_of(result)
    assert work
    assert found.flops == work.flops
    return found


def test_a_cell_of_a_session_without_predictions_has_its_shares() -> None:
    spec = a_spec()
    found = limit(spec, PEAKS)
    assert found.flops == step_flops(spec)
    assert found.flops_per_s == pytest.approx(step_flops(spec) / 0.1)
    assert found.share_of_sheet == pytest.approx(step_flops(spec) / 0.1 / 67e12)
    assert found.share_of_measured == pytest.approx(step_flops(spec) / 0.1 / 50e12)
    assert (found.bound, found.share_of_bandwidth) == ("compute", None)


def test_bandwidth_is_a_share_where_it_is_the_bound() -> None:
    found = limit(a_spec(batch_size=1, context_length=1, pass_="forward"), PEAKS)
    assert found.bound == "bandwidth"
    assert found.bytes_per_s
    assert found.share_of_bandwidth == pytest.approx(found.bytes_per_s / 2.5e12)


def test_no_ceiling_is_guessed() -> None:
    found = limit(a_spec(device="cpu"))
    assert found.flops_per_s
    assert (found.sheet, found.measured, found.share_of_sheet, found.share_of_measured, found.bound) == (None,) * 5


def test_a_cell_without_timings_achieved_nothing_that_is_known() -> None:
    spec = a_spec()
    (result,) = results_of(Cell(spec, [], status="oom"))
    work = work_of(result)
    assert point_of(result, PEAKS.get) is None
    assert work
    assert work.flops == step_flops(spec)
