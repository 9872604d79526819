"""Causes of running out of memory: recorded in a second attempt if that is safe, else predicted."""

from typing import Any

import pytest
import torch

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.prediction import CATEGORIES
from cs336_tui.events.reports import OomReport, ReportRequest
from cs336_tui.worker.estimate.predict import rehearse
from cs336_tui.worker.measure.oom import explain_oom, may_try, predicted_moment
from tests.worker.measure.cells import at_most, linux_only, small_spec

GB = 10**9


def asked(spec: CellSpec, **more: Any) -> ReportRequest:
    return ReportRequest(kind="oom", spec=spec, **more)


def explain(request: ReportRequest, stages: list[str] | None = None) -> OomReport:
    stages = [] if stages is None else stages
    report = explain_oom(request, stages.append)
    assert sum(report.by_category.values()) == report.live_bytes
    assert set(report.by_category) == set(CATEGORIES)
    return report


@linux_only
def test_the_blocks_of_a_second_attempt_are_those_that_were_seen() -> None:
    # Scores of 16 x 16 x 2048 x 2048 floats are 4 GiB; the parameters are next to nothing.
    spec = small_spec(arch="gelu-learned", num_heads=16, context_length=2048, batch_size=16)
    with at_most(2 * 1024**3):
        report = explain(asked(spec, failed_phase="forward", failed_request_bytes=2**32))
    assert report.observed
    assert (report.phase, report.request_bytes) == ("forward", 2**32)
    assert report.live_bytes < 0.1 * GB
    largest = report.largest[0]
    assert (largest.category, largest.shape) == ("buffers", (2048, 2048))
    hidden = [block for block in report.largest if block.site.range == "QKV projections"]
    assert hidden
    assert all(block.site.frame.startswith("transformer.py:") for block in hidden)
    assert len(report.largest) == 20
    assert report.prediction.peak_bytes > 8 * GB


@linux_only
def test_memory_may_run_out_in_backward_with_gradients_and_activations_live_or_in_building() -> None:
    # Logits, their logarithmic softmax and its gradient are 0.49 GB each; there is no room for a fourth.
    spec = small_spec(vocab_size=60_000, context_length=512, batch_size=4, pass_="train-step")
    with at_most(1_750_000_000):
        report = explain(asked(spec, failed_phase="backward"))
    assert report.observed
    assert (report.phase, report.request_bytes) == ("backward", 4 * 512 * 60_000 * 4)
    assert report.by_category["activations"] > 2 * report.request_bytes
    assert {block.site.range for block in report.largest[:3]} == {"head", "loss"}
    with at_most(2 * 1024**3):
        report = explain(asked(small_spec(d_model=1024, vocab_size=2**30), failed_request_bytes=2**42))
    assert (report.phase, report.request_bytes, report.observed) == ("building", 2**42, True)


def test_a_second_attempt_that_fits_says_so_and_predicts() -> None:
    stages: list[str] = []
    report = explain(asked(small_spec(), failed_phase="backward"), stages)
    assert stages == ["predicting", "second attempt", "looking for the moment"]
    assert not report.observed
    assert "A second attempt fitted" in report.note
    assert report.live_bytes == report.prediction.peak_bytes


def test_a_cell_that_the_kernel_ended_is_not_tried_again() -> None:
    stages: list[str] = []
    spec = small_spec(d_model=4608, d_ff=12288, num_layers=8, num_heads=36, vocab_size=10_000, context_length=512)
    report = explain(asked(spec, capacity_bytes=12 * GB), stages)
    assert "second attempt" not in stages
    assert not report.observed
    assert "Not tried again" in report.note
    assert report.phase == "forward"
    assert report.request_bytes
    assert 0.9 * 12 * GB < report.live_bytes <= 12 * GB < report.live_bytes + report.request_bytes
    assert report.largest[0].category == "parameters"


@pytest.mark.parametrize(
    ("device", "known", "safe"),
    [
        ("cuda:0", {}, True),
        ("cuda:0", {"capacity_bytes": 1}, True),
        ("cpu", {}, False),
        ("cpu", {"capacity_bytes": 100}, False),
        ("cpu", {"failed_phase": "forward"}, True),
        ("cpu", {"failed_request_bytes": 7}, True),
        ("cpu", {"failed_phase": "forward", "capacity_bytes": 100}, True),
        ("cpu", {"failed_phase": "forward", "capacity_bytes": 98}, False),
        ("mps", {"failed_phase": "forward", "capacity_bytes": 98}, False),
    ],
)
def test_a_host_is_asked_for_memory_again_only_where_it_has_enough(
    device: str, known: dict[str, Any], safe: bool
) -> None:
    assert may_try(asked(small_spec(), **known), torch.device(device), needed_bytes=99) is safe


def test_the_moment_is_the_first_allocation_without_room() -> None:
    timeline = rehearse(small_spec(pass_="forward+backward")).timeline
    peak = max(timeline.totals)
    moment, why = predicted_moment(timeline, peak - 1)
    assert (why, moment.phase) == ("", "backward")
    assert moment.request_bytes
    assert moment.live_bytes + moment.request_bytes >= peak
    assert moment.live_bytes <= peak - 1
    assert moment.live_bytes == sum(moment.by_category.values())


def test_what_lives_between_two_steps_may_be_too_much_already_or_only_the_optimizer_s_state() -> None:
    timeline = rehearse(small_spec(pass_="train-step")).timeline
    at_begin = timeline.by_category(0)
    parameters, buffers = at_begin["parameters"], at_begin["buffers"]
    moment, why = predicted_moment(timeline, parameters // 2)
    assert moment.phase == "building"
    assert moment.request_bytes
    assert moment.live_bytes <= parameters // 2 < moment.live_bytes + moment.request_bytes
    assert {category for category, live in moment.by_category.items() if live} <= {"parameters"}
    assert "only the first step can begin" in why
    moment, _ = predicted_moment(timeline, parameters + buffers + 64)
    assert moment.phase == "forward"
    assert moment.by_category["optimizer_state"] == moment.by_category["gradients"] == 0
    spec = small_spec(pass_="train-step", d_model=64, d_ff=256, context_length=2, batch_size=1)
    timeline = rehearse(spec).timeline
    moment, _ = predicted_moment(timeline, timeline.totals[0] - 1)
    assert moment.phase == "optimizer"
    assert moment.by_category["optimizer_state"] == 0
    assert moment.by_category["gradients"] > 0
