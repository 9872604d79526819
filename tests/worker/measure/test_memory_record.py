"""Memory record of a step, against the allocator's count, arithmetic and the prediction."""

import gc
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._functorch import config as functorch_config
from torch._subclasses.fake_tensor import FakeTensorMode

from cs336_tui.analysis.memory import Timeline
from cs336_tui.config.variants import RANGES
from cs336_tui.events.prediction import CATEGORIES, Allocation, Site, TensorForm, TrackedTimeline
from cs336_tui.events.reports import MemoryReport, ReportRequest
from cs336_tui.worker.measure import memory_record
from cs336_tui.worker.measure.cell_memory import (
    AllocatorEvent,
    CpuRecorder,
    CudaMark,
    CudaRecorder,
    Recording,
    read_cuda,
)
from cs336_tui.worker.measure.memory_record import Operation, cut, join
from cs336_tui.worker.measure.rank_memory import counted, record_rank_memory, without_lost_frees
from tests.watching import small_spec as bench_spec
from tests.worker.measure.cells import live_totals, memory_of, small_spec

FP32 = 4


def record(stages: list[str] | None = None, **changes: Any) -> MemoryReport:
    """The memory record of a small cell whose shapes all differ."""
    spec = small_spec(**({"d_model": 48, "d_ff": 80, "context_length": 24, "vocab_size": 300} | changes))
    return memory_of(spec, (stages if stages is not None else []).append)


@pytest.fixture(scope="module")
def train_step() -> MemoryReport:
    return record(pass_="train-step")


@pytest.mark.parametrize(
    ("pass_", "precision", "arch"),
    [
        ("inference", "fp32", "swiglu-rope"),
        ("forward", "bf16-mixed", "gelu-learned"),
        ("backward", "fp32", "swiglu-rope"),
        ("forward+backward", "bf16-mixed", "swiglu-rope"),
        ("train-step", "bf16", "gelu-learned"),
        ("train-step", "fp16-mixed", "swiglu-rope"),
    ],
)
def test_the_peak_is_the_allocators_own_and_near_the_predicted_one(pass_: str, precision: str, arch: str) -> None:
    report = record(pass_=pass_, precision=precision, arch=arch)
    assert report.recorder == "CPU profiler"
    assert report.peak_bytes == report.allocator_peak_bytes == max(live_totals(report))
    assert report.prediction
    # Autocast's products of small matrices take scratch space on a CPU, which no prediction knows of.
    assert report.peak_bytes == pytest.approx(report.prediction.peak_bytes, rel=0.03 if precision == "fp32" else 0.15)


def test_a_training_step_begins_with_its_state_and_categories_add_up_at_every_event(train_step: MemoryReport) -> None:
    timeline = Timeline(train_step)
    assert timeline.by_category.min() >= 0
    assert timeline.live_total.tolist() == live_totals(train_step)
    assert timeline.live_total[train_step.peak_event] == train_step.peak_bytes
    parameters = FP32 * train_step.prediction.num_params
    begin = timeline.at(0).by_category
    assert begin["parameters"] == parameters
    assert begin["gradients"] == parameters
    tensors = 2 * (7 + 2) + 3  # each has two moments and a count of 4 bytes
    assert begin["optimizer_state"] == 2 * parameters + FP32 * tensors
    logits = FP32 * 2 * 24 * 300
    assert begin["activations"] == logits + FP32  # the loss
    assert [block.module for block in train_step.saved] == ["layers.0", "layers.1"]
    assert train_step.note == ""


def test_the_gradients_come_in_backward_and_go_in_zero_grad(train_step: MemoryReport) -> None:
    timeline, spans = Timeline(train_step), {span.phase: span for span in train_step.phases}
    assert [*spans] == ["zero_grad", "forward", "loss", "backward", "optimizer", "clear"]
    gradients = timeline.by_category[CATEGORIES.index("gradients")]
    assert gradients[spans["zero_grad"].end - 1] == gradients[spans["loss"].end - 1] == 0
    assert gradients[spans["backward"].end - 1] == gradients[0]
    assert train_step.forward_end_bytes == timeline.live_total[spans["forward"].end - 1]
    assert train_step.forward_end_bytes == pytest.approx(train_step.prediction.forward_end_bytes, rel=0.001)


def test_what_is_allocated_says_where(train_step: MemoryReport) -> None:
    sizes: dict[tuple[str, bool], int] = {}
    named = whole = 0
    for size, born, place in zip(train_step.bytes, train_step.born, train_step.site_of, strict=True):
        site = train_step.sites[place]
        if born:
            sizes[site.range, site.backward] = sizes.get((site.range, site.backward), 0) + size
            whole, named = whole + size, named + size * bool(site.range)
    for range_ in RANGES:
        if range_ not in ("zero_grad", "rotary", "attention core"):
            assert sizes.get((range_, False)), range_
        if range_ not in ("zero_grad", "optimizer", "residual", "attention core"):  # a sum's gradient is handed on
            assert sizes.get((range_, True)), range_
    assert named / whole > 0.98
    softmax = next(s for s in train_step.sites if s.op == "_softmax_backward_data")
    assert softmax.frame.startswith("transformer.py:")
    assert (softmax.phase, softmax.backward) == ("backward", True)


def test_a_pass_without_a_backward_says_that_it_has_no_gradients() -> None:
    stages: list[str] = []
    report = record(stages, pass_="inference")
    assert report.saved == ()
    assert "no backward" in report.note
    assert [span.phase for span in report.phases] == ["forward", "clear"]
    assert not Timeline(report).by_category[CATEGORIES.index("gradients")].any()
    assert stages == ["building", "warm-up", "recording", "saved for backward", "predicting"]


def test_what_another_recording_left_is_no_memory_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave_garbage(stage: str) -> None:
        if stage == "recording":
            gc.disable()
            with CpuRecorder():  # the profiler remembers its size
                cycle: list[Any] = [torch.empty(10_240)]
            cycle.append(cycle)

    def collecting(*arguments: Any) -> None:
        gc.collect()
        run_phases(*arguments)

    run_phases = memory_record.run_phases
    monkeypatch.setattr(memory_record, "run_phases", collecting)
    try:
        report = memory_of(small_spec(pass_="backward"), leave_garbage)
    finally:
        gc.enable()
    assert report.peak_bytes == report.allocator_peak_bytes == max(live_totals(report))


def test_where_the_profiler_is_missing_the_tensors_are_recorded(
    monkeypatch: pytest.MonkeyPatch, train_step: MemoryReport
) -> None:
    monkeypatch.setattr(memory_record, "kineto_available", lambda: False)
    report = record(pass_="train-step")
    assert report.recorder == "tensors"
    assert report.allocator_peak_bytes is None
    assert "Counted are the results of operations" in report.note
    assert report.peak_bytes == max(live_totals(report))
    # Numbers that torch makes tensors of are seen by the allocator alone.
    assert report.peak_bytes == pytest.approx(train_step.peak_bytes, abs=64)
    assert Timeline(report).at(0).by_category == Timeline(train_step).at(0).by_category


def test_a_mark_tells_what_came_before_it() -> None:
    with CpuRecorder() as recorder:
        recorder.mark()
        first = torch.empty(1000)
        recorder.mark()
        address = first.untyped_storage().data_ptr()
        del first
        recorder.mark()
    recording = recorder.recording()
    assert [event[:2] for event in recording.events] == [(address, 4000), (address, -4000)]
    assert recording.marks == (0, 1, 2)


def entry(action: str, address: int, size: int) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1, "frames": []}


def test_cudas_history_is_counted_as_its_allocator_counts() -> None:
    trace = [
        entry("segment_alloc", 4096, 2**21),
        entry("alloc", 4096, 1000),
        entry("alloc", 8192, 1),
        entry("free_requested", 4096, 1000),
        entry("free_completed", 4096, 1000),
        entry("alloc", 2**30, 2**21 + 1),
    ]
    # The last one got a block with 3 units more than it asked for, too few to be split off.
    last = 2**21 + 512 + 3 * 512
    marks = [CudaMark(107, 10_000), CudaMark(110, 11_536), CudaMark(111, 11_536 + last)]
    blocks = [
        {"address": 100, "size": 512, "state": "active_allocated"},
        {"address": 612, "size": 512, "state": "inactive"},
    ]
    segments = [{"device": 0, "blocks": blocks}, {"device": 1, "blocks": [{**blocks[0], "address": 7}]}]
    recording = read_cuda(segments, trace, CudaMark(107, 10_000), marks)
    assert recording.events == (
        AllocatorEvent(4096, 1024),
        AllocatorEvent(8192, 512),
        AllocatorEvent(4096, -1000),
        AllocatorEvent(2**30, last),
    )
    assert recording.marks == (0, 3, 4)
    assert recording.live_before == {100: 512}


def test_cudas_recorder_reads_history_and_counts_and_keeps_the_snapshot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    history: list[dict[str, Any]] = []
    counts = {"events": 40, "bytes": 9_000}
    switched: list[Any] = []

    def snapshot() -> dict[str, Any]:
        block = {"address": 100, "size": 512, "state": "active_allocated"}
        return {"segments": [{"device": 0, "blocks": [block]}], "device_traces": [list(history)]}

    def stats(_device: object) -> dict[str, Any]:
        return {
            "allocation": {"all": {"allocated": counts["events"], "freed": 0}},
            "allocated_bytes": {"all": {"allocated": counts["bytes"]}},
        }

    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", stats)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", snapshot)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **asked: switched.append(asked))
    with CudaRecorder(torch.device("cuda:0")) as recorder:
        recorder.mark()
        history.append(entry("alloc", 4096, 700))
        counts.update(events=41, bytes=10_024)
        recorder.mark()
    assert switched == [{"stacks": "python"}, {"enabled": None}]
    assert recorder.recording() == Recording((AllocatorEvent(4096, 1024),), (0, 1, 1), {100: 512})
    recorder.save(tmp_path / "snapshot.pickle")
    assert pickle.loads((tmp_path / "snapshot.pickle").read_bytes()) == snapshot()


def test_an_allocation_belongs_to_the_operation_that_it_was_made_in() -> None:
    events = (
        AllocatorEvent(50, 64, "mm"),  # scratch space, at the address that the result then gets
        AllocatorEvent(50, -64),
        AllocatorEvent(50, 64, "mm"),
        AllocatorEvent(90, 8),  # between two operations
        AllocatorEvent(10, -32),
        AllocatorEvent(70, 16, "mul"),
    )
    recording = Recording(events, (0, 3, 5, 6), {10: 32, 11: 512})
    sites = [Site("mm", "a.py:1 f", "head", "forward"), Site("mul", "a.py:2 f", "loss", "loss")]
    operations = [Operation(1, 2, 0, 1, sites[0]), Operation(3, 4, 2, 3, sites[1])]
    records = [
        Allocation(32, Site(""), 0, 2, "parameters", TensorForm((8,), "float32"), address=10),
        Allocation(64, sites[0], 1, None, "activations", TensorForm((16,), "float32"), address=50),
        Allocation(16, sites[1], 3, None, "gradients", TensorForm((4,), "float32"), address=70),
    ]
    lives = join(recording, operations, records)
    found = [(life.bytes, life.category, life.born, life.died, life.site.op) for life in lives]
    assert found == [
        (32, "parameters", 0, 5, ""),
        (512, "temporary", 0, None, "held since warm-up"),
        (64, "temporary", 1, 2, "mm"),
        (64, "activations", 3, None, "mm"),
        (8, "temporary", 4, None, "mm"),
        (16, "gradients", 6, None, "mul"),
    ]
    assert lives[4].site.range == "head"
    assert TrackedTimeline(lives, 7, [("forward", 1)]).totals == (544, 608, 544, 608, 616, 584, 600)
    later = cut(lives, 7, [("forward", 4)])
    assert later.totals == (608, 616, 584, 600)
    assert later.begins == (("forward", 1),)
    fields = later.fields()
    assert fields["born"] == (0, 0, 0, 1, 3)
    assert fields["died"] == (2, -1, -1, -1, -1)
    assert [form.shape for form in fields["forms"]] == [(8,), (16,), (4,)]


def test_a_tensor_whose_free_is_not_seen_counts_until_the_next_moment_and_another_threads_is_in_the_peak() -> None:
    kept, copy, later = AllocatorEvent(1, 100), AllocatorEvent(2, 40), AllocatorEvent(3, 60)
    recording = Recording((kept, copy, later, AllocatorEvent(3, 0)), (1, 2, 4), {})  # The copy's free is lost
    assert [each.live for each in counted(recording)] == [100, 140, 140]
    found = without_lost_frees(counted(recording), [100, 100, 100])
    assert [each.live for each in found] == [100, 100, 100]
    assert [each.peak for each in found] == [100, 140, 160]
    recording = Recording((AllocatorEvent(1, 100),), (1,), {})
    assert without_lost_frees(counted(recording), [130]) == [(130, 130)]


def test_a_fake_tensor_of_the_compiler_has_no_bytes() -> None:
    """One that a compiled model left behind says that it is on the CPU."""
    with functorch_config.patch(fake_tensor_allow_unsafe_data_ptr_access=False), FakeTensorMode():
        left_behind = torch.empty(1000, 1000)
    report = record_rank_memory(ReportRequest(kind="memory", spec=bench_spec()), lambda _stage: None)
    assert left_behind.device.type == "cpu"
    assert all(sum(moment.by_category.values()) < 4_000_000 for moment in report.moments)


def test_a_step_alone_has_each_use_from_the_moment_when_it_comes_to_be() -> None:
    spec = bench_spec(pass_="train-step")
    report = record_rank_memory(ReportRequest(kind="memory", spec=spec), lambda _stage: None)
    found = {(each.step, each.moment): each.by_category for each in report.moments}
    parameters = found[0, "initialised"]["parameters"]
    assert {uses["parameters"] for uses in found.values()} == {parameters}
    gradients = [uses["gradients"] / parameters for (step, _), uses in found.items() if step == 1]
    assert gradients == [0, 1, 1], "from backward on"
    state = [uses["optimizer_state"] / parameters for (step, _), uses in found.items() if step == 1]
    assert state == [0, 0, pytest.approx(2, rel=1e-2)], "two moments of each parameter and its count of steps"
    assert {uses["communication"] for uses in found.values()} == {0}
    logits = 4 * spec.batch_size * spec.context_length * spec.vocab_size
    assert found[1, "after forward"]["activations"] > 2 * logits > found[1, "before optimizer"]["activations"]
