"""Traces of real GPUs, each held against the file itself as plain Python reads it."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from cs336_tui.analysis import kernels
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.session.recordings import chrome
from cs336_tui.session.recordings.recording import Opening, Recorded
from tests.session.recordings.recordings import PART_KERNELS, TRACES, events_of, trace_path

DDP = "DistributedDataParallel.forward"
KNOWN = TRACES | {"part": PART_KERNELS}
each_trace = pytest.mark.parametrize("name", KNOWN)


def cell_of(name: str) -> Recorded:
    (cell,) = chrome.read(trace_path(name), Opening(), name)
    return cell


def report_of(name: str) -> KernelReport:
    report = cell_of(name).report
    assert isinstance(report, KernelReport)
    return report


@each_trace
def test_number_and_time_of_kernels_are_the_files_to_the_nanosecond(name: str) -> None:
    report = report_of(name)
    by_name: dict[str, list[int]] = defaultdict(list)
    for event in events_of(name):
        if event.get("cat") == "kernel":
            by_name[event["name"]].append(round(event["dur"] * 1000))
    found: dict[str, list[int]] = defaultdict(list)
    for group in report.groups:
        found[group.name] += group.durations_ns
    assert (report.launches, report.total_ns) == KNOWN[name]
    assert {name: sorted(each) for name, each in found.items()} == {
        name: sorted(each) for name, each in by_name.items()
    }


@each_trace
def test_a_kernels_operator_is_the_one_that_the_file_links_it_to(name: str) -> None:
    """By time on the launching thread here, by external id in the file: each checks the other."""
    events = events_of(name)
    operators = {each["args"].get("External id"): each["name"] for each in events if each.get("cat") == "cpu_op"}
    kernels = [each for each in events if each.get("cat") == "kernel"]
    linked = Counter((each["name"], operators.get(each["args"].get("External id"), "")) for each in kernels)
    found: Counter[tuple[str, str]] = Counter()
    for group in report_of(name).groups:
        found[group.name, group.op] += len(group.durations_ns)
    assert found == linked
    assert sum(found[pair] for pair in found if pair[1]) > 0.99 * len(kernels)


@each_trace
def test_gaps_are_those_between_the_files_own_times(name: str) -> None:
    """Times of day in microseconds have more digits than a float."""
    ran = sorted(
        (int(event["ts"] * 1000), int(event["dur"] * 1000))
        for event in events_of(name)
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    lengths, reached = [], ran[0][0]
    for begin, duration in ran:
        lengths += [begin - reached] if begin > reached else []
        reached = max(reached, begin + duration)
    report = report_of(name)
    assert report.gaps is not None
    assert (report.gaps.count, report.gaps.total_ns) == (len(lengths), sum(lengths))
    assert [gap.ns for gap in report.gaps.largest] == sorted(lengths, reverse=True)[:10]
    assert (report.span_ns, report.busy_ns) == (reached - ran[0][0], reached - ran[0][0] - sum(lengths))


def test_communication_is_more_than_nccl() -> None:
    """The B200's all-reduces of symmetric memory are no computation beside NCCL's one kernel."""
    moved = [event for event in events_of("b200-eager-inference") if event.get("cat") == "kernel"]
    names = ("multimem_all_reduce_kernel", "ncclDevKernel_AllGather")
    durations = [round(each["dur"] * 1000) for each in moved if any(name in each["name"] for name in names)]
    report = report_of("b200-eager-inference")
    assert len(durations) == 74
    assert report.overlap is not None
    assert (report.overlap.communication_ns, report.overlap.overlapped_ns) == (sum(durations), 0)


def test_a_training_step_of_a_v100() -> None:
    """The step's ranges, phases and autograd's thread, as the trace has them."""
    report = report_of("part")
    assert report.device_name == "Tesla V100-SXM2-32GB"
    assert list(report.steps_ns.items()) == [("step 103", 95_697_341)]
    assert {group.path[0] for group in report.groups} == {"step 103"}
    assert {(group.phase, group.backward) for group in report.groups} == {
        ("forward", False),
        ("backward", True),
        ("optimizer", False),
    }
    by_op = {group.op: group for group in report.groups}
    assert by_op["aten::cudnn_convolution"].ranges == ("forward", "step 103", "## forward ##", DDP, DDP)
    assert by_op["aten::convolution_backward"].path == ("step 103", "## backward ##", DDP)
    (step,) = kernels.by_step(report)
    assert (step.launches, step.total_ns) == PART_KERNELS
