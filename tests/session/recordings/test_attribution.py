"""Operators, phases, ranges and steps of kernels in made traces, where each is known, and in traces of real GPUs, each
held against the file itself as plain Python reads it."""

import random
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from cs336_tui.analysis import kernels
from cs336_tui.analysis.kernel_cells import profiled
from cs336_tui.events.kernel_report import KernelGroup, KernelReport, Overlap
from cs336_tui.export.subjects.kernels import phase_table
from cs336_tui.session.recordings.recording import Opening
from cs336_tui.session.recordings.trace import Spans
from tests.session.recordings import made_traces as made
from tests.session.recordings import recordings
from tests.session.recordings.made_traces import AUTOGRAD, launch, op, trace_of, user, write
from tests.session.recordings.recordings import PART_KERNELS, TRACES, events_of, trace_path

ADAM = "multi_tensor_apply_kernel<FusedAdamMathFunctor>"


def report_of(folder: Path, trace: Any, **how: Any) -> KernelReport:
    return recordings.report_of(write(folder / "made.json", trace), Opening(**how))


def by_name(report: KernelReport) -> dict[str, KernelGroup]:
    return {group.name: group for group in report.groups}


def test_the_innermost_open_span_is_found_as_by_looking_at_each() -> None:
    for seed in range(200):
        dice = random.Random(seed)
        number = dice.randint(0, 40)
        begins = np.array([dice.randint(0, 50) for _ in range(number)], np.int64)
        ends = begins + np.array([dice.randint(0, 30) for _ in range(number)], np.int64)
        order = sorted(range(number), key=lambda i: (begins[i], -ends[i]))
        spans = Spans(begins, ends, np.arange(number))
        moments = np.array([dice.randint(0, 90) for _ in range(20)], np.int64)
        for moment, found in zip(moments, spans.innermost(moments), strict=True):
            around = [place for place, each in enumerate(order) if begins[each] <= moment < ends[each]]
            assert found == (around[-1] if around else -1)
        for place, (each, parent) in enumerate(zip(order, spans.parents(), strict=True)):
            before = [j for j in range(place) if ends[order[j]] > begins[each]]
            assert parent == (before[-1] if before else -1)


def test_a_training_step_and_the_gaps_that_are_left_of_its_span(tmp_path: Path) -> None:
    report = report_of(tmp_path, made.TRAINING)
    found = {name: (g.op, g.phase, g.range, g.path, g.backward) for name, g in by_name(report).items()}
    step, adam = "step 3", "Optimizer.step#AdamW.step"
    assert found == {
        "gemm_forward": ("aten::addmm", "forward", "block 0", (step, "forward", "block 0"), False),
        "add_forward": ("aten::add", "forward", "", (step, "forward"), False),
        "add_backward": ("AddBackward0", "backward", "", (step, "backward"), True),
        "gemm_backward": ("aten::mm", "backward", "block 0", (step, "backward", "block 0"), True),
        ADAM: ("aten::_fused_adamw_", "optimizer", "optimizer", (step, adam), False),
    }
    assert list(report.phase_spans_ns) == ["forward", "backward", "optimizer"]
    assert report.phase_spans_ns["forward"] == 15_000
    assert (report.launches, report.total_ns) == (5, 44_125)
    assert [(group.name, group.durations_ns) for group in report.copies] == [
        ("Memcpy HtoD (Pageable -> Device)", (1_000,))
    ]
    assert report.steps_ns == {"step 3": 100_000}
    assert [(each.launches, each.total_ns) for each in kernels.by_step(report)] == [(5, 44_125)]
    assert [(gap.ns, gap.after, gap.before) for gap in report.gaps.largest] == [
        (15_000, "add_forward", "add_backward"),
        (10_000, "gemm_backward", ADAM),
        (8_000, "add_backward", "gemm_backward"),
        (875, ADAM, "Memcpy HtoD (Pageable -> Device)"),
    ]
    assert report.gaps.count == 4
    assert report.gaps.median_ns == 9_000
    assert report.gaps.total_ns == report.span_ns - report.busy_ns == 33_875
    assert kernels.launches_per_s(report) == pytest.approx(5 / 79e-6)


def test_without_ranges_autograd_tells_the_phases(tmp_path: Path) -> None:
    events = [each for each in made.TRAINING["traceEvents"] if each["cat"] != "user_annotation"]
    found = {name: (g.phase, g.range, g.backward) for name, g in by_name(report_of(tmp_path, trace_of(events))).items()}
    assert found == {
        "gemm_forward": ("forward", "", False),
        "add_forward": ("forward", "", False),
        "add_backward": ("backward", "", True),
        "gemm_backward": ("backward", "", True),
        ADAM: ("", "", False),
    }


def _steps(marks: str) -> Any:
    """Three steps of 100 µs, each with four launches of one kernel in its forward and one in its optimizer, the third
    forward slower; before them a launch outside. `marks` names the ranges round the steps; empty: there are none."""
    events: list[Any] = [launch("gemm", 99, 0, 1, 3)]
    for step in range(3):
        at = 100 * (step + 1)
        events += [user(marks.format(step), at, 90)] if marks else []
        events += [user("forward", at + 1, 30)] if marks != "ProfilerStep#{}" else []
        events += [launch("gemm", 10 * step + k, at + 2 + k, at + 10 + 5 * k, 2 + (step == 2)) for k in range(4)]
        events += [user("optimizer", at + 60, 20), launch(ADAM, 10 * step + 5, at + 61, at + 70, 4)]
    return trace_of(*events)


@pytest.mark.parametrize(
    ("marks", "unit"), [("", "forward"), ("step", "step"), ("iteration {}", "step"), ("ProfilerStep#{}", "step")]
)
def test_figures_of_several_steps_are_those_of_one(tmp_path: Path, marks: str, unit: str) -> None:
    report = report_of(tmp_path, _steps(marks))
    whole = profiled(report)
    assert whole.times == f"3 × {unit}"
    assert (whole.instances, whole.kernel_ns, whole.span_ns) == (5, 13_333, 64_000)  # without the launch before them
    assert whole.top is not None
    assert (whole.top.name, whole.top.instances) == ("gemm", 4)
    assert whole.kernel_std_ns == pytest.approx(4_000 / 3**0.5)
    optimizer = profiled(report, "optimizer")
    assert (optimizer.times, optimizer.instances, optimizer.span_ns) == ("3 × optimizer", 1, 4_000)
    if marks == "ProfilerStep#{}":
        assert kernels.launches_in_forward(report, "gemm") is None
        return
    forward = profiled(report, "forward")
    assert (forward.times, forward.kernel_ns, forward.span_ns) == ("3 × forward", 9_333, 17_333)
    assert forward.span_std_ns == pytest.approx(1_000 / 3**0.5)
    assert kernels.launches_in_forward(report, "gemm") == 4
    assert [(row.instances, row.per_run) for row in kernels.rows(report, phase="forward")] == [(12, 4)]


def test_where_nothing_tells_steps_apart_figures_are_totals(tmp_path: Path) -> None:
    events = [each for each in _steps("")["traceEvents"] if each["cat"] != "user_annotation"]
    report = report_of(tmp_path, trace_of(events))
    whole = profiled(report)
    assert (report.runs, whole.times, whole.instances, whole.kernel_ns) == ({}, "", 16, 43_000)
    assert any("nothing tells steps apart" in note for note in phase_table(report).footnotes)
    older = msgspec.structs.replace(report_of(tmp_path, _steps("ProfilerStep#{}")), runs={})
    assert any("open the file again" in note for note in phase_table(older).footnotes)


def test_an_optimizers_own_range_named_step_is_no_step(tmp_path: Path) -> None:
    events: list[Any] = []
    for at in (1_000, 2_000, 3_000, 4_000):
        events += [user("forward", at, 300), user("backward", at + 300, 300), user("step", at + 600, 300)]
        for place, (after, took) in enumerate(((10, 50), (100, 50), (310, 90), (610, 40))):
            events += [launch(f"k{took}", at + place, at + after, at + after + 2, took)]
    whole = profiled(report_of(tmp_path, trace_of(*events)))
    assert (whole.times, whole.instances, whole.kernel_ns) == ("4 × forward", 4, 230_000)


def test_nested_steps_and_forwards_with_others_between_count_once(tmp_path: Path) -> None:
    """Also where the inner step encloses a forward; a forward within the loss of another one is of it."""
    for marks, unit in ((("train_step", "epoch part", "step"), "step"), ((), "forward")):
        events: list[Any] = []
        for at in (100, 200, 300, 400):
            around = (*marks, "forward", "loss", "forward")
            events += [user(name, at + place, 80 - 2 * place) for place, name in enumerate(around)]
            events += [launch("gemm", at, at + 10, at + 12, 50), launch("add", at + 1, at + 70, at + 72, 4)]
        report = report_of(tmp_path, trace_of(*events))
        assert (profiled(report).times, profiled(report).kernel_ns) == (f"4 × {unit}", 54_000)
        assert profiled(report, "forward").times == "4 × forward"


def test_what_ran_outside_of_steps_is_in_no_figure_of_one(tmp_path: Path) -> None:
    """Of six iterations the first two have no range; a forward and a backward have theirs in all of them."""
    events: list[Any] = [launch("init", 99, 10, 12, 5_000)]
    for number in range(6):
        at = 1_000 * number + 10_000
        events += [user(f"step {number}", at, 950)] if number > 1 else []
        events += [user("forward", at, 300), user("backward", at + 300, 300)]
        for place, (name, after, took) in enumerate((
            ("gemm", 10, 50), ("gemm", 100, 50), ("gemm", 310, 90), ("adam", 660, 40)
        )):  # fmt: skip
            events += [launch(name, 10 * number + place, at + after, at + after + 2, took)]
    report = report_of(tmp_path, trace_of(*events))
    whole = profiled(report)
    assert (whole.times, whole.instances, whole.kernel_ns) == ("4 × step", 4, 230_000)
    assert whole.top is not None
    assert (whole.top.name, whole.top.instances, whole.top.total_ns) == ("gemm", 3, 190_000)
    assert whole.top.share == whole.matmul_share == pytest.approx(190 / 230)
    assert kernels.launches_in_forward(report, "gemm") == 2
    (both,) = kernels.rows(report, phase=("forward", "backward"))
    assert (both.instances, both.per_run) == (18, 3)


def test_a_phase_partly_without_ranges_runs_once_a_step_or_is_not_told_apart(tmp_path: Path) -> None:
    for marks, times, kernel_ns in (("step {}", "2 × step (of 10)", 2_000), ("", "", 4_000)):
        events: list[Any] = []
        for number in range(10):
            at = 100 * (number + 1)
            events += [user(marks.format(number), at, 90)] if marks else []
            events += [launch("gemm", number, at + 1, at + 2, 20)]
        events += [op("autograd::engine::evaluate_function: A", 150, 5), launch("sum", 90, 151, 153, 2)]
        events += [user("backward", 250, 20), launch("sum", 91, 251, 253, 2)]
        backward = profiled(report_of(tmp_path, trace_of(*events)), "backward")
        assert (backward.times, backward.kernel_ns) == (times, kernel_ns)


USUAL = ("## forward ##", "Forward", "phase/forward", "FWD", "forward pass")


@pytest.mark.parametrize(("name", "phase"), [("model_fwd", ""), *((name, "forward") for name in USUAL)])
def test_usual_names_of_phases_are_known_and_others_can_be_given(tmp_path: Path, name: str, phase: str) -> None:
    trace = trace_of(user(name, 0, 10), op("aten::mm", 1, 5), launch("gemm", 1, 2, 3, 4))
    assert by_name(report_of(tmp_path, trace))["gemm"].phase == phase
    if not phase:
        group = by_name(report_of(tmp_path, trace, phases={"forward": ("Model_*",)}))["gemm"]
        assert (group.phase, group.range, group.path) == ("forward", "", (name,))


def test_a_range_on_autograds_thread_is_inside_that_of_the_main_one(tmp_path: Path) -> None:
    trace = trace_of(
        user("backward", 0, 20),
        user("nccl:all_reduce", 5, 4, AUTOGRAD),
        op("c10d::allreduce_", 5, 3, AUTOGRAD),
        launch("ncclDevKernel_AllReduce", 1, 6, 7, 4, AUTOGRAD),
    )
    group = by_name(report_of(tmp_path, trace))["ncclDevKernel_AllReduce"]
    assert group.path == ("backward", "nccl:all_reduce")
    assert (group.phase, group.range) == ("backward", "nccl:all_reduce")


def test_the_overlap_of_communication_and_compute(tmp_path: Path) -> None:
    trace = trace_of(
        launch("ncclDevKernel_AllReduce", 1, 0, 10, 20),
        launch("ncclDevKernel_AllReduce", 2, 1, 25, 10),
        launch("gemm", 3, 2, 5, 10),
        launch("gemm", 4, 3, 33, 10),
        launch("Memcpy DtoD (Device -> Device)", 5, 4, 12, 20, cat="gpu_memcpy"),
    )
    report = report_of(tmp_path, trace)
    assert report.overlap == Overlap(communication_ns=25_000, overlapped_ns=5_000 + 2_000)
    assert kernels.overlapped_share(report) == 0.28
    assert report_of(tmp_path, made.TRAINING).overlap is None


def test_kernels_that_nothing_launches_in_the_file_have_no_place(tmp_path: Path) -> None:
    trace = trace_of(user("forward", 0, 50), op("aten::mm", 1, 40), launch("gemm", 1, 2, 3, 4)[1:])
    report = report_of(tmp_path, trace)
    assert (by_name(report)["gemm"].op, by_name(report)["gemm"].path) == ("", ())
    assert "1 of 1 kernel has no launching operator" in report.note


def test_each_device_is_a_cell(tmp_path: Path) -> None:
    about = [{"id": 0, "name": "GPU A", "totalGlobalMem": 100}, {"id": 1, "name": "GPU B", "computeMajor": 9}]
    trace = trace_of(
        launch("gemm", 1, 0, 1, 4),
        launch("add", 2, 1, 1, 3, device=1),
        deviceProperties=about,
        distributedInfo={"rank": 3},
    )
    cells = recordings.cells_of(write(tmp_path / "made.json", trace))
    assert [(cell.facts.label, cell.facts.memory_bytes) for cell in cells] == [("GPU A", 100), ("GPU B", None)]
    assert [cell.report.spec.title for cell in cells] == ["made.json, rank 3 · cuda:0", "made.json, rank 3 · cuda:1"]


@pytest.mark.parametrize(
    ("ranges", "names"),
    [
        (["forward"], {"gemm_forward", "add_forward"}),
        (["step 3"], {"gemm_forward", "add_forward", "add_backward", "gemm_backward", ADAM}),
        (["ProfilerStep#3", "Backward"], {"add_backward", "gemm_backward"}),
        (["block*"], {"gemm_forward", "gemm_backward"}),
        (["block 0", "backward"], {"gemm_backward"}),
        (["optimizer"], {ADAM}),
    ],
)
def test_kernels_within_ranges(tmp_path: Path, ranges: list[str], names: set[str]) -> None:
    found = kernels.within(report_of(tmp_path, made.TRAINING), ranges)
    assert {group.name for group in found.groups} == names
    assert found.launches == len(names)
    assert found.total_ns == sum(sum(group.durations_ns) for group in found.groups)


def test_a_range_without_kernels_names_those_that_have_some(tmp_path: Path) -> None:
    with pytest.raises(kernels.RangeError, match=r"range block 7: .* it has forward, step 3, block 0, backward"):
        kernels.within(report_of(tmp_path, made.TRAINING), ["block 7"])


def test_without_kernels_the_hosts_operators_stand_in_by_self_time(tmp_path: Path) -> None:
    events = [each for each in made.TRAINING["traceEvents"] if each["cat"] in ("cpu_op", "user_annotation")]
    report = report_of(tmp_path, trace_of(events))
    assert (report.spec.device, report.activity, report.gaps, report.overlap) == ("cpu", "operators", None, None)
    engine = "autograd::engine::evaluate_function: AddmmBackward0"
    found = {group.name: (group.kind, group.phase, group.range, group.durations_ns) for group in report.groups}
    assert found["aten::linear"] == ("other", "forward", "block 0", (2_000,))
    assert found["aten::addmm"] == ("matrix multiply", "forward", "block 0", (8_000,))
    assert found[engine] == ("other", "backward", "", (1_000,))
    assert found["AddmmBackward0"] == ("other", "backward", "block 0", (3_000,))
    assert found["aten::mm"] == ("matrix multiply", "backward", "block 0", (6_000,))
    assert report.total_ns == (10 + 4 + 5 + 10 + 10) * 1_000
    assert "no kernel of a GPU in the file" in report.note


DDP = "DistributedDataParallel.forward"
KNOWN = TRACES | {"part": PART_KERNELS}
each_trace = pytest.mark.parametrize("name", KNOWN)


@cache
def real_report(name: str) -> KernelReport:
    return recordings.report_of(trace_path(name))


@each_trace
def test_number_and_time_of_kernels_are_the_files_to_the_nanosecond(name: str) -> None:
    report = real_report(name)
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
    for group in real_report(name).groups:
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
    report = real_report(name)
    assert (report.gaps.count, report.gaps.total_ns) == (len(lengths), sum(lengths))
    assert [gap.ns for gap in report.gaps.largest] == sorted(lengths, reverse=True)[:10]
    assert (report.span_ns, report.busy_ns) == (reached - ran[0][0], reached - ran[0][0] - sum(lengths))


def test_communication_is_more_than_nccl() -> None:
    """The B200's all-reduces of symmetric memory are no computation beside NCCL's one kernel."""
    moved = [event for event in events_of("b200-eager-inference") if event.get("cat") == "kernel"]
    names = ("multimem_all_reduce_kernel", "ncclDevKernel_AllGather")
    durations = [round(each["dur"] * 1000) for each in moved if any(name in each["name"] for name in names)]
    report = real_report("b200-eager-inference")
    assert len(durations) == 74
    assert (report.overlap.communication_ns, report.overlap.overlapped_ns) == (sum(durations), 0)


def test_a_training_step_of_a_v100() -> None:
    """The step's ranges, phases and autograd's thread, as the trace has them."""
    report = real_report("part")
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
