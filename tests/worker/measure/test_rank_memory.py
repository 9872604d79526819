"""Counts of one rank's memory that do not depend on when gloo's threads free a tensor."""

from __future__ import annotations

from cs336_tui.worker.measure.allocator_events import AllocatorEvent, Recording
from cs336_tui.worker.measure.rank_memory import counted, without_lost_frees


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
