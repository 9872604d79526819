"""Attribution of a GPU's kernels to phases and ranges, communication beside compute, and all-gathers beside what uses
them, on events made up.

Forward runs on thread 1, backward on thread 2; kernels run long after their launch.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from cs336_tui.events.kernel_report import AllGather, Gap, Overlap, RankTraffic
from cs336_tui.worker.measure.kernel_events import kernels_of, read_step
from cs336_tui.worker.measure.kernels import traffic_of
from cs336_tui.worker.workload.ranges import PHASE, READY


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
    values |= {"device_type": "DeviceType.CPU", "start_thread_id": thread, "activity_type": activity}
    return Made(name=name, start_ns=begin, end_ns=end, is_user_annotation=activity == "user_annotation", **values)


def named(name: str, begin: int, end: int) -> Made:
    return at_host(name, begin, end, activity="user_annotation")


def node(name: str, begin: int, end: int, sequence: int) -> tuple[Made, Made]:
    """A node of autograd on thread 2 and the engine's event round it."""
    values: dict[str, Any] = {"thread": 2, "fwd_thread_id": 1, "sequence_nr": sequence}
    wrapper = at_host(f"autograd::engine::evaluate_function: {name}", begin, end, **values)
    return wrapper, at_host(name, begin + 1, begin + 5, **values)


def on_gpu(name: str, begin: int, end: int, *, activity: str = "kernel", **values: Any) -> Made:
    values |= {"device_type": "DeviceType.CUDA", "activity_type": activity}
    return Made(name=name, start_ns=begin, end_ns=end, is_user_annotation=activity == "gpu_user_annotation", **values)


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
        on_gpu("mystery", 1070, 1080, linked_correlation_id=8),
    )
    assert placed(*gpu) == [
        ("mul_kernel", "forward", "norms"),
        ("add_kernel", "forward", "residual"),
        ("loss_kernel", "loss", "loss"),
        ("loss_gradient", "backward", "loss"),
        ("mul_gradient", "backward", "norms"),
        ("sum", "backward", "norms"),
        ("accumulate", "backward", "norms"),
        ("mystery", "backward", ""),  # of a node without a known forward operator
    ]


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
    names = [name for name, _, _ in placed(*gpu, phases=("forward",))]
    assert names == ["mul_kernel", "Memcpy DtoD (Device -> Device)"]


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


def traffic(events: Sequence[Made], phases: tuple[str, ...], device: str = "cpu", **more: Any) -> RankTraffic:
    return traffic_of(events, read_step(events, phases, device), phases, 1, **more)


def test_where_kernels_are_seen_they_are_what_is_shown() -> None:
    seen = [*HOST, on_gpu("mul_kernel", 1000, 1010, linked_correlation_id=1)]
    read = read_step(seen, ("forward", "loss", "backward"), "cuda")
    names = [launch.name for launch in read.profile.launches]
    assert (read.activity, read.note, names) == ("kernels", "", ["mul_kernel"])


def test_gloo_on_its_threads_is_communication_beside_torchs_operators() -> None:
    """Backward from 0 to 600; the second all-reduce ends where nothing is computed, the third is of a later step."""
    host = [
        named(f"{PHASE}backward", 0, 600),
        at_host("aten::mm", 0, 250),
        at_host("graph_0_cpp_fused_mul_silu_4", 250, 300),
        at_host("aten::copy_", 100, 200),
        at_host("c10d::allreduce_", 300, 310),
        named_on_thread("gloo:all_reduce", 200, 400, 2),
        named_on_thread("gloo:all_reduce", 350, 500, 3),
        at_host("aten::copy_", 410, 490, thread=3),  # gloo's own
        named_on_thread("gloo:all_reduce", 700, 900, 3),
    ]
    found = traffic(host, ("backward",))
    assert (found.rank, found.span_ns, found.compute_ns) == (1, 600, 300)
    assert (found.communication_ns, found.overlapped_ns, found.uncovered_ns) == (300, 100, 200)
    assert found.overlapped_share == pytest.approx(1 / 3)
    assert found.operations == {"gloo:all_reduce": 2}
    assert found.compute_over_time == (1.0,) * 30 + (0.0,) * 30
    assert found.communication_over_time == (0.0,) * 20 + (1.0,) * 30 + (0.0,) * 10


def test_communication_whose_end_is_noted_late_ends_with_the_step_and_without_it_there_is_no_share() -> None:
    host = [
        named(f"{PHASE}backward", 0, 600),
        at_host("aten::mm", 0, 250),
        named_on_thread("gloo:all_reduce", 500, 900, 2),
    ]
    found = traffic(host, ("backward",))
    assert (found.span_ns, found.communication_ns) == (600, 100)
    found = traffic(HOST, ("forward",))
    assert (found.communication_ns, found.overlapped_share, set(found.communication_over_time)) == (0, None, {0.0})
    assert found.compute_ns > 0


def test_on_a_gpu_communication_is_nccls_kernels_or_gloo_beside_kernels() -> None:
    gpu = (
        on_gpu("ncclDevKernel_AllReduce", 1000, 1100, linked_correlation_id=1),
        on_gpu("gemm", 1080, 1120, linked_correlation_id=2, device_resource_id=9),
    )
    found = traffic([*HOST, *gpu], ("forward",), "cuda")
    assert (found.span_ns, found.communication_ns, found.overlapped_ns, found.compute_ns) == (120, 100, 20, 40)
    gpu = (on_gpu("gemm", 60, 120, linked_correlation_id=2), on_gpu("Memcpy DtoH", 40, 60, linked_correlation_id=1))
    events = [*HOST, *gpu, named_on_thread("gloo:all_reduce", 20, 80, 3), at_host("aten::add_", 30, 50, thread=3)]
    found = traffic(events, ("forward",), "cuda")
    assert (found.span_ns, found.communication_ns, found.overlapped_ns, found.compute_ns) == (100, 60, 20, 60)
    assert found.operations == {"gloo:all_reduce": 1}


def named_on_thread(name: str, begin: int, end: int, thread: int) -> Made:
    """As torch records an operation of gloo: an annotation that begins and ends elsewhere."""
    return at_host(name, begin, end, activity="user_annotation", thread=thread, is_async=True)


class Found(NamedTuple):
    bytes: int
    unit: str | None
    pass_: str
    module: str


FOUND = (
    Found(80, "", "forward", "embedding, head"),
    Found(40, "layers.0", "forward", "layers.0"),
    Found(40, "layers.0", "backward", "layers.0"),
    Found(8, None, "", ""),
)
GATHER = "gloo:all_gather"


def on_gloo() -> list[Made]:
    """Forward from 1000 to 1500, backward until 2000. The first all-gather is waited for, the second ends 20 before
    it is needed, the third 30 after, of which 10 are computed; the fourth is nobody's."""
    return [
        named(f"{PHASE}forward", 1000, 1500),
        named(f"{PHASE}backward", 1500, 2000),
        named(READY, 1010, 1011),
        named_on_thread(GATHER, 1020, 1100, 2),
        named_on_thread(GATHER, 1080, 1180, 3),
        at_host("aten::mm", 1100, 1200),
        named(f"{READY}layers.0", 1200, 1201),
        at_host("aten::mm", 1201, 1300),
        named_on_thread(GATHER, 1600, 1730, 2),
        named(f"{READY}layers.0", 1700, 1701),
        at_host("aten::copy_", 1701, 1711),
        named_on_thread(GATHER, 1900, 1950, 2),
    ]


def gathers_in(events: list[Made], known: Sequence[Found]) -> tuple[AllGather, ...]:
    return traffic(events, ("forward", "backward"), gathered=known).all_gathers


def test_an_all_gather_ended_before_its_pass_or_is_waited_for() -> None:
    found = gathers_in(on_gloo(), FOUND)
    assert found == (
        AllGather(module="embedding, head", pass_="forward", bytes=80, begin_ns=20, end_ns=100, alone_ns=80,
                  ready_ns=10, waited_ns=90),
        AllGather(module="layers.0", pass_="forward", bytes=40, begin_ns=80, end_ns=180, alone_ns=20, ready_ns=200,
                  waited_ns=0),
        AllGather(module="layers.0", pass_="backward", bytes=40, begin_ns=600, end_ns=730, alone_ns=120, ready_ns=700,
                  waited_ns=20),
        AllGather(module="", pass_="", bytes=8, begin_ns=900, end_ns=950, alone_ns=50),
    )  # fmt: skip
    assert [each.early_ns for each in found] == [None, 20, None, None]
    # The GPU is at the forward's kernels while the host is at the backward's mark.
    drawn = on_gpu(f"{PHASE}forward", 1650, 1800, activity="gpu_user_annotation")
    found = gathers_in([*on_gloo(), drawn], FOUND)
    assert [each.waited_ns for each in found] == [90, 0, 20, None]
    # Those that are not those of the step before have their times alone.
    found = gathers_in(on_gloo(), FOUND[:3])
    assert [(each.module, each.bytes, each.ready_ns, each.waited_ns) for each in found] == [("", None, None, None)] * 4


def test_on_a_gpu_a_pass_is_ready_when_its_stream_is_free() -> None:
    """Kernels run long after their launch: those of the first module until 1200, when the second could begin, whose
    all-gather ends at 1230; a copy on another stream is in nobody's way. The third is needed long after its end."""

    def launched(name: str, at: int, begin: int, end: int, number: int, stream: int) -> tuple[Made, Made]:
        ids = {"correlation_id": number, "linked_correlation_id": number}
        call = at_host("cudaLaunchKernel", at, at + 1, activity="cuda_runtime", correlation_id=number)
        return call, on_gpu(name, begin, end, device_resource_id=stream, **ids)

    gather = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    events = [
        named(f"{PHASE}forward", 0, 500),
        named(f"{READY}a", 10, 11),
        *launched(gather, 12, 1000, 1050, 1, 20),
        *launched("gemm", 20, 1050, 1200, 2, 7),
        named(f"{READY}b", 30, 31),
        *launched("copy_in", 31, 1205, 1215, 3, 9),
        *launched(gather, 33, 1100, 1230, 4, 20),
        *launched(gather, 34, 1240, 1250, 5, 20),
        *launched("gemm", 35, 1230, 1400, 6, 7),
        named(f"{READY}c", 40, 41),
        *launched("gemm", 45, 1400, 1500, 7, 7),
    ]
    known = [Found(1, name, "forward", name) for name in "abc"]
    found = traffic(events, ("forward",), "cuda", gathered=known).all_gathers
    first = 1000  # the step begins with its first kernel, long after the host has reached the mark of `a`
    assert [(each.module, (each.ready_ns or 0) + first, each.waited_ns, each.early_ns) for each in found] == [
        ("a", 10, 1040, None), ("b", 1200, 30, None), ("c", 1400, 0, 150),
    ]  # fmt: skip
    assert [each.alone_ns for each in found] == [50, 20, 0]
