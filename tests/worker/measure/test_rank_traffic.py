"""Communication beside compute and all-gathers beside what uses them, on events made up."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from cs336_tui.events.kernel_report import AllGather
from cs336_tui.worker.measure.kernel_events import read_step
from cs336_tui.worker.measure.kernels import traffic_of
from cs336_tui.worker.workload.ranges import PHASE, READY
from tests.worker.measure.test_kernel_events import HOST, Made, at_host, named, on_gpu


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
    read = read_step(host, ("backward",), "cpu")
    found = traffic_of(host, read, ("backward",), 1)
    assert (found.rank, found.span_ns, found.compute_ns) == (1, 600, 300)
    assert (found.communication_ns, found.overlapped_ns, found.uncovered_ns) == (300, 100, 200)
    assert found.overlapped_share == pytest.approx(1 / 3)
    assert found.operations == {"gloo:all_reduce": 2}
    assert found.compute_over_time == (1.0,) * 30 + (0.0,) * 30
    assert found.communication_over_time == (0.0,) * 20 + (1.0,) * 30 + (0.0,) * 10


def test_communication_whose_end_is_noted_late_ends_with_the_step() -> None:
    host = [
        named(f"{PHASE}backward", 0, 600),
        at_host("aten::mm", 0, 250),
        named_on_thread("gloo:all_reduce", 500, 900, 2),
    ]
    found = traffic_of(host, read_step(host, ("backward",), "cpu"), ("backward",), 0)
    assert (found.span_ns, found.communication_ns) == (600, 100)


def test_on_a_gpu_communication_is_nccls_kernels() -> None:
    gpu = (
        on_gpu("ncclDevKernel_AllReduce", 1000, 1100, linked_correlation_id=1),
        on_gpu("gemm", 1080, 1120, linked_correlation_id=2, device_resource_id=9),
    )
    events = [*HOST, *gpu]
    found = traffic_of(events, read_step(events, ("forward",), "cuda"), ("forward",), 0)
    assert (found.span_ns, found.communication_ns, found.overlapped_ns, found.compute_ns) == (120, 100, 20, 40)


def test_gloo_between_gpus_is_communication_beside_kernels() -> None:
    gpu = (on_gpu("gemm", 60, 120, linked_correlation_id=2), on_gpu("Memcpy DtoH", 40, 60, linked_correlation_id=1))
    events = [*HOST, *gpu, named_on_thread("gloo:all_reduce", 20, 80, 3), at_host("aten::add_", 30, 50, thread=3)]
    found = traffic_of(events, read_step(events, ("forward",), "cuda"), ("forward",), 0)
    assert (found.span_ns, found.communication_ns, found.overlapped_ns, found.compute_ns) == (100, 60, 20, 60)
    assert found.operations == {"gloo:all_reduce": 1}


def test_without_communication_there_is_no_share() -> None:
    found = traffic_of(list(HOST), read_step(list(HOST), ("forward",), "cpu"), ("forward",), 0)
    assert (found.communication_ns, found.overlapped_share, set(found.communication_over_time)) == (0, None, {0.0})
    assert found.compute_ns > 0


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


def test_an_all_gather_ended_before_its_pass_or_is_waited_for() -> None:
    events = on_gloo()
    read = read_step(events, ("forward", "backward"), "cpu")
    found = traffic_of(events, read, ("forward", "backward"), 0, FOUND).all_gathers
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


def test_all_gathers_that_are_not_those_of_the_step_before_have_their_times_alone() -> None:
    events = on_gloo()
    read = read_step(events, ("forward", "backward"), "cpu")
    found = traffic_of(events, read, ("forward", "backward"), 0, FOUND[:3]).all_gathers
    assert [(each.module, each.bytes, each.ready_ns, each.waited_ns) for each in found] == [("", None, None, None)] * 4


def test_a_phase_drawn_on_the_gpu_is_not_taken_for_the_hosts() -> None:
    """The GPU is at the forward's kernels while the host is at the backward's mark."""
    drawn = on_gpu(f"{PHASE}forward", 1650, 1800, activity="gpu_user_annotation")
    events = [*on_gloo(), drawn]
    read = read_step(events, ("forward", "backward"), "cpu")
    found = traffic_of(events, read, ("forward", "backward"), 0, FOUND).all_gathers
    assert [each.waited_ns for each in found] == [90, 0, 20, None]


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
    read = read_step(events, ("forward",), "cuda")
    found = traffic_of(events, read, ("forward",), 0, known).all_gathers
    first = 1000  # the step begins with its first kernel, long after the host has reached the mark of `a`
    assert [(each.module, (each.ready_ns or 0) + first, each.waited_ns, each.early_ns) for each in found] == [
        ("a", 10, 1040, None), ("b", 1200, 30, None), ("c", 1400, 0, 150),
    ]  # fmt: skip
    assert [each.alone_ns for each in found] == [50, 20, 0]
