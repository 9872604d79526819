"""Attribution of a GPU's kernels to phases and ranges, on events made up.

Forward runs on thread 1, backward on thread 2; kernels run long after their launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cs336_tui.events.kernel_report import Gap, Overlap
from cs336_tui.worker.measure.kernel_events import kernels_of, read_step


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


def test_kernels_in_no_phase_that_could_be_told_are_counted_and_a_note_says_so() -> None:
    """Those that were launched outside of every phase are known to be no part of the step."""
    gpu = (
        at_host("cudaLaunchKernel", 125, 126, activity="cuda_runtime", correlation_id=501),
        on_gpu("outside", 990, 999, correlation_id=501, device_resource_id=7),
        on_gpu("mul_kernel", 1000, 1010, linked_correlation_id=1, device_resource_id=7),
        on_gpu("ncclDevKernel_AllReduce", 1000, 3000, device_resource_id=9),
        on_gpu("ncclDevKernel_AllReduce", 3000, 4500, device_resource_id=9),
        on_gpu("after_outside", 991, 995, device_resource_id=7),
    )
    read = read_step([*HOST, *gpu], ("forward",), "cuda")
    assert [launch.name for launch in read.profile.launches] == ["mul_kernel"]
    assert read.profile.unplaced_ns == (4, 2000, 1500)
    assert "3 kernels (3.504 µs)" in read.note
    alone = read_step([*HOST, *gpu[3:5]], ("forward",), "cuda")
    assert alone.activity == "operators"
    assert "2 kernels (3.500 µs)" in alone.note
    assert "No kernel could be seen" not in alone.note


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
    gaps = found.gaps()
    assert (gaps.count, gaps.total_ns, gaps.median_ns) == (1, 80, 80.0)
    assert gaps.largest == (Gap(80, "b", "c"),)
    assert found.overlap() is None


def test_overlap_is_of_communication_and_computation_without_copies() -> None:
    gpu = (
        on_gpu("ncclDevKernel_AllReduce", 1000, 1100, linked_correlation_id=1),
        on_gpu("gemm", 1080, 1120, linked_correlation_id=2, device_resource_id=9),
        on_gpu("Memcpy DtoD (Device -> Device)", 1000, 1090, activity="gpu_memcpy", linked_correlation_id=2),
    )
    found = kernels_of([*HOST, *gpu], ("forward",))
    assert found.overlap() == Overlap(communication_ns=100, overlapped_ns=20)


def test_a_kernel_names_the_operator_that_launched_it() -> None:
    gpu = (
        on_gpu("mul_kernel", 1000, 1010, linked_correlation_id=1),
        on_gpu("mul_kernel", 1010, 1020, linked_correlation_id=2),
        on_gpu("by_launch", 1020, 1030, correlation_id=501),
    )
    launch = at_host("cudaLaunchKernel", 41, 42, activity="cuda_runtime", correlation_id=501)
    groups = kernels_of([*HOST, launch, *gpu], ("forward",)).groups()
    operators = {event.correlation_id(): event.name() for event in HOST}
    assert [(group.name, group.op) for group in groups] == [
        ("mul_kernel", operators[1]),
        ("mul_kernel", operators[2]),
        ("by_launch", ""),
    ]


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
