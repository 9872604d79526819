"""Cells with given step times and device samples, and their verdicts."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.steady_state import Condition, synthetic
from cs336_tui.analysis.judgement import Judgement, VerdictName
from cs336_tui.events.environment import GpuSample, HostSample
from cs336_tui.events.events import DeviceSampled, Event, StageChanged, StepsTimed
from cs336_tui.session.states import CellState
from tests.samples import START, a_spec, cell_end, cell_start, session_start, state_of

QUIET = HostSample(cpu=0.5, cpu_count=4, child_cores=1.9, load_1m=2.0, steal=0.0)
GPU = GpuSample(sm_clock_mhz=1980, clock_reasons=(), energy_j=0.0, other_processes=())
AT = START + 11
"""Time at which a made cell begins to measure."""


def sample(host: HostSample = QUIET, gpu: GpuSample | None = GPU, at: float = AT, why: str | None = None) -> Event:
    return DeviceSampled(at=at, host=host, gpu=gpu, why=why)


def events_of_cell(
    times_s: Sequence[float],
    warmup_s: Sequence[float] = (),
    *,
    samples: Iterable[Event] = (),
    before: Iterable[Event] = (),
    host_share: float = 0.3,
    spec: dict[str, Any] | None = None,
    **end: Any,
) -> list[Event]:
    """A session of one cell, with device samples within its window and `before` it."""

    def timed(kind: str, times: Sequence[float]) -> list[Event]:
        host = tuple(host_share * time_s for time_s in times)
        phases = {"forward": tuple(0.9 * time_s for time_s in times)}
        steps = StepsTimed(at=AT, cell=0, kind=kind, first=0, times_s=tuple(times), phases_s=phases, host_s=host)
        return [steps] if times else []

    return [
        *session_start([a_spec(**({"warmup_steps": len(warmup_s), "measure_steps": len(times_s)} | (spec or {})))]),
        *cell_start(0),
        StageChanged(at=AT - 0.3, cell=0, stage="warm-up"),
        *timed("warm-up", warmup_s),
        *before,
        StageChanged(at=AT, cell=0, stage="measuring"),
        *samples,
        *timed("measured", times_s),
        StageChanged(at=AT + 60, cell=0, stage="finishing"),
        cell_end(0, **({"num_alloc_retries": 0, "measured_for_s": math.fsum(times_s), "cpu_wait_s": 0.0} | end)),
    ]


def a_cell(times_s: Sequence[float], warmup_s: Sequence[float] = (), **more: Any) -> CellState:
    return state_of(events_of_cell(times_s, warmup_s, **more)).cells[0]


def series(truth: str, steps: int = 60, noise: float = 0.005, seed: int = 1) -> list[float]:
    return synthetic(Condition(truth, noise, 0.0), seed, steps).tolist()


FLAT = series("flat")
ON_CPU = {"device": "cpu", "threads": 4}


def evidence(judgement: Judgement, name: VerdictName) -> tuple[bool | None, str]:
    (check,) = (check for check in judgement.checks if check.name == name)
    return check.holds, check.evidence


SERIES: tuple[VerdictName, ...] = (
    "steady", "still-warming", "drifting", "two-levels", "periodic", "quantised", "outliers", "too-few-steps",
)  # fmt: skip
VERDICTS = (*SERIES, "throttled", "contended", "launch-bound", "allocator-retry", "slowed-by-settings")


def host(**changes: Any) -> Event:
    return sample(HostSample(**({name: getattr(QUIET, name) for name in QUIET.__struct_fields__} | changes)))
