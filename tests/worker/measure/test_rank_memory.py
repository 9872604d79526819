"""Counts of one rank's memory that do not depend on when gloo's threads free a tensor."""

from __future__ import annotations

import pytest

from cs336_tui.events.reports import ReportRequest
from cs336_tui.worker.measure.cell_memory import AllocatorEvent, Recording
from cs336_tui.worker.measure.rank_memory import counted, record_rank_memory, without_lost_frees
from tests.watching import small_spec


def test_a_tensor_whose_free_is_not_seen_counts_until_the_next_moment() -> None:
    kept, copy, later = AllocatorEvent(1, 100), AllocatorEvent(2, 40), AllocatorEvent(3, 60)
    recording = Recording((kept, copy, later, AllocatorEvent(3, 0)), (1, 2, 4), {})  # The copy's free is lost

    assert [each.live for each in counted(recording)] == [100, 140, 140]
    found = without_lost_frees(counted(recording), [100, 100, 100])
    assert [each.live for each in found] == [100, 100, 100]
    assert [each.peak for each in found] == [100, 140, 160]


def test_a_tensor_that_another_thread_allocated_is_part_of_the_peak() -> None:
    recording = Recording((AllocatorEvent(1, 100),), (1,), {})

    (found,) = without_lost_frees(counted(recording), [130])
    assert found.live == found.peak == 130


def test_a_step_alone_has_each_use_from_the_moment_when_it_comes_to_be() -> None:
    spec = small_spec(pass_="train-step")
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
