"""Made reports of several ranks."""

from typing import Any

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.kernel_report import AllGather, KernelReport, RankTraffic
from cs336_tui.events.reports import RankMemoryReport, RankMoment
from tests.made_kernels import a_kernel_report
from tests.samples import a_spec

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
    uses = {"parameters": 10_000_000, "gradients": 10_000_000 if "optimizer" in moment else 0}
    uses |= {"optimizer_state": state if has_state else 0, "activations": 1_000_000}
    uses |= {"communication": 10_000_000, "buffers": 100_000}
    live = sum(uses.values()) + 3_000_000
    return RankMoment(
        rank=rank, step=step, moment=moment, by_category=uses, live_bytes=live, peak_bytes=live + 1_000_000
    )


ALL_GATHERS = (
    AllGather(module="embedding, head", pass_="forward", bytes=2_000_000, begin_ns=500_000, end_ns=1_600_000,
              alone_ns=1_100_000, ready_ns=100_000, waited_ns=1_500_000),
    AllGather(module="layers.0", pass_="backward", bytes=1_000_000, begin_ns=3_000_000, end_ns=3_750_000,
              alone_ns=500_000, ready_ns=4_000_000, waited_ns=0),
    AllGather(module="", pass_="", bytes=None, begin_ns=5_000_000, end_ns=5_300_000, alone_ns=300_000),
)  # fmt: skip


def a_traffic_report(ranks: int = 2, backend: Any = "auto", **changes: Any) -> KernelReport:
    """A step of 8 ms under fsdp2 whose first half computes; rank 1 has more of its communication beside it."""
    spec = a_spec(ranks=ranks, parallel="fsdp2", pass_="train-step", backend=backend)
    return a_kernel_report(spec, ranks=tuple(_traffic(rank, changes) for rank in range(ranks)))


def _traffic(rank: int, changes: dict[str, Any]) -> RankTraffic:
    overlapped = 1_000_000 if not rank else 2_000_000
    fields = {"rank": rank, "trace": f"/traces/rank{rank}.json.gz", "all_gathers": ALL_GATHERS}
    fields |= {"span_ns": 8_000_000, "compute_ns": 4_000_000, "communication_ns": 4_000_000}
    fields |= {"overlapped_ns": overlapped, "operations": {"gloo:all_gather": 3, "gloo:all_reduce": 2}}
    fields |= {"compute_over_time": (1.0,) * 30 + (0.0,) * 30}
    fields |= {"communication_over_time": (0.0,) * 20 + (1.0,) * 10 + (0.25,) * 20 + (0.0,) * 10}
    return RankTraffic(**(fields | changes))
