"""Estimates from a prediction on a device, or from measured cells: fit, time, and the basis of both."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.analysis.estimates import (
    NO_TIME_KNOWN,
    Estimate,
    duration_range,
    for_target,
    judge,
    judge_all,
    least_times,
    measured_cells,
    stream_derivation,
    time_range,
    total_s,
)
from cs336_tui.analysis.eta import outlook_of
from cs336_tui.analysis.published import published
from cs336_tui.analysis.targets import CONTEXT_BYTES, Target, named_target, target_here
from cs336_tui.config.spec import PRECISIONS, CellSpec, dims_of
from cs336_tui.events.environment import DeviceInfo, GpuProcess, GpuSample, HostSample, RankSample
from cs336_tui.events.events import CellsPredicted, DeviceSampled
from cs336_tui.events.gpus import find_gpu, gpu_of_label
from cs336_tui.events.prediction import Collective
from cs336_tui.session.state import SessionState
from tests.attention_cells import attention_spec
from tests.made_predictions import made_prediction, on
from tests.samples import ENVIRONMENT, START, a_spec, state_of, without_gaps
from tests.session.made import OLD_LAPTOP, OTHER_GPU, Cell, cell, events_of, session_of

H100 = named_target(find_gpu("H100"))
CPU, GPU = ENVIRONMENT.devices
GIB = 2**30


def target(free: int | None, **more: Any) -> Target:
    return Target(name="Some", device="cuda:0", capacity_bytes=free, free_bytes=free, source="made", **more)


def predicted(*cells: Cell, **more: Any) -> SessionState:
    """A session of these cells with every prediction."""
    state = session_of(*cells, **more)
    specs = {each.spec for each in cells}
    state.apply(CellsPredicted(at=START, predictions=tuple(map(made_prediction, specs))))
    return state


HERE = target_here(GPU, ENVIRONMENT)
TRAIN = a_spec(pass_="train-step")


def judged(spec: CellSpec, *measured: Cell) -> Estimate:
    """The estimate of a cell in a session of these."""
    return judge_all([made_prediction(spec)], HERE, predicted(*measured), [spec])[0]


def sampled(
    used: int | None = None, others: tuple[int | None, ...] | None = None, uuid: str = "GPU-0", **host: int
) -> DeviceSampled:
    processes = None if others is None else tuple(GpuProcess(pid=n, memory_bytes=size) for n, size in enumerate(others))
    gpu = GpuSample(uuid=uuid, memory_used_bytes=used, other_processes=processes)
    return DeviceSampled(at=START, host=HostSample(**host), gpu=gpu)


def test_a_cell_fits_where_its_peak_and_the_process_do() -> None:
    prediction = made_prediction(a_spec())
    needed = prediction.peak_bytes + CONTEXT_BYTES["cuda"]
    just = judge(prediction, target(needed))
    assert (just.fits, just.tight, just.margin_bytes, just.needed_bytes) == (True, True, 0, needed)
    over = judge(prediction, target(needed - 1))
    assert (over.fits, over.tight, over.margin_bytes) == (False, False, -1)
    ample = judge(prediction, target(2 * needed))
    assert (ample.fits, ample.tight) == (True, False)
    unknown = judge(prediction, target(None))
    assert (unknown.fits, unknown.margin_bytes, unknown.fit) == (None, None, "n/a")


def test_ranks_need_a_gpu_each_or_the_memory_of_the_host_together() -> None:
    spec = a_spec(ranks=4, parallel="ddp")
    prediction = made_prediction(spec)
    one = prediction.peak_bytes + CONTEXT_BYTES["cuda"]
    host = target_here(CPU, ENVIRONMENT)

    assert judge(prediction, target(one)).fits
    assert target(one).room_bytes(4) == prediction.peak_bytes
    assert msgspec.structs.replace(host, free_bytes=4 * one).room_bytes(4) == one - CONTEXT_BYTES["cpu"]
    assert judge(prediction, host).needed_bytes == 4 * (prediction.peak_bytes + CONTEXT_BYTES["cpu"])


@pytest.mark.parametrize(
    ("choices", "sequences"), [({"batch_is": "global", "ranks": 2}, 4), ({"accumulate": 4, "pass_": "train-step"}, 2)]
)
def test_a_tensor_of_the_residual_stream_is_of_a_ranks_micro_batch(choices: dict[str, Any], sequences: int) -> None:
    spec = a_spec(batch_size=8, **choices)
    prediction = made_prediction(spec, residual_stream_bytes=sequences * 128 * 768 * 4)

    said = f"B × T × d_model × 4 bytes = {sequences} × 128 × 768 × 4 = "
    assert (stream_derivation(prediction) or "").startswith(said)


def test_links_are_as_stated_or_by_the_data_sheet_or_unknown() -> None:
    used = Collective(op="all-reduce", calls=2, bytes=900)
    prediction = made_prediction(a_spec(ranks=2, parallel="ddp"), communication=(used,))
    stated = msgspec.structs.replace(H100, stated_link=100.0)

    assert least_times(judge(prediction, H100)) == ((used, 2 / 2 * 900 / 450e9),)
    assert least_times(judge(prediction, stated)) == ((used, 9.0),)
    assert least_times(judge(prediction, named_target(find_gpu("L4")))) == ((used, None),)
    assert (H100.link_text, stated.link_text) == (
        "450 GB/s, NVLink of H100 SXM 80GB by its data sheet", "1e-07 GB/s, as given"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("peak", "fit"),
    [(100, "does not fit, by 15.6 GB"), (80, "fits tightly, 4.40 GB to spare"), (1, "fits, 83.4 GB to spare")],
)
def test_the_verdict_says_by_how_much_of_all_that_torch_shows_of_a_named_gpu(peak: int, fit: str) -> None:
    assert judge(made_prediction(a_spec(), peak_bytes=peak * 10**9), H100).fit == fit


USED = 100 * 10**9
UNTOLD = [
    (sampled(used=60 * GIB), 0),
    (sampled(used=60 * GIB, others=(None,)), 0),
    (sampled(used=9 * GIB, uuid="GPU-7"), None),
]
"""Samples that cannot tell whose memory it is: these give way to an older one."""
RANKS = tuple(RankSample(pid=rank, rss_bytes=20 * 10**9) for rank in range(3))
MPS = DeviceInfo(name="mps", label="Some GPU", precisions=("fp32",), memory_bytes=400 * 10**9)


@pytest.mark.parametrize(
    ("device", "samples", "free", "source"),
    [
        (GPU, [], GPU.memory_bytes, "all of it; what is in use is not known"),
        (GPU, [(sampled(used=5 * GIB), None)], GPU.memory_bytes - 5 * GIB, "free now"),
        (GPU, [(sampled(used=60 * GIB, others=(2 * GIB, GIB)), 3)], GPU.memory_bytes - 3 * GIB,
         "free once the running cell is over"),
        (GPU, [(sampled(used=GIB), None), *UNTOLD], GPU.memory_bytes - GIB, "free now"),
        (CPU, [(sampled(memory_used_bytes=USED), None)], ENVIRONMENT.memory_bytes - USED, "free now"),
        (CPU, [(sampled(memory_used_bytes=USED, child_rss_bytes=40 * 10**9), 0)],
         ENVIRONMENT.memory_bytes - 60 * 10**9, "free once the running cell is over"),
        (CPU, [(sampled(memory_used_bytes=USED, child_rss_bytes=20 * 10**9, ranks=RANKS), 0)],
         ENVIRONMENT.memory_bytes - 40 * 10**9, "free once the running cell is over"),
        (MPS, [], 400 * 10**9, "all of it; what is in use is not known"),
        (MPS, [(sampled(memory_used_bytes=500 * 10**9), None)], 12 * 10**9, "free now"),
    ],
)  # fmt: skip
def test_what_others_use_is_not_free_and_what_the_running_cell_uses_will_be(
    device: DeviceInfo, samples: Any, free: int, source: str
) -> None:
    here = target_here(device, ENVIRONMENT, samples)
    assert (here.kind, here.free_bytes, here.source) == (device.name.partition(":")[0], free, source)
    assert here.capacity_bytes == (device.memory_bytes or ENVIRONMENT.memory_bytes)
    assert here.gpu is (find_gpu("H100") if device is GPU else None)


SHEET = "lower bound from the data sheet's peak; no cell measured yet"


@pytest.mark.parametrize(
    ("spec", "made", "where", "low_s", "basis", "said"),
    [
        ({"precision": "bf16-mixed"}, {"flops": {"forward": 989_400_000_000}}, H100, 1e-3, SHEET, "at least 1.00 ms"),
        ({}, {"flops": {"forward": 1}, "min_bytes_moved": 3_350_000_000}, H100, 1e-3, SHEET, "at least 1.00 ms"),
        ({}, {"flops": {"forward": 10**12}, "min_bytes_moved": 0}, target(10**12, stated_flops=1e12), 1.0,
         "lower bound from the stated peak; no cell measured yet", "at least 1000 ms"),
        ({"device": "cpu"}, {}, target_here(CPU, ENVIRONMENT), None, NO_TIME_KNOWN, "n/a"),
    ],
)  # fmt: skip
def test_without_measurements_a_peak_and_a_bandwidth_bound_a_step_from_below(
    spec: dict[str, Any], made: dict[str, Any], where: Target, low_s: float | None, basis: str, said: str
) -> None:
    found = judge(made_prediction(a_spec(**spec), **made), where)
    assert (found.low_s, found.high_s) == (low_s and pytest.approx(low_s), None)
    assert (found.run_low_s is None, found.basis, found.step_time) == (low_s is None, basis, said)


def test_no_published_step_was_faster_than_the_data_sheet_allows() -> None:
    """FLOPs by the closed formula, times 2 per multiply-add; what a source does not state leaves its row out."""
    shares = []
    for row in published():
        if row.mean_ms is None:  # a peak or a kernel
            continue
        gpu = gpu_of_label(row.device)
        if gpu is None or row.context is None or row.batch is None or row.precision not in PRECISIONS:
            continue
        dims = msgspec.structs.asdict(dims_of(row.size, row.edition))
        spec = a_spec(context_length=row.context, batch_size=row.batch, pass_=row.pass_, precision=row.precision,
                      arch=row.arch, **dims)  # fmt: skip
        bound_s = judge(made_prediction(spec, min_bytes_moved=0), named_target(gpu)).low_s
        shares.append(bound_s / (row.mean_ms / 1e3))
    assert len(shares) >= 50
    assert max(shares) < 1
    assert max(shares) > 0.5  # some come near it: the bound is no idle one


def test_measured_cells_of_the_device_give_the_range() -> None:
    """Cells of as much work that took 100 and 125 ms: the third, of twice the work, takes 200 to 250."""
    spec = on(TRAIN, batch_size=16)
    found = judged(spec, cell([0.100] * 3, pass_="train-step"), cell([0.250] * 3, pass_="train-step", batch_size=8))
    assert (found.low_s, found.high_s) == (pytest.approx(0.4), pytest.approx(0.5))
    share = sum(made_prediction(a_spec(pass_="train-step")).flops.values()) / 0.1 / 67e12 * 100
    assert found.basis == f"from 2 measured cells: {share / 1.25:.3g} to {share:.3g} % of peak"
    assert found.run_low_s == pytest.approx(0.4 * spec.total_steps)
    assert not found.measured


def test_a_norms_time_follows_its_bytes_and_tells_of_no_model() -> None:
    """A norm has no FLOPs: half as wide is half the bytes and the time; its bandwidth is held against the sheet's."""
    norm = {"workload": "norm", "pass_": "forward", "device": "cuda:0"}
    spec, wide = attention_spec(**norm, d_model=512), attention_spec(**norm, d_model=1024)
    bytes_moved = 2 * 2 * 24 * 1024 * 4
    made = {"flops": {"forward": 0}, "flops_by_range": {}, "min_bytes_moved": bytes_moved}
    state = session_of(Cell(wide, [0.1] * 3))
    state.apply(CellsPredicted(at=START, predictions=(msgspec.structs.replace(made_prediction(wide), **made),)))
    half = msgspec.structs.replace(made_prediction(spec), **made | {"min_bytes_moved": bytes_moved // 2})
    found = judge(half, HERE, state)
    assert found.low_s == found.high_s == pytest.approx(0.05)
    assert found.basis == f"from 1 measured cell: {bytes_moved / 0.1 / 3.35e12 * 100:.3g} % of peak"
    assert "no cell measured" in judge(made_prediction(a_spec(pass_="forward")), HERE, state).basis


def test_the_cell_itself_goes_before_others() -> None:
    found = judged(a_spec(), cell([0.100] * 3), cell([0.300] * 3, batch_size=8), cell([0.110] * 3, seed=1))
    assert (found.low_s, found.high_s) == (pytest.approx(0.100), pytest.approx(0.110))
    assert found.basis == "measured, 2 runs of this cell"
    assert found.measured


def test_cells_of_the_same_pass_go_before_those_of_others() -> None:
    cells = cell([0.1] * 3, pass_="forward"), cell([0.9] * 3, pass_="train-step")
    wide = judged(a_spec(pass_="forward", batch_size=8), *cells)
    assert wide.low_s == wide.high_s == pytest.approx(0.2)
    assert "2 measured cells of other passes" in judged(a_spec(pass_="backward"), *cells).basis


@pytest.mark.parametrize("changes", [{"precision": "bf16-mixed"}, {"device": "cpu"}, {"threads": 2}])
def test_other_devices_precisions_and_threads_tell_nothing(changes: dict[str, Any]) -> None:
    assert "no cell measured" in judged(a_spec(), cell([0.1] * 3, **changes)).basis


def test_a_cell_of_another_machine_tells_of_its_own_device_only_and_none_without_a_prediction() -> None:
    state = predicted(cell([0.1] * 3), environment=OTHER_GPU)
    assert measured_cells(state, HERE) == ()
    assert len(measured_cells(state, named_target(find_gpu("A100")))) == 1
    assert len(measured_cells(predicted(cell([0.1] * 3)), H100)) == 1
    assert measured_cells(predicted(cell([0.1] * 3, device="mps"), environment=OLD_LAPTOP), H100) == ()
    assert measured_cells(session_of(cell([0.1] * 3)), H100) == ()


def test_the_steps_of_the_spec_that_was_asked_for_count_and_what_backward_does_not_time() -> None:
    long = a_spec(measure_steps=96)
    found = judge(made_prediction(a_spec()), H100, None, long)
    assert (found.spec, found.run_low_s) == (long, pytest.approx(found.low_s * 98))
    found = judge(made_prediction(a_spec(pass_="backward", warmup_steps=1, measure_steps=1)), H100)
    assert found.run_low_s == pytest.approx(found.low_s * 2 * 1.5)


def test_a_sweep_takes_the_sum_of_what_fits() -> None:
    state = predicted(cell([0.100] * 3), cell([0.25] * 3, batch_size=8))
    specs = [a_spec(batch_size=16), a_spec(batch_size=32)]
    both = judge_all([made_prediction(spec) for spec in specs], HERE, state)
    low, high = total_s(both)
    assert low == pytest.approx((0.4 + 0.8) * 6)
    assert high == pytest.approx((0.5 + 1.0) * 6)
    huge = judge(made_prediction(a_spec(batch_size=64), peak_bytes=10**12), HERE, state)
    assert total_s([*both, huge]) == (low, high)
    unknown = judge(made_prediction(a_spec(device="cpu")), target_here(CPU, ENVIRONMENT))
    assert total_s([*both, unknown]) == (None, None)
    assert total_s([judge(made_prediction(a_spec()), H100)])[1] is None


@given(st.lists(st.integers(1, 64), min_size=1, max_size=6), st.floats(1e-4, 10))
def test_the_sweep_agrees_with_the_forecast_of_a_running_session(batches: list[int], step_s: float) -> None:
    """With one measured cell both price the others by their work."""
    waiting = [cell(status=None, batch_size=batch + 4) for batch in batches]
    state = predicted(cell([step_s] * 3), *waiting)
    in_a_row = state_of(without_gaps(events_of(cell([step_s] * 3), *waiting)))
    low, high = total_s(judge_all([made_prediction(each.spec) for each in waiting], HERE, state))
    assert low == high == pytest.approx(outlook_of(in_a_row).ends.last_s, rel=1e-6)


@pytest.mark.parametrize(
    ("words", "low", "high", "said"),
    [
        (time_range, None, None, "n/a"),
        (time_range, 0.0123, None, "at least 12.3 ms"),
        (time_range, 0.0123, 0.0156, "12.3 to 15.6 ms"),
        (time_range, 0.0123, 0.0123, "12.3 ms"),
        (time_range, 12.3, 15.6, "12300 to 15600 ms"),
        (time_range, 12.3e-6, 15.6e-6, "0.0123 to 0.0156 ms"),
        (duration_range, 65, 80, "1:05 to 1:20"),
        (duration_range, 65, None, "at least 1:05"),
        (duration_range, 65.1, 65.2, "1:05"),
        (duration_range, None, None, "n/a"),
    ],
)
def test_times_in_words(words: Callable[..., str], low: float | None, high: float | None, said: str) -> None:
    assert words(low, high) == said


@pytest.mark.parametrize(("torch", "workspace"), [("2.11.0+cu128", 8_519_680), ("2.12.0+cu130", 32 * 2**20)])
def test_a_named_gpu_has_the_workspaces_that_this_torch_gives_it(
    torch: str, workspace: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    of_hopper = {
        "workspaces": 2,
        "workspace_bytes": 32 * 2**20,
        "reserved_bytes": 4 * GIB,
        "unfit": ((5 * GIB, 6 * GIB),),
    }
    made = made_prediction(a_spec(device="cuda:0"), torch=torch, **of_hopper)
    found = for_target(made, named_target(find_gpu("B200")))
    assert found.workspace_bytes == workspace
    assert made.peak_bytes - found.peak_bytes == 2 * (32 * 2**20 - workspace)
    assert made.reserved_bytes - found.reserved_bytes == made.unfit[0][0] - found.unfit[0][0]
    assert sum(found.by_category.values()) == found.peak_bytes


def test_in_lanes_a_sweep_takes_as_long_as_the_lane_that_ends_last() -> None:
    state = predicted(cell([0.1] * 3))
    specs = [a_spec(measure_steps=steps) for steps in (8, 3, 3, 1)]
    each = [judge(made_prediction(a_spec()), HERE, state, spec) for spec in specs]
    assert total_s(each)[0] == pytest.approx((10 + 5 + 5 + 3) * 0.1)
    assert total_s(each, 2)[0] == pytest.approx((5 + 5 + 3) * 0.1), "the longest first, then the one that is free"
    assert total_s(each, 8)[0] == pytest.approx(10 * 0.1)


@pytest.mark.parametrize(
    "changes",
    [
        {"compile": "default"},
        {"cuda_graph": "step"},
        {"optimizer": "adamw-fused"},
        {"attention": "sdpa"},
        {"checkpoint": 1},
        {"loss": "mine:loss"},
        {"model": "mine:Model"},
    ],
)
def test_only_cells_of_the_same_variant_are_experience_where_there_are_any(changes: dict[str, Any]) -> None:
    other = on(TRAIN, **changes)
    cells = [cell([0.1] * 3, pass_="train-step"), cell([0.9] * 3, pass_="train-step", **changes)]
    larger = judged(on(TRAIN, batch_size=8), *cells)
    assert larger.low_s == larger.high_s == pytest.approx(0.2)
    assert (larger.step_time, larger.basis[:22]) == ("about 200 ms", "from 1 measured cell: ")
    assert judged(on(other, batch_size=8), *cells).low_s == pytest.approx(1.8)
    assert not larger.by_others
    if not {"compile", "cuda_graph"}.isdisjoint(changes):  # both need the same memory, but one was not measured
        found = judged(other, cells[0])
        assert (found.measured, found.by_others) == (False, True)
        assert found.basis.startswith("from 1 measured cell of other variants (as written): ")


def test_without_one_alike_it_is_said_which_they_were() -> None:
    cells = [
        cell([0.1] * 3, pass_="train-step", compile="default"),
        cell([0.2] * 3, pass_="train-step", attention="sdpa"),
        cell([0.2] * 3, pass_="train-step", attention="sdpa", batch_size=8),
    ]
    found = judged(TRAIN, *cells)
    assert found.basis.startswith("from 3 measured cells of other variants (compiled; sdpa): ")
    many = judged(on(TRAIN, checkpoint=1), *cells, cell([0.1] * 3, pass_="train-step"),
                  cell([0.1] * 3, pass_="train-step", attention="flash"))  # fmt: skip
    assert "of other variants (compiled; sdpa; as written; ...)" in many.basis


def test_the_same_variant_in_another_pass_goes_before_another_variant_in_the_same_pass() -> None:
    cells = [cell([0.1] * 3, pass_="forward", compile="default"), cell([0.9] * 3, pass_="inference")]
    found = judged(a_spec(pass_="inference", compile="default"), *cells)
    assert found.low_s == pytest.approx(0.1)
    assert "from 1 measured cell of other passes: " in found.basis
    neither = judged(a_spec(pass_="backward", attention="sdpa"), *cells)
    assert "of other passes and variants (compiled; as written): " in neither.basis


def test_attention_alone_is_another_variant_than_a_model() -> None:
    alone = cell([0.1] * 3, workload="attention", num_heads=1)
    assert "of other variants (attention alone, naive)" in judged(a_spec(), alone).basis
    assert judged(on(alone.spec, batch_size=8), alone).low_s == pytest.approx(0.2)
