"""The memory tracker on real and on meta tensors, and queries of its timeline."""

from inspect import getfile
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cs336_tui.events.prediction import CATEGORIES, TensorForm, TrackedTimeline
from cs336_tui.worker.estimate.tracker import MODEL_FILES, MemoryTracker
from cs336_tui.worker.workload.building import Workload, build
from cs336_tui.worker.workload.compile_and_capture import run_whole
from cs336_tui.worker.workload.ranges import name_parts
from tests.worker.measure.cells import small_spec

SPEC = small_spec(pass_="train-step")
KIB = torch.float32.itemsize * 256


def track(workload: Workload, tracker: MemoryTracker) -> TrackedTimeline:
    """One step of a workload that has run a step before."""
    name_parts(workload.model, tracker.range)
    step = workload.step(SPEC)
    run_whole(step)
    tracker.claim_cell(workload)
    with tracker:
        for phase in step.phases:
            tracker.phase(phase)
            step.run(phase)
            tracker.claim("gradients", workload.gradients())
    return tracker.timeline()


@pytest.fixture(scope="module")
def timeline() -> TrackedTimeline:
    return track(build(SPEC, torch.device("cpu")), MemoryTracker())


@pytest.mark.parametrize("changes", [{}, {"workload": "attention"}, {"workload": "norm", "num_heads": 1}])
def test_allocations_of_every_part_are_told_from_its_own_file(changes: dict[str, Any]) -> None:
    model = build(small_spec(**changes), torch.device("cpu")).model
    ours = {getfile(type(part)) for part in model.modules() if type(part).__module__.startswith("cs336_tui.")}
    assert ours
    assert ours <= MODEL_FILES


def test_every_storage_is_seen_from_its_birth_to_its_end_without_data_alike() -> None:
    with MemoryTracker() as tracker:
        tracker.phase("forward")
        kept = torch.zeros(256)
        torch.zeros(512)  # goes at once
        view = kept.view(2, 128)
        del kept
        again = view + 1
        del view
    totals = tracker.timeline().totals
    assert totals == (0, KIB, 3 * KIB, KIB, 2 * KIB, KIB)
    (born,) = tracker.timeline().live_at(5)
    assert (born.address, born.form) == (again.data_ptr(), TensorForm((2, 128), "float32"))
    with MemoryTracker() as tracker:
        tracker.phase("forward")
        x = torch.zeros(256, device="meta")
        del x
    assert tracker.timeline().totals == (0, KIB, 0)


def test_operations_in_place_allocate_nothing_and_what_was_made_unseen_cannot_be_claimed() -> None:
    x, unseen = torch.zeros(256), torch.zeros(256)
    with MemoryTracker() as tracker:
        tracker.claim("parameters", [x])
        tracker.phase("optimizer")
        x.add_(1)
        unseen.add_(1)
        unseen.view(16, 16)
    assert tracker.timeline().totals == (KIB,)
    tracker = MemoryTracker()
    tracker.phase("forward")
    with pytest.raises(ValueError, match="outside of the tracker"):
        tracker.claim("gradients", [torch.zeros(3)])


def test_the_parts_of_composite_operations_are_seen_under_inference_mode_too() -> None:
    a, b = torch.ones(2, 3, 4).transpose(1, 2), torch.ones(4, 3, 3)[:2]

    def operations() -> list[str]:
        with MemoryTracker() as tracker:
            tracker.phase("forward")
            out = a @ b @ b[:, 0, :, None].expand(2, 3, 5)
        del out
        return [allocation.site.op for allocation in tracker.timeline().allocations]

    usual = operations()
    with torch.inference_mode():
        assert operations() == usual
    assert "bmm" in usual


def test_gradients_are_added_up_in_place_as_without_a_tracker() -> None:
    """Two gradients of one tensor: the engine reuses the first, which a dispatch mode keeps it from."""

    def run() -> Tensor:
        x = torch.full((256,), 0.5, requires_grad=True)
        h = x * 2
        (h.sin() + h.cos() + h.tanh()).backward(torch.ones(256))
        return x.grad

    plain = run()
    with MemoryTracker() as tracker:
        tracker.phase("backward")
        tracked = run()
    assert torch.equal(tracked, plain)
    added = [a for a in tracker.timeline().allocations if a.site.op == "add" and a.site.backward]
    assert not added


def test_categories_add_up_at_every_event_and_phases_cover_all_after_the_first(timeline: TrackedTimeline) -> None:
    for event in range(timeline.events):
        by_category = timeline.by_category(event)
        assert tuple(by_category) == CATEGORIES
        assert sum(by_category.values()) == timeline.totals[event]
    assert [span.phase for span in timeline.phases] == ["zero_grad", "forward", "loss", "backward", "optimizer"]
    assert timeline.phases[0].first == 1
    assert [span.end for span in timeline.phases[:-1]] == [span.first for span in timeline.phases[1:]]
    assert timeline.phases[-1].end == timeline.events
    assert max(span.peak_bytes for span in timeline.phases) == max(timeline.totals)


def test_a_gradient_counts_from_its_birth_and_backward_takes_what_forward_leaves(
    timeline: TrackedTimeline,
) -> None:
    backward = timeline.phase("backward")
    parameters = timeline.by_category(0)["parameters"]
    assert timeline.by_category(0)["gradients"] == parameters
    assert timeline.by_category(backward.first - 1)["gradients"] == 0
    growing = [timeline.by_category(event)["gradients"] for event in range(backward.first, backward.end)]
    assert growing == sorted(growing)
    assert growing[-1] == parameters
    loss = timeline.phase("loss")
    end_of_forward = timeline.by_category(loss.first - 1)
    assert end_of_forward["activations"] > 0
    assert end_of_forward["temporary"] == 0
    logits_and_loss = 4 * (SPEC.tokens_per_step * SPEC.vocab_size + 1)
    assert timeline.by_category(backward.end - 1)["activations"] == logits_and_loss


def test_every_allocation_has_a_range_backward_s_that_of_forward_with_its_frame(timeline: TrackedTimeline) -> None:
    sites = {(a.site.op, a.site.backward): a.site for a in timeline.allocations}
    forward, backward = sites["_softmax", False], sites["_softmax_backward_data", True]
    assert forward.range == backward.range == "softmax"
    assert forward.frame == backward.frame
    assert forward.frame.startswith("transformer.py:")
    assert forward.frame.endswith(" weigh")
    assert (forward.phase, backward.phase) == ("forward", "backward")
    assert sites["silu_backward", True].range == "feed-forward"
    assert sites["embedding_dense_backward", True].range == "embedding"
    assert sites["_log_softmax_backward_data", True].range == "loss"
    assert sites["_log_softmax_backward_data", True].frame.startswith("passes.py:")
    seed = "ones_like"  # the loss's own gradient, which no operation of the model asked for
    unnamed = {a.site.op for a in timeline.allocations if a.born and not a.site.range}
    assert unnamed <= {seed}
    assert {a.site.range for a in timeline.allocations if a.site.phase == "optimizer"} == {"optimizer"}


def test_flops_are_counted_where_they_are_done() -> None:
    tracker = MemoryTracker()
    x, w = torch.ones(2, 3, requires_grad=True), torch.ones(5, 3, requires_grad=True)
    with tracker:
        tracker.phase("forward")
        with tracker.range("head"):
            y = F.linear(x, w)
        tracker.phase("backward")
        y.sum().backward()
    assert tracker.flops == {"forward": 2 * 2 * 3 * 5, "backward": 2 * 2 * 2 * 3 * 5}
    assert dict(tracker.flops_by_range) == {"head": (60, 120)}


def test_the_operation_that_raises_is_remembered_with_what_lived_then() -> None:
    tracker = MemoryTracker()

    def work() -> None:
        tracker.phase("forward")
        with tracker.range("head"):
            held = torch.zeros(256)
            torch.zeros(3) @ held

    with tracker, pytest.raises(RuntimeError):
        work()
    assert (tracker.failure.site.op, tracker.failure.site.range) == ("dot", "head")
    assert sum(a.bytes for a in tracker.timeline().live_at(tracker.failure.event)) == KIB + 12
