"""Kernels of a profiled step on a real CUDA GPU: counts, ranges and sums of times."""

from collections import Counter
from statistics import fmean
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from cs336_tui.analysis.kernel_cells import kernel_cells
from cs336_tui.analysis.kernels import by_range, idle_share, matmul_shares, named_share
from cs336_tui.analysis.merge import merge
from cs336_tui.config.spec import PASSES
from cs336_tui.config.values import PHASES
from cs336_tui.events.events import CellsQueued
from cs336_tui.worker.measure.kernel_events import kernels_of
from cs336_tui.worker.measure.kernels import raw_events
from cs336_tui.worker.workload.building import build, configure_torch
from cs336_tui.worker.workload.compile_and_capture import run_whole
from cs336_tui.worker.workload.ranges import name_step
from tests.gpu.cells import LAYERS, assert_ok, gpu_spec, needs, needs_memory, profiled, shallow_spec
from tests.samples import START, report_events, state_of
from tests.worker.measure.cells import run

PRODUCTS = {
    "QKV projections": 3 * LAYERS, "attention scores": LAYERS, "final matmul": LAYERS, "output projection": LAYERS,
    "feed-forward": 3 * LAYERS, "head": 1,
}  # fmt: skip
"""Matrix products of a forward; a backward has twice as many."""


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_nearly_all_device_time_is_in_a_named_range_of_one_phase(pass_: Any, precision: Any) -> None:
    needs(precision)
    report = profiled(shallow_spec(pass_=pass_, precision=precision))
    assert {group.phase for group in report.groups} <= set(PHASES[report.spec.pass_])
    assert named_share(report) >= 0.98
    assert sum(sum(group.durations_ns) for group in report.groups) == report.total_ns
    assert 0 < report.busy_ns <= min(report.total_ns, report.span_ns)
    assert 0 <= (idle_share(report) or 0) < 1
    assert report.host_ns
    assert report.gaps.total_ns == report.span_ns - report.busy_ns
    assert report.overlap is None, "one GPU has nobody to talk to"
    launched = sum(group.instances for group in report.groups if group.op)
    assert launched > 0.99 * report.launches


def test_the_sum_over_kernels_is_the_profilers_own_total() -> None:
    spec = shallow_spec(pass_="train-step")
    workload = build(spec, configure_torch(spec))
    step = workload.step(spec)
    name_step(step, workload.model, record_function)
    run_whole(step)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        run_whole(step)
        torch.cuda.synchronize()
    ours = kernels_of(raw_events(profiler), step.phases)
    if not ours.launches:
        pytest.skip("CUPTI gives no kernels here")
    # Operators of the host have the time of the kernels that they launched, too.
    theirs = sum(
        each.self_device_time_total
        for each in profiler.key_averages()
        if each.device_type == DeviceType.CUDA and not each.is_user_annotation
    )
    assert ours.total_ns / 1e3 == pytest.approx(theirs, rel=1e-4)


def test_matrix_products_are_where_they_belong_backward_included() -> None:
    report = profiled(shallow_spec(pass_="forward+backward"))
    # A product split over k has a second kernel, so that there may be more kernels than products.
    found: Counter[tuple[str, str]] = Counter()
    for group in report.groups:
        if group.kind == "matrix multiply":
            found[group.phase, group.range] += len(group.durations_ns)
    assert {range_ for _, range_ in found} == set(PRODUCTS)
    for name, count in PRODUCTS.items():
        assert found["forward", name] >= count
        assert found["backward", name] >= 2 * count
    # The gradient of a sum is that of its terms: an addition has no kernel in backward.
    assert {share.name for share in by_range(report) if not share.backward_ns} == {"residual"}


def test_an_optimizer_lowers_the_share_of_matrix_multiplication() -> None:
    shares = matmul_shares(profiled(shallow_spec(pass_="train-step")))
    assert 0 < shares.full_step < shares.forward_and_backward < 1


@pytest.mark.timed
@pytest.mark.parametrize("pass_", ["forward", "train-step"])
def test_the_profiled_forward_takes_what_the_timed_one_does(pass_: Any) -> None:
    """Of a cell that keeps the GPU busy: kernels fill the time from first to last, and that is the timed mean."""
    spec = gpu_spec(pass_=pass_, batch_size=16, context_length=512)
    needs_memory(spec)
    content = profiled(spec)
    timed = assert_ok(run(spec))
    state = state_of([
        CellsQueued(at=START, first=7, specs=(spec,)),
        *timed.events,
        *report_events(content),
    ])  # fmt: skip
    forward, *others = kernel_cells([state], merge([("one", state)]))
    assert [part.part for part in others] == (["forward+backward", "step"] if pass_ == "train-step" else [])
    assert 0.9 * forward.profiled.span_ns <= forward.profiled.kernel_ns <= 1.001 * forward.profiled.span_ns
    mean_s = fmean(timed.phase_s("forward"))
    assert forward.span_difference_s == pytest.approx(forward.profiled.span_ns / 1e9 - mean_s, abs=0.05 * mean_s)
    assert abs(forward.span_difference_s or 0.0) < 0.1 * mean_s
    assert "matrix multiply" in {group.kind for group in content.groups if group.name == forward.profiled.top.name}
    assert all(part.same_as_forward is not None for part in others)
