"""Made reports of several ranks."""

from __future__ import annotations

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.memory_report import RankMemoryReport, RankMoment

MOMENTS = (
    (0, "initialised"),
    *((step, moment) for step in (1, 3) for moment in ("after forward", "before optimizer", "after optimizer")),
)


def a_rank_memory_report(spec: CellSpec) -> RankMemoryReport:
    """Of 10 MB of parameters; sharded by anything but ddp, the state of rank 1 is 2 MB larger than that of rank 0."""
    return RankMemoryReport(
        spec=spec,
        device_name="cpu",
        torch="2.13.0",
        recorder="CPU profiler",
        moments=tuple(_moment(spec, rank, *moment) for rank in range(spec.ranks) for moment in MOMENTS),
    )


def _moment(spec: CellSpec, rank: int, step: int, moment: str) -> RankMoment:
    has_state = step > 1 or moment == "after optimizer"
    state = 20_000_000 if spec.parallel == "ddp" else 9_000_000 + 2_000_000 * rank
    uses = {
        "parameters": 10_000_000,
        "gradients": 10_000_000 if "optimizer" in moment else 0,
        "optimizer_state": state if has_state else 0,
        "buffers": 100_000,
    }
    live = sum(uses.values()) + 3_000_000
    return RankMoment(
        rank=rank, step=step, moment=moment, by_category=uses, live_bytes=live, peak_bytes=live + 1_000_000
    )
