"""Folding: the events of a cell's ranks become those of one cell, whose steps are as slow as the slowest rank."""

import pytest

from cs336_tui.events.events import CellFinished, Event, Notice, StageChanged, StepsTimed
from cs336_tui.runner.ranks import NODE_LOST, RankFold


def steps(first: int, *times_s: float, kind: str = "measured") -> StepsTimed:
    half = tuple(time_s / 2 for time_s in times_s)
    phases_s = {"forward": half, "backward": half}
    return StepsTimed(at=1.0, cell=3, kind=kind, first=first, times_s=times_s, phases_s=phases_s)


def ended(status: str = "ok", at: float = 9.0, **what: object) -> CellFinished:
    return CellFinished(at=at, cell=3, status=status, **what)


def fold(*told: tuple[int, Event], ranks: int = 2) -> tuple[RankFold, list[Event]]:
    found = RankFold(3, ranks)
    return found, [event for rank, event in told for event in found.add(rank, event)]


def test_a_step_is_as_long_as_on_its_slowest_rank_and_has_its_phases():
    _, (event,) = fold((0, steps(0, 1.0, 4.0)), (1, steps(0, 3.0, 2.0)))
    assert event.times_s == (3.0, 4.0)
    assert event.phases_s == {"forward": (1.5, 2.0), "backward": (1.5, 2.0)}
    assert event.rank_times_s == ((1.0, 4.0), (3.0, 2.0))


def test_the_gradient_sync_of_each_rank_is_kept_beside_that_of_the_slowest():
    """Rank 1 comes to it last and waits for none: its 1 s is communication, the 3 s of rank 0 are mostly waiting."""
    several = [
        StepsTimed(at=1.0, cell=3, kind="measured", first=0, times_s=(total_s,), phases_s={"gradient sync": (sync_s,)})
        for total_s, sync_s in ((5.0, 3.0), (4.9, 1.0))
    ]
    _, (event,) = fold(*enumerate(several))
    assert event.phases_s == {"gradient sync": (3.0,)}
    assert event.rank_sync_s == ((3.0,), (1.0,))
    assert fold((0, steps(0, 1.0)), (1, steps(0, 2.0)))[1][0].rank_sync_s == ()


def test_steps_of_a_rank_that_is_ahead_wait_for_the_others():
    _, found = fold((0, steps(0, 1.0, 2.0, 3.0)), (1, steps(0, 1.5)), (1, steps(1, 1.0, 1.0)))
    assert [(event.first, event.times_s) for event in found] == [(0, (1.5,)), (1, (2.0, 3.0))]
    assert found[1].rank_times_s == ((2.0, 3.0), (1.0, 1.0))


def test_the_cell_is_at_the_stage_of_its_slowest_rank():
    building, warm_up = (StageChanged(at=1.0, cell=3, stage=stage) for stage in ("building", "warm-up"))
    _, found = fold((0, building), (0, warm_up), (1, building))
    assert [event.stage for event in found] == ["building"]


def test_notices_are_passed_on_at_once_and_one_that_each_rank_tells_once():
    first, second, other = (Notice(at=at, text=text) for at, text in ((1.0, "a"), (2.0, "a"), (3.0, "b")))
    assert fold((0, steps(0, 1.0)), (0, first), (1, second), (1, other))[1] == [first, other]


def test_the_end_of_all_has_the_largest_peak_and_each_ranks():
    found, _ = fold(
        (0, steps(0, 1.0, 3.0)),
        (1, steps(0, 2.0, 2.0)),
        (0, ended(peak_allocated_bytes=10, remarks=("a",))),
        (1, ended(peak_allocated_bytes=30, remarks=("a", "b"))),
    )
    end = found.end()
    assert (end.status, end.peak_allocated_bytes, end.rank_peak_bytes) == ("ok", 30, (10, 30))
    assert end.remarks == ("a", "b")
    assert (end.skew.n, end.skew.mean_s, end.skew.max_s) == (2, 1.0, 1.0)
    assert (end.summary.n, end.summary.mean_s) == (2, 2.5)


def test_no_bytes_allocated_are_a_ranks_peak_too():
    found, _ = fold(
        (0, ended(peak_allocated_bytes=0, peak_rss_bytes=7)), (1, ended(peak_allocated_bytes=None, peak_rss_bytes=7))
    )
    assert found.end().rank_peak_bytes == (0, 7)


LOST = {"at": 5.0, "error": "RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:4"}
KILLED = {"at": 6.0, "error": "the process was ended by SIGKILL"}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(
    ("ends", "status", "error"),
    [
        ((ended("failed", **LOST), ended("killed", **KILLED)), "killed", f"rank 1: {KILLED['error']}"),
        ((ended("killed", **KILLED), ended("oom", at=5.0, error="no room")), "oom", "rank 1: no room"),
        ((ended("cancelled"), ended("cancelled")), "cancelled", None),
        ((ended("cancelled", at=6.0), ended("failed", **LOST)), "cancelled", None),  # which lost the stopped one
    ],
)
def test_the_rank_that_failed_first_is_named_and_not_those_that_lost_it(
    order: tuple[int, int], ends: tuple[CellFinished, CellFinished], status: str, error: str | None
):
    found, _ = fold(*((rank, ends[rank]) for rank in order))
    assert found.has_failed
    assert (found.end().status, found.end().error) == (status, error)


def test_a_rank_that_failed_is_no_longer_where_the_others_are():
    """It finishes while they go on to their steps."""
    found, told = fold(
        (0, StageChanged(at=1.0, cell=0, stage="measuring")),
        (1, StageChanged(at=2.0, cell=0, stage="measuring")),
        (1, StageChanged(at=3.0, cell=0, stage="finishing")),
        (0, steps(0, 1.0)),
        (0, steps(1, 1.0)),
        (1, ended("failed", error="CUDA error: an illegal memory access was encountered")),
    )
    assert [event.stage for event in told if isinstance(event, StageChanged)] == ["measuring"]
    assert found.end().error == "rank 1: CUDA error: an illegal memory access was encountered"


def test_a_lost_node_is_to_blame_whoever_told_first():
    folded = RankFold(0, 3, ("n1", "n1", "n2"))
    told = [(0, "failed", "Connection closed by peer"), (1, "killed", "SIGKILL"), (2, "killed", f"{NODE_LOST}: silent")]
    for at, (rank, status, error) in enumerate(told):
        assert not list(folded.add(rank, ended(status, at=float(at), error=error)))
    end = folded.end()
    assert (end.status, end.error) == ("killed", f"rank 2 on n2: {NODE_LOST}: silent")
    assert end.rank_nodes == ("n1", "n1", "n2")
    assert end.remarks == ("its ranks ran on 2 nodes: n1 (2), n2 (1)",)
