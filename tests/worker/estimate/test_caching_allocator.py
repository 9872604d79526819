"""Model of torch's caching allocator: the block that a request gets, and its size."""

from itertools import pairwise

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from cs336_tui.events.gpus import cublas_workspace_bytes
from cs336_tui.events.prediction import Allocation, Site, TensorForm, TrackedTimeline
from cs336_tui.worker.estimate.caching_allocator import (
    CachingAllocator,
    ExpandableAllocator,
    NoRoom,
    as_cached,
    reserved,
    run_in,
)
from cs336_tui.worker.estimate.predict import workspace_bytes
from tests.made_predictions import made_prediction
from tests.watching import small_spec

MIB = 2**20


@pytest.mark.parametrize(
    ("requested", "given_out"),
    [
        (1, 512),
        (513, 1024),
        (MIB - 1, MIB),
        (MIB + 1, MIB + 512),  # cut from 20 MiB
        (9 * MIB, 9 * MIB),
        (25 * MIB, 26 * MIB),  # what is left of its own segment is too small to be of use
        (10 * MIB, 10 * MIB),
        (19 * MIB + 512, 20 * MIB),
    ],
)
def test_the_first_request_of_a_size(requested: int, given_out: int) -> None:
    assert CachingAllocator().allocate(requested).size == given_out


def test_the_smallest_free_block_that_fits_is_taken_and_free_neighbours_join() -> None:
    allocator = CachingAllocator()
    large, small = allocator.allocate(40 * MIB), allocator.allocate(30 * MIB)
    allocator.free(large)
    allocator.free(small)
    assert allocator.allocate(29 * MIB).start == small.start
    assert allocator.allocate(29 * MIB).start == large.start
    assert allocator.reserved == 70 * MIB
    allocator = CachingAllocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    for block in (blocks[1], blocks[3], blocks[2], blocks[0]):
        allocator.free(block)
    assert allocator.allocate(20 * MIB).start == 0
    assert allocator.reserved == 20 * MIB


sizes = st.integers(1, 4000) | st.integers(1, 40 * MIB)


def test_an_expandable_segment_grows_by_pages_and_gives_back_those_of_which_nothing_is_used() -> None:
    allocator = ExpandableAllocator()
    used, free = allocator.allocate(25 * MIB), allocator.allocate(5 * MIB)
    assert (used.size, allocator.reserved) == (25 * MIB, 40 * MIB)
    allocator.free(free)
    assert allocator.allocate(30 * MIB).start == used.start + used.size
    assert allocator.reserved == 60 * MIB
    allocator = ExpandableAllocator(60 * MIB)
    first, _between, _last = (allocator.allocate(20 * MIB) for _ in range(3))
    allocator.free(first)
    allocator.release()
    assert allocator.reserved == 40 * MIB
    assert allocator.allocate(2 * MIB).start == first.start
    with pytest.raises(NoRoom) as failure:
        allocator.allocate(20 * MIB)
    assert failure.value.needed == 80 * MIB


@given(
    st.lists(st.tuples(sizes, st.integers(0, 5)), max_size=60), st.sampled_from((CachingAllocator, ExpandableAllocator))
)
def test_blocks_that_are_out_never_overlap(requests: list[tuple[int, int]], made: type[CachingAllocator]) -> None:
    allocator = made()
    out = []
    for requested, place in requests:
        block = allocator.allocate(requested)
        assert requested <= block.size <= requested + 511 + (MIB if made is CachingAllocator else 0)
        out.append(block)
        if place < len(out) - 1:
            allocator.free(out.pop(place))
        ends = sorted((block.start, block.start + block.size) for block in out)
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))
        assert not ends or made is ExpandableAllocator or ends[-1][1] <= allocator.reserved
    for block in out:
        allocator.free(block)
    allocator.release()
    assert allocator.reserved == 0


@given(st.lists(st.tuples(st.integers(MIB, 60 * MIB), st.integers(1, 6)), min_size=1, max_size=12), st.integers(0, 300))
@example([(8 * MIB, 4), (40 * MIB, 1), (20 * MIB, 3), (20 * MIB, 4), (24 * MIB, 3)], 10)
def test_steps_run_in_the_least_memory_and_above_it_but_where_they_do_not(
    lives: list[tuple[int, int]], above: int
) -> None:
    site = Site("add", range="residual", phase="forward")
    lives = [(size, min(events, len(lives) + 1 - born)) for born, (size, events) in enumerate(lives, 1)]
    made = [Allocation(512, site, 0)] * 2  # the batch
    made += [Allocation(size, site, born, born + events) for born, (size, events) in enumerate(lives, 1)]
    timeline = TrackedTimeline(made, len(made) + 2, [("forward", 1)])
    found = reserved(timeline)
    assert run_in(timeline, found.least).needed == 0
    assert run_in(timeline, found.least - 2 * MIB).needed or found.least - 2 * MIB < max(timeline.totals)
    limit = found.least + above * 2 * MIB
    expected = any(first <= limit < end for first, end in found.unfit)
    assert bool(run_in(timeline, limit).needed) == expected


def test_memory_that_is_given_back_too_late_does_not_do_though_less_would() -> None:
    prediction = made_prediction(small_spec(), reserved_bytes=20, unfit=((24, 28), (30, 31)))
    assert [prediction.needed_of(room) for room in (10, 20, 24, 27, 28, 30, 31)] == [20, 20, 28, 28, 20, 31, 20]


def test_a_timeline_keeps_everything_but_its_sizes() -> None:
    site = Site("add", range="residual", phase="forward")
    first = Allocation(100, site, 0, 2, "activations", TensorForm((25,), "float32"))
    second = Allocation(25 * MIB, site, 1, form=TensorForm((25 * MIB // 4,), "float32"))
    nothing = Allocation(0, site, 3, form=TensorForm((0,), "float32"))
    cached = as_cached(TrackedTimeline([first, second, nothing], 4, [("forward", 1)]))
    assert cached.allocations == (replace(first, bytes=512), replace(second, bytes=26 * MIB), nothing)
    assert cached.totals == (512, 512 + 26 * MIB, 26 * MIB, 26 * MIB)
    assert cached.phases[0].peak_bytes == 512 + 26 * MIB


def test_workspaces_of_cublas_by_torchs_own_word_first_where_it_uses_that_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    small, large = 8_519_680, 32 * MIB
    by_torch = {
        (7, 0): (small, small, small), (8, 9): (small, small, small), (9, 0): (large, large, large),
        (10, 0): (small, small, large), (10, 3): (small, small, large), (12, 0): (small, small, large),
    }  # fmt: skip
    for capability, expected in by_torch.items():
        found = tuple(cublas_workspace_bytes(capability, f"{version}.0+cu126") for version in ("2.6", "2.11", "2.12"))
        assert found == expected, capability
    assert cublas_workspace_bytes((10, 0), "") == large, "the newest torch where none is known"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")
    assert cublas_workspace_bytes((9, 0), "2.6.0") == 8 * MIB + 128 * 1024
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(torch._C, "_cuda_getCublasWorkspaceSize", lambda: 5 * MIB, raising=False)
    assert workspace_bytes((8, 0)) == 8_519_680, "CUDA is not in use"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert (workspace_bytes((8, 0)), workspace_bytes((9, 0))) == (5 * MIB, 32 * MIB)
