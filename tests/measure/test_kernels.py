"""A profiled step on a CPU, against the profiler's own tables; attribution of a GPU's kernels on made-up events."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from torch.profiler import ProfilerActivity, profile, record_function

from cs336_tui.estimate import predict
from cs336_tui.events import Event, ReportStage
from cs336_tui.findings import kernels as findings
from cs336_tui.measure.kernel_events import kernels_of, operators_of, read_step
from cs336_tui.measure.kernel_kinds import kernel_kind, operator_kind
from cs336_tui.measure.kernels import profile_kernels, raw_events
from cs336_tui.measure.naming import name_step
from cs336_tui.measure.report import Progress, Stopped
from cs336_tui.reports import KernelReport, ReportRequest
from cs336_tui.spec import PASSES, RunSpec
from cs336_tui.workload.building import build, settle_torch
from cs336_tui.workload.passes import PHASES, Step
from tests import made_kernels
from tests.measure.cells import small_spec

PREDICT = predict.predict


def spec_of(**changes: Any) -> RunSpec:
    """Wide enough that operators do more than begin."""
    wide = {"d_model": 128, "d_ff": 256, "vocab_size": 500, "context_length": 32}
    return small_spec(**(wide | changes))


def profiled(
    spec: RunSpec,
    *,
    folder: str | None = None,
    emit: Callable[[Event], None] = lambda _event: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> KernelReport:
    return profile_kernels(ReportRequest(kind="kernels", spec=spec, folder=folder), Progress(0, emit, cancelled))


@pytest.fixture(autouse=True, scope="module")
def no_prediction() -> Iterator[None]:
    """Most of these tests are not about FLOPs, which take a second to work out."""

    def predict_nothing(spec: RunSpec) -> NoReturn:
        raise NotImplementedError(f"no prediction of {spec.size}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predict, "predict", predict_nothing)
        yield


@pytest.fixture(scope="module")
def reports() -> dict[str, KernelReport]:
    """One report of each pass."""
    return {pass_: profiled(spec_of(pass_=pass_)) for pass_ in PASSES}


def warm_step(spec: RunSpec) -> Step:
    """A named step that has run once."""
    workload = build(spec, settle_torch(spec))
    step = workload.step(spec)
    name_step(step, workload.model, record_function)
    for phase in step.phases:
        step.run(phase)
    return step


def matmuls(report: KernelReport) -> Counter[tuple[str, str]]:
    """How many matrix products each range of each phase has."""
    found: Counter[tuple[str, str]] = Counter()
    for group in report.groups:
        if group.kind == "matrix multiply":
            found[group.phase, group.range] += len(group.durations_ns)
    return found


@pytest.mark.parametrize("pass_", PASSES)
def test_a_step_has_the_phases_of_its_pass_and_nothing_else(reports: dict[str, KernelReport], pass_: Any) -> None:
    report = reports[pass_]
    assert tuple(report.phase_spans_ns) == PHASES[pass_]
    ran = {group.phase for group in report.groups}
    assert ran == set(PHASES[pass_]) - {"zero_grad"}  # which drops references and calls no operator
    assert all(group.backward == (group.phase == "backward") for group in report.groups)


@pytest.mark.parametrize("pass_", PASSES)
def test_nearly_all_time_is_in_a_named_range(reports: dict[str, KernelReport], pass_: str) -> None:
    assert findings.named_share(reports[pass_]) >= 0.98


@pytest.mark.parametrize("pass_", PASSES)
def test_sums_agree_with_one_another(reports: dict[str, KernelReport], pass_: str) -> None:
    report = reports[pass_]
    assert report.activity == "operators"
    assert sum(sum(group.durations_ns) for group in report.groups) == report.total_ns
    assert sum(len(group.durations_ns) for group in report.groups) == report.launches
    assert 0 < report.total_ns <= report.busy_ns <= report.span_ns
    assert min(min(group.durations_ns) for group in report.groups) >= 0
    assert sum(report.phase_spans_ns.values()) <= report.span_ns


@pytest.mark.parametrize("arch", ["swiglu-rope", "gelu-learned"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_the_sum_over_rows_is_the_profilers_own_total(arch: Any, precision: Any) -> None:
    step = warm_step(spec_of(pass_="train-step", arch=arch, precision=precision))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for phase in step.phases:
            step.run(phase)
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
    found = matmuls(profiled(spec_of(pass_="train-step", arch=arch)))
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


def test_backward_alone_is_attributed_through_its_untimed_forward(reports: dict[str, KernelReport]) -> None:
    alone, whole = reports["backward"], reports["forward+backward"]
    in_whole = {range_: count for (phase, range_), count in matmuls(whole).items() if phase == "backward"}
    assert {range_: count for (_, range_), count in matmuls(alone).items()} == in_whole
    ways = {share.name: share for share in findings.by_range(alone)}
    assert {"norms", "rotary", "softmax", "embedding", "loss"} <= set(ways)
    assert all(share.forward_ns == 0 for share in ways.values())


def test_parameters_gradients_are_accumulated_in_the_range_that_made_them(reports: dict[str, KernelReport]) -> None:
    report = reports["forward+backward"]
    accumulated = Counter[str]()
    for group in report.groups:
        if group.name == "torch::autograd::AccumulateGrad":
            accumulated[group.range] += len(group.durations_ns)
    assert accumulated == {
        "embedding": 1, "norms": 5, "QKV projections": 6, "output projection": 2, "feed-forward": 6, "head": 1,
    }  # fmt: skip


def test_loss_and_optimizer_are_ranges_of_their_own(reports: dict[str, KernelReport]) -> None:
    groups = reports["train-step"].groups
    assert {group.range for group in groups if group.phase == "loss"} == {"loss"}
    assert {group.range for group in groups if group.phase == "optimizer"} == {"optimizer"}
    assert any(group.range == "loss" and group.name == "aten::_log_softmax_backward_data" for group in groups)


def test_a_scaled_step_is_profiled_once_its_optimizer_no_longer_skips() -> None:
    report = profiled(spec_of(pass_="train-step", precision="fp16-mixed", d_model=16, d_ff=24))
    assert any(group.phase == "optimizer" and group.name == "aten::addcdiv_" for group in report.groups)
    assert "skipped" not in report.note


def test_the_trace_is_left_in_the_folder_and_does_not_replace_another(tmp_path: Path) -> None:
    spec = spec_of(pass_="forward", d_model=16, d_ff=24)
    traces = [profiled(spec, folder=str(tmp_path)).trace for _ in range(2)]
    assert len(set(traces)) == 2
    for trace in traces:
        assert trace is not None
        names = {event.get("name") for event in json.loads(gzip.decompress(Path(trace).read_bytes()))["traceEvents"]}
        assert {"phase/forward", "range/softmax", "aten::bmm"} <= names
    assert profiled(spec).trace is None


def test_it_says_how_far_it_is_and_stops_when_asked() -> None:
    stages: list[str] = []

    def emit(event: Event) -> None:
        assert isinstance(event, ReportStage)
        stages.append(event.stage)

    with pytest.raises(Stopped):
        profiled(spec_of(pass_="forward"), emit=emit, cancelled=lambda: "profiling" in stages)
    # A machine that is busy enough to take seconds over a step is not warmed up twice.
    assert [stage for stage in stages if stage != "warm-up 2"] == ["building", "warm-up 1", "profiling"]


def test_without_a_prediction_the_report_says_why_and_is_whole(reports: dict[str, KernelReport]) -> None:
    report = reports["forward"]
    assert report.prediction is None
    assert "no FLOPs beside the times: NotImplementedError: no prediction of custom" in report.note


def test_flops_stand_beside_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "predict", PREDICT)
    spec = spec_of(pass_="forward+backward", num_layers=1)
    report = profiled(spec)
    assert (report.prediction, report.note) == (PREDICT(spec), "")
    forward, backward = findings.attention_split(report)
    products = 2 * 2 * spec.batch_size * spec.context_length**2 * spec.d_model
    assert (forward.matmul_flops, backward.matmul_flops) == (products, 2 * products)
    assert min(forward.matmul_ns, forward.softmax_ns, backward.matmul_ns, backward.softmax_ns) > 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (made_kernels.GEMM, "matrix multiply"),
        (made_kernels.SMALL_GEMM, "matrix multiply"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "matrix multiply"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float, float>(int)", "matrix multiply"),
        (made_kernels.SOFTMAX, "softmax"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, LogSoftMaxForwardEpilogue>", "softmax"),
        (made_kernels.ADD, "elementwise"),
        (made_kernels.MEAN, "reduction"),
        (made_kernels.ADAM, "optimizer"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, X>(int)", "copy"),
        (
            "void at::native::elementwise_kernel<2, at::native::direct_copy_kernel_cuda(at::T&)::{lambda()#3}>(i)",
            "copy",
        ),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<OpaqueType<4u>, 3>(int)", "copy"),
        ("Memcpy HtoD (Pageable -> Device)", "copy"),
        ("Memset (Device)", "copy"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", "other"),
        ("triton_tem_fused_mm_3", "matrix multiply"),
        ("triton_poi_fused_add_mul_silu_1", "elementwise"),
        ("triton_red_fused_add_mean_pow_rsqrt_0", "reduction"),
        ("triton_per_fused__softmax_add_2", "softmax"),
        ("something_new", "other"),
    ],
)
def test_a_kernel_is_of_the_kind_that_its_name_says(name: str, kind: str) -> None:
    assert kernel_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::bmm", "matrix multiply"),
        ("aten::linear", "other"),
        ("aten::_softmax_backward_data", "softmax"),
        ("aten::mul_", "elementwise"),
        ("aten::copy_", "copy"),
        ("aten::sum", "reduction"),
        ("aten::_foreach_addcdiv_", "optimizer"),
        ("MmBackward0", "other"),
        ("graph_0_cpp_fused_mul_silu_4", "elementwise"),
        ("graph_0_cpp_fused_add_mean_pow_rsqrt_0", "reduction"),
        ("graph_1_cpp_fused__softmax_add_2", "softmax"),
    ],
)
def test_an_operator_is_of_the_kind_of_its_own_work(name: str, kind: str) -> None:
    assert operator_kind(name) == kind


# A GPU's events, made up. Forward runs on thread 1, backward on thread 2; kernels run long after their launch.


class Made:
    """One event with the methods of torch's ``_KinetoEvent``, each returning a given value."""

    def __init__(self, **values: Any) -> None:
        self._values: dict[str, Any] = {
            "fwd_thread_id": 0, "sequence_nr": -1, "correlation_id": 0, "linked_correlation_id": 0, "is_async": False,
            "is_user_annotation": False, "device_index": 0, "device_resource_id": 0, "start_thread_id": 1,
        }  # fmt: skip
        self._values |= values
        self._values.setdefault("end_thread_id", self._values["start_thread_id"])

    def __getattr__(self, name: str) -> Callable[[], Any]:
        if name not in self._values:
            raise AttributeError(name)
        return lambda: self._values[name]


def at_host(name: str, begin: int, end: int, *, activity: str = "cpu_op", thread: int = 1, **values: Any) -> Made:
    return Made(
        name=name,
        start_ns=begin,
        end_ns=end,
        activity_type=activity,
        device_type="DeviceType.CPU",
        start_thread_id=thread,
        is_user_annotation=activity == "user_annotation",
        **values,
    )


def named(name: str, begin: int, end: int) -> Made:
    return at_host(name, begin, end, activity="user_annotation")


def node(name: str, begin: int, end: int, sequence: int) -> tuple[Made, Made]:
    """A node of autograd on thread 2 and the engine's event round it."""
    values: dict[str, Any] = {"thread": 2, "fwd_thread_id": 1, "sequence_nr": sequence}
    wrapper = at_host(f"autograd::engine::evaluate_function: {name}", begin, end, **values)
    return wrapper, at_host(name, begin + 1, begin + 5, **values)


def on_gpu(name: str, begin: int, end: int, *, activity: str = "kernel", **values: Any) -> Made:
    annotation = activity == "gpu_user_annotation"
    return Made(
        name=name,
        start_ns=begin,
        end_ns=end,
        activity_type=activity,
        device_type="DeviceType.CUDA",
        is_user_annotation=annotation,
        **values,
    )


HOST = (
    named("phase/forward", 0, 100),
    named("range/residual", 5, 95),
    named("range/norms", 10, 30),
    at_host("aten::mul", 12, 20, sequence_nr=5, correlation_id=1),
    at_host("aten::add", 40, 45, sequence_nr=6, correlation_id=2),
    named("phase/loss", 110, 120),
    at_host("aten::nll_loss", 111, 119, sequence_nr=7, correlation_id=3),
    named("phase/backward", 130, 300),
    *node("NllLossBackward0", 140, 150, 7),
    at_host("aten::nll_loss_backward", 142, 144, thread=2, correlation_id=4),
    *node("MulBackward0", 160, 180, 5),
    at_host("aten::mul", 162, 164, thread=2, correlation_id=5),
    at_host("aten::add_", 170, 175, thread=2, correlation_id=6),  # sums gradients, outside the node
    at_host("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 181, 190, thread=2),
    at_host("aten::copy_", 183, 188, thread=2, correlation_id=7),
    at_host("aten::mystery", 200, 210, thread=2, fwd_thread_id=1, sequence_nr=99, correlation_id=8),
)


def placed(*gpu: Made, phases: tuple[str, ...] = ("forward", "loss", "backward")) -> list[tuple[str, str, str]]:
    return [(launch.name, launch.phase, launch.range) for launch in kernels_of([*HOST, *gpu], phases).launches]


def test_kernels_belong_where_their_operator_was_called_not_where_they_ran() -> None:
    gpu = (
        on_gpu("mul_kernel", 1000, 1010, linked_correlation_id=1),
        on_gpu("add_kernel", 1010, 1020, linked_correlation_id=2),
        on_gpu("loss_kernel", 1020, 1030, linked_correlation_id=3),
        on_gpu("loss_gradient", 1030, 1040, linked_correlation_id=4),
        on_gpu("mul_gradient", 1040, 1050, linked_correlation_id=5),
        on_gpu("sum", 1050, 1060, linked_correlation_id=6),
        on_gpu("accumulate", 1060, 1070, linked_correlation_id=7),
    )
    assert placed(*gpu) == [
        ("mul_kernel", "forward", "norms"),
        ("add_kernel", "forward", "residual"),
        ("loss_kernel", "loss", "loss"),
        ("loss_gradient", "backward", "loss"),
        ("mul_gradient", "backward", "norms"),
        ("sum", "backward", "norms"),
        ("accumulate", "backward", "norms"),
    ]


def test_a_node_without_a_known_forward_operator_has_no_range() -> None:
    assert placed(on_gpu("mystery", 1000, 1010, linked_correlation_id=8)) == [("mystery", "backward", "")]


def test_a_kernel_without_operator_goes_by_its_launch_and_without_that_by_its_stream() -> None:
    launch = at_host("cudaLaunchKernel", 150, 152, activity="cuda_runtime", thread=77, correlation_id=501)
    gpu = (
        launch,
        on_gpu("by_launch", 1000, 1010, correlation_id=501, device_resource_id=7),
        on_gpu("by_stream", 1010, 1020, device_resource_id=7),
        on_gpu("other_stream", 1015, 1020, device_resource_id=9),
    )
    assert placed(*gpu) == [("by_launch", "backward", ""), ("by_stream", "backward", "")]


def test_only_kernels_copies_and_fills_of_the_counted_phases_are_counted() -> None:
    gpu = (
        on_gpu("phase/forward", 1000, 1100, activity="gpu_user_annotation", linked_correlation_id=1),
        on_gpu("Stream Wait Event", 1000, 1001, activity="cuda_sync", linked_correlation_id=1),
        on_gpu("mul_kernel", 1000, 1010, linked_correlation_id=1),
        on_gpu("Memcpy DtoD (Device -> Device)", 1010, 1020, activity="gpu_memcpy", linked_correlation_id=2),
        on_gpu("loss_gradient", 1030, 1040, linked_correlation_id=4),
    )
    assert [name for name, _, _ in placed(*gpu, phases=("forward",))] == [
        "mul_kernel",
        "Memcpy DtoD (Device -> Device)",
    ]


def test_a_torch_that_does_not_tell_activities_apart_is_read_by_names() -> None:
    gpu = [
        on_gpu("phase/forward", 1000, 1100, activity="gpu_user_annotation", linked_correlation_id=1),
        on_gpu("mul_kernel", 1000, 1010, linked_correlation_id=1),
        at_host("cudaLaunchKernel", 41, 42, correlation_id=501),
        on_gpu("by_launch", 1020, 1030, correlation_id=501),
    ]
    events = [*HOST, *gpu]
    old = [Made(**{key: value for key, value in event._values.items() if key != "activity_type"}) for event in events]
    found = kernels_of(old, ("forward",)).launches
    assert [(launch.name, launch.range) for launch in found] == [("mul_kernel", "norms"), ("by_launch", "")]


def test_busy_time_counts_what_overlaps_once_and_spans_include_gaps() -> None:
    gpu = (
        on_gpu("a", 1000, 1100, linked_correlation_id=1),
        on_gpu("b", 1050, 1120, linked_correlation_id=2, device_resource_id=9),
        on_gpu("c", 1200, 1250, linked_correlation_id=4),
    )
    found = kernels_of([*HOST, *gpu], ("forward", "loss", "backward"))
    assert (found.total_ns, found.busy_ns, found.span_ns()) == (220, 170, 250)
    assert (found.span_ns("forward"), found.span_ns("loss")) == (120, 0)
    assert found.host_ns == 300


@pytest.mark.parametrize(
    ("device", "says"), [("cuda", "NVreg_RestrictProfilingToAdminUsers=0"), ("mps", "Metal"), ("cpu", "")]
)
def test_where_no_kernel_is_seen_operators_are_shown_and_the_note_says_why(device: str, says: str) -> None:
    read = read_step(list(HOST), ("forward", "loss", "backward"), device)
    assert read.activity == "operators"
    assert says in read.note
    assert bool(read.note) == (device != "cpu")
    assert {launch.name for launch in read.profile.launches} >= {"aten::mul", "aten::nll_loss"}


def test_where_kernels_are_seen_they_are_what_is_shown() -> None:
    seen = [*HOST, on_gpu("mul_kernel", 1000, 1010, linked_correlation_id=1)]
    read = read_step(seen, ("forward", "loss", "backward"), "cuda")
    assert (read.activity, read.note, [launch.name for launch in read.profile.launches]) == (
        "kernels",
        "",
        ["mul_kernel"],
    )
