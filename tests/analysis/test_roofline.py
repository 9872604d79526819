"""Roofline: achieved rates of cells against their ceilings, with numbers that can be checked by hand."""

from typing import Any

import msgspec
import pytest

from cs336_tui.analysis.merge import merge
from cs336_tui.analysis.roofline import (
    Ceiling,
    RooflinePoint,
    doubt,
    measured_ceiling,
    point_of,
    points,
    precision_in_force,
    work_of,
)
from cs336_tui.config.flops import least_bytes, step_flops
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import CellsPredicted, EffectiveSettings, ModelBuilt
from cs336_tui.events.peaks import DevicePeak, PeakKey, peak_key
from cs336_tui.session.state import SessionState
from tests.made_peaks import made_peak
from tests.made_predictions import made_prediction
from tests.samples import ENVIRONMENT, START, a_spec
from tests.session.made import OLD_LAPTOP, Cell, results_of, session_of

KEY = peak_key(ENVIRONMENT, "cuda:0", "fp32")


def predicted(*cells: Cell, flops: int = 10**12, bytes_moved: int = 10**9, **more: Any) -> SessionState:
    """A session of these cells, each predicted to need so much."""
    state = session_of(*cells, **more)
    made = [made_prediction(each.spec, flops={"forward": flops}, min_bytes_moved=bytes_moved) for each in cells]
    state.apply(CellsPredicted(at=START, predictions=tuple(made)))
    return state


def found(state: SessionState, peaks: dict[PeakKey, DevicePeak] | None = None) -> tuple[RooflinePoint, ...]:
    return points(merge([("one", state)]), (peaks or {}).get)


def point(spec: CellSpec | None = None, peaks: dict[PeakKey, DevicePeak] | None = None, **more: Any) -> RooflinePoint:
    """The roofline point of one cell with steps of 0.1 s."""
    (only,) = found(predicted(Cell(spec or a_spec(), [0.1, 0.1]), **more), peaks)
    return only


def in_force(state: SessionState, cell: int = 0, **settings: Any) -> SessionState:
    """The session with these settings read back of one cell."""
    read = EffectiveSettings(**({"matmul_precision": "highest", "allow_tf32": False, "threads": 32} | settings))
    state.apply(ModelBuilt(at=START, cell=cell, num_params=1, num_params_without_head=1, in_force=read))
    return state


def test_achieved_rates_are_what_a_step_needs_over_its_mean_time() -> None:
    (only,) = found(predicted(Cell(a_spec(), [0.08, 0.12], warmup_s=[5.0]), flops=2 * 10**12, bytes_moved=4 * 10**9))
    assert only.step_s == pytest.approx(0.1)
    assert only.flops_per_s == pytest.approx(20e12)
    assert only.bytes_per_s == pytest.approx(40e9)
    assert only.intensity == pytest.approx(500)


def test_only_timed_phases_count() -> None:
    cell = Cell(a_spec(pass_="backward"), [0.1])
    state, made = session_of(cell), made_prediction(cell.spec)
    assert tuple(made.flops) == ("backward",)
    state.apply(CellsPredicted(at=START, predictions=(made,)))
    (only,) = found(state)
    assert only.flops == made.flops["backward"] < sum(map(sum, made.flops_by_range.values()))


def test_shares_of_both_ceilings() -> None:
    only = point(peaks={KEY: made_peak(50e12)})
    assert only.sheet.flops_per_s == 67e12  # H100 SXM, fp32 without tensor cores
    assert "Datasheet" in only.sheet.source
    assert only.share_of_sheet == pytest.approx(10 / 67)
    assert only.share_of_measured == pytest.approx(10 / 50)


def test_each_precision_has_ceilings_of_its_own() -> None:
    spec = a_spec(precision="bf16-mixed")
    state = in_force(predicted(Cell(spec, [0.1])), autocast_dtype="bfloat16")
    key = msgspec.structs.replace(KEY, precision="bf16-mixed")
    (only,) = found(state, {KEY: made_peak(50e12), key: made_peak(700e12, precision="bf16-mixed")})
    assert only.share_of_sheet == pytest.approx(10 / 989.4)
    assert only.share_of_measured == pytest.approx(10 / 700)
    (only,) = found(in_force(predicted(Cell(a_spec(precision="fp32"), [0.1])), allow_tf32=True))
    assert (only.precision, only.share_of_sheet) == ("tf32", pytest.approx(10 / 494.7)), "of what was in force"


@pytest.mark.parametrize(
    ("settings", "precision"),
    [
        ({}, "fp32"),
        ({"allow_tf32": True, "matmul_precision": "high"}, "tf32"),
        ({"autocast_dtype": "bfloat16"}, "bf16-mixed"),
        ({"autocast_dtype": "bfloat16", "float8": "float8_e4m3fn in 14 of 15 linear layers"}, "fp8-mixed"),
        ({"autocast_dtype": "float16"}, "fp16-mixed"),
        ({"autocast_dtype": "float64"}, None),
        ({"parameter_dtype": "bfloat16"}, "bf16"),
        ({"parameter_dtype": "bfloat16+float32"}, None),
        ({"allow_tf32": None}, "fp32"),
        ({"allow_tf32": None, "matmul_precision": "medium"}, None),
    ],
)
def test_the_precision_in_force(settings: dict[str, Any], precision: str | None) -> None:
    state = in_force(predicted(Cell(a_spec(), [0.1])), **settings)
    assert precision_in_force(state.cells[0]) == precision
    (only,) = found(state, {KEY: made_peak()})
    if precision is None:
        assert (only.sheet, only.measured, only.bound, only.share_of_sheet) == (None, None, None, None)


def test_what_no_source_states_is_unknown_and_never_guessed() -> None:
    only = point(a_spec(device="cpu"))
    assert (only.sheet, only.measured, only.ceiling) == (None, None, None)
    assert (only.share_of_sheet, only.share_of_measured, only.bound, only.share_of_bandwidth) == (None,) * 4
    assert only.flops_per_s == pytest.approx(10e12)


def test_on_a_cpu_the_measured_peak_is_the_only_ceiling() -> None:
    peak = made_peak(40e12, 1e12, device="cpu", device_name="Some CPU 9000", allow_tf32=None)
    only = point(a_spec(device="cpu"), {peak_key(ENVIRONMENT, "cpu", "fp32", 32): peak})
    assert only.sheet is None
    assert only.share_of_measured == pytest.approx(0.25)
    assert "32 threads" in only.measured.source
    assert measured_ceiling(made_peak(device="cpu", threads=1)).source.endswith(", 1 thread")


def test_a_peak_that_others_may_have_lowered_is_doubted() -> None:
    assert doubt(made_peak(device="cpu")) == doubt(made_peak(device="cpu", busy_cores=0.1)) == ""
    assert "kept 1 core busy" in doubt(made_peak(device="cpu", busy_cores=1.0))
    assert "kept 1.5 cores busy" in doubt(made_peak(device="cpu", busy_cores=1.5))
    assert "not observed" in doubt(made_peak(device="cuda:0"))
    only = point(
        a_spec(device="cpu"), {peak_key(ENVIRONMENT, "cpu", "fp32", 32): made_peak(device="cpu", busy_cores=1.0)}
    )
    assert "measure again with --refresh" in only.measured.source


def test_a_peak_with_other_threads_or_of_another_machine_does_not_count() -> None:
    spec = a_spec(device="cpu")
    assert point(spec, {peak_key(ENVIRONMENT, "cpu", "fp32", 1): made_peak()}).measured is None
    assert point(spec, {peak_key(OLD_LAPTOP, "cpu", "fp32", 32): made_peak()}).measured is None


def test_the_bound_is_by_the_intensity_and_the_measured_ceiling_goes_before_the_data_sheets() -> None:
    peaks = {KEY: made_peak(50e12, 2.5e12)}  # ridge at 20 FLOP/B
    compute = point(peaks=peaks, bytes_moved=10**9)  # 1000 FLOP/B
    assert (compute.bound, compute.share_of_bandwidth) == ("compute", None)
    memory = point(peaks=peaks, flops=10**11, bytes_moved=10**11)  # 1 FLOP/B, 1 TB/s
    assert memory.bound == "bandwidth"
    assert memory.share_of_bandwidth == pytest.approx(1.0 / 2.5)
    work = {"flops": 15 * 10**9, "bytes_moved": 10**9}  # 15 FLOP/B; the sheet's ridge is at 20
    assert point(**work).bound == "bandwidth"
    assert point(peaks={KEY: made_peak(50e12, 5e12)}, **work).bound == "compute"


def test_cells_that_cannot_be_placed_are_left_out() -> None:
    state = predicted(
        Cell(a_spec(), [0.1]), Cell(a_spec(batch_size=8), status="oom"), Cell(a_spec(batch_size=16), [0.1])
    )
    without_prediction(state, 16)
    in_force(state, 2, model_revision="someone's model at 1f2e3d")
    assert [each.result.spec.batch_size for each in found(state)] == [4]
    assert found(predicted(Cell(a_spec(), [0.0, 0.0]))) == ()


def test_without_a_prediction_the_work_is_worked_out_from_the_dimensions() -> None:
    spec = a_spec(batch_size=16)
    state = predicted(Cell(a_spec(), [0.1]), Cell(spec, [0.1]))
    without_prediction(state, 16)
    first, second = found(state)
    assert (first.flops, first.bytes_moved) == (10**12, 10**9)
    assert (second.flops, second.bytes_moved) == (step_flops(spec), least_bytes(spec))


@pytest.mark.parametrize("with_prediction", [True, False])
def test_masked_pairs_count_where_the_kernel_that_ran_scores_them(with_prediction: bool) -> None:
    spec = a_spec(attention="sdpa", batch_size=16)
    said = ["sdpa: flash", "sdpa: math (scores materialised)"]
    flops = []
    for attention in said:
        state = in_force(predicted(Cell(spec, [0.1])), attention=attention)
        if not with_prediction:
            without_prediction(state, 16)
        (only,) = found(state)
        flops.append(only.flops)
    assert flops == [step_flops(spec), step_flops(msgspec.structs.replace(spec, attention="math"))]
    assert flops[0] < flops[1]


@pytest.mark.parametrize("model", ["reference", "my.own:Model"])
def test_products_in_an_optimizer_are_time_spent_and_no_work_of_the_model(model: str) -> None:
    cell = Cell(a_spec(pass_="train-step", model=model, optimizer="my.own:Muon"), [0.1])
    state = session_of(cell)
    flops = {"zero_grad": 0, "forward": 10**12, "loss": 0, "backward": 2 * 10**12, "optimizer": 5 * 10**12}
    state.apply(CellsPredicted(at=START, predictions=(made_prediction(cell.spec, flops=flops),)))
    (only,) = found(state)
    assert only.flops == 3 * 10**12


def without_prediction(state: SessionState, batch_size: int) -> None:
    state.predictions.pop(next(key for key in state.predictions if key.batch_size == batch_size))


def test_a_ceiling_is_the_lower_of_its_two_sides() -> None:
    ceiling = Ceiling(flops_per_s=100.0, bytes_per_s=10.0, source="made")
    assert ceiling.ridge == 10.0
    assert [ceiling.attainable(intensity) for intensity in (1.0, 10.0, 1000.0)] == [10.0, 100.0, 100.0]
    assert [ceiling.bound(intensity) for intensity in (9.9, 10.0)] == ["bandwidth", "compute"]
    half = Ceiling(flops_per_s=None, bytes_per_s=10.0, source="made")
    assert (half.ridge, half.bound(1.0), half.attainable(1000.0)) == (None, None, 10_000.0)


def test_a_cell_without_timings_achieved_nothing_though_its_work_is_known() -> None:
    (result,) = results_of(Cell(a_spec(), [], status="oom"))
    assert point_of(result, {}.get) is None
    assert work_of(result).flops == step_flops(a_spec())
