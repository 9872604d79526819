"""A profiled step on a CPU, against the profiler's own tables."""

import gzip
import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from torch.profiler import ProfilerActivity, profile, record_function

from cs336_tui.analysis import kernels as findings
from cs336_tui.analysis.kernel_cells import attention_split
from cs336_tui.config.spec import PASSES, CellSpec
from cs336_tui.config.values import PHASES
from cs336_tui.events.events import Event, ReportStage
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.events.reports import ReportRequest
from cs336_tui.worker.estimate import predict
from cs336_tui.worker.measure.kernel_events import operators_of
from cs336_tui.worker.measure.kernels import raw_events
from cs336_tui.worker.measure.report import make_report
from cs336_tui.worker.workload.building import build, configure_torch
from cs336_tui.worker.workload.compile_and_capture import run_whole
from cs336_tui.worker.workload.ranges import name_step
from tests.session.recordings.recordings import report_of
from tests.worker.measure.cells import kernels_of, small_spec

PREDICT = predict.predict
REHEARSE = predict.rehearse
pytestmark = pytest.mark.usefixtures("no_prediction")


def spec_of(**changes: Any) -> CellSpec:
    """A cell wide enough that operators take more than their launch."""
    wide = {"d_model": 128, "d_ff": 256, "vocab_size": 500, "context_length": 32}
    return small_spec(**(wide | changes))


Reports = dict[str, KernelReport]


@pytest.fixture(scope="module")
def reports(no_prediction: None) -> Reports:  # noqa: ARG001
    """One report of each pass."""
    return {pass_: kernels_of(spec_of(pass_=pass_)) for pass_ in PASSES}


def matmuls(report: KernelReport) -> Counter[tuple[str, str]]:
    """Number of matrix products by phase and range."""
    found: Counter[tuple[str, str]] = Counter()
    for group in report.groups:
        if group.kind == "matrix multiply":
            found[group.phase, group.range] += len(group.durations_ns)
    return found


@pytest.mark.parametrize("pass_", PASSES)
def test_a_step_has_its_phases_alone_nearly_all_of_it_a_named_range_and_sums_agree(
    reports: Reports, pass_: Any
) -> None:
    report = reports[pass_]
    assert tuple(report.phase_spans_ns) == PHASES[pass_]
    ran = {group.phase for group in report.groups}
    assert ran == set(PHASES[pass_]) - {"zero_grad"}  # which drops references and calls no operator
    assert all(group.backward == (group.phase == "backward") for group in report.groups)
    assert findings.named_share(report) >= 0.98
    assert report.activity == "operators"
    assert sum(sum(group.durations_ns) for group in report.groups) == report.total_ns
    assert sum(len(group.durations_ns) for group in report.groups) == report.launches
    assert 0 < report.total_ns <= report.busy_ns <= report.span_ns
    assert min(min(group.durations_ns) for group in report.groups) >= 0
    assert sum(report.phase_spans_ns.values()) <= report.span_ns


@pytest.mark.parametrize("arch", ["swiglu-rope", "gelu-learned"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_the_sum_over_rows_is_the_profilers_own_total(arch: Any, precision: Any) -> None:
    spec = spec_of(pass_="train-step", arch=arch, precision=precision)
    workload = build(spec, configure_torch(spec))
    step = workload.step(spec)
    name_step(step, workload.model, record_function)
    run_whole(step)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run_whole(step)
    ours = operators_of(raw_events(profiler), step.phases)
    theirs = [each for each in profiler.key_averages() if not each.is_user_annotation]
    assert len(ours.launches) == sum(each.count for each in theirs)  # each in exactly one phase
    # The profiler sums in µs, as floating-point numbers.
    assert ours.total_ns / 1e3 == pytest.approx(sum(each.self_cpu_time_total for each in theirs), abs=0.5)
    by_name: Counter[str] = Counter()
    for launch in ours.launches:
        by_name[launch.name] += launch.duration_ns
    for each in theirs:
        assert by_name[each.key] / 1e3 == pytest.approx(each.self_cpu_time_total, abs=0.1), each.key


@pytest.mark.parametrize("arch", ["swiglu-rope", "gelu-learned"])
def test_every_part_has_its_matrix_products_and_twice_as_many_in_backward(arch: Any) -> None:
    found = matmuls(kernels_of(spec_of(pass_="train-step", arch=arch)))
    layers = 2
    forward = {
        "QKV projections": 3 * layers,
        "attention scores": layers,
        "final matmul": layers,
        "output projection": layers,
        "feed-forward": (3 if arch == "swiglu-rope" else 2) * layers,
        "head": 1,
    }
    assert found == {
        **{("forward", name): count for name, count in forward.items()},
        **{("backward", name): 2 * count for name, count in forward.items()},
    }


def test_backward_alone_is_attributed_through_its_untimed_forward(reports: Reports) -> None:
    alone, whole = reports["backward"], reports["forward+backward"]
    in_whole = {range_: count for (phase, range_), count in matmuls(whole).items() if phase == "backward"}
    assert {range_: count for (_, range_), count in matmuls(alone).items()} == in_whole
    ways = {share.name: share for share in findings.by_range(alone)}
    assert {"norms", "rotary", "softmax", "embedding", "loss"} <= set(ways)
    assert all(share.forward_ns == 0 for share in ways.values())


def test_gradients_belong_to_the_range_that_made_them_and_loss_and_optimizer_are_ranges(reports: Reports) -> None:
    report = reports["forward+backward"]
    accumulated = Counter[str]()
    for group in report.groups:
        if group.name == "torch::autograd::AccumulateGrad":
            accumulated[group.range] += len(group.durations_ns)
    assert accumulated == {
        "embedding": 1, "norms": 5, "QKV projections": 6, "output projection": 2, "feed-forward": 6, "head": 1,
    }  # fmt: skip
    groups = reports["train-step"].groups
    assert {group.range for group in groups if group.phase == "loss"} == {"loss"}
    assert {group.range for group in groups if group.phase == "optimizer"} == {"optimizer"}
    assert any(group.range == "loss" and group.name == "aten::_log_softmax_backward_data" for group in groups)


def test_a_scaled_step_is_profiled_once_its_optimizer_no_longer_skips() -> None:
    report = kernels_of(spec_of(pass_="train-step", precision="fp16-mixed", d_model=16, d_ff=24))
    assert any(group.phase == "optimizer" and group.name == "aten::addcdiv_" for group in report.groups)
    assert "skipped" not in report.note


def test_the_trace_is_left_in_the_folder_and_does_not_replace_another(tmp_path: Path) -> None:
    spec = spec_of(pass_="forward", d_model=16, d_ff=24)
    traces = [kernels_of(spec, folder=str(tmp_path)).trace for _ in range(2)]
    assert len(set(traces)) == 2
    for trace in traces:
        names = {event.get("name") for event in json.loads(gzip.decompress(Path(trace).read_bytes()))["traceEvents"]}
        assert {"phase/forward", "range/softmax", "aten::bmm"} <= names
    assert kernels_of(spec).trace is None


@pytest.mark.parametrize("pass_", PASSES)
def test_the_saved_trace_reads_as_the_report_itself(tmp_path: Path, pass_: Any) -> None:
    """The report is made of Kineto's events, the reader has the file alone: each checks the other, to the ns. Outside
    the report's phases, as an untimed forward, the file has more."""

    def times(report: KernelReport, phases: Collection[str]) -> Counter[tuple[str, str, str, bool]]:
        found: Counter[tuple[str, str, str, bool]] = Counter()
        for group in report.groups:
            if group.phase in phases:
                found[group.name, group.phase, group.range, group.backward] += sum(group.durations_ns)
        return found

    own = kernels_of(spec_of(pass_=pass_), folder=str(tmp_path))
    assert times(report_of(Path(own.trace)), own.phase_spans_ns) == times(own, own.phase_spans_ns)


def test_it_says_how_far_it_is_and_stops_when_asked() -> None:
    events: list[Event] = []

    def stages() -> list[str]:
        return [event.stage for event in events if isinstance(event, ReportStage)]

    request = ReportRequest(kind="kernels", spec=spec_of(pass_="forward"))
    make_report(request, 0, events.append, lambda: "profiling" in stages())
    assert events[-1].status == "cancelled"
    # A machine that is busy enough to take seconds over a step is not warmed up twice.
    assert [stage for stage in stages() if stage != "warm-up 2"] == ["building", "warm-up 1", "profiling"]


def test_flops_stand_beside_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "rehearse", REHEARSE)
    spec = spec_of(pass_="forward+backward", num_layers=1)
    report = kernels_of(spec)
    assert (report.prediction, report.note) == (PREDICT(spec), "")
    forward, backward = attention_split(report)
    products = 2 * 2 * spec.batch_size * spec.context_length**2 * spec.d_model
    assert (forward.matmul_flops, backward.matmul_flops) == (products, 2 * products)
    assert min(forward.matmul_ns, forward.softmax_ns, backward.matmul_ns, backward.softmax_ns) > 0
