"""Sessions with a grid of finished cells, for tests of tables and figures."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from cs336_tui.analysis.merge import Result, merge
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.environment import Environment
from cs336_tui.events.events import CellsQueued, EnvironmentRead, Event, ModelBuilt, SessionStarted
from cs336_tui.session.state import SessionState
from tests.samples import ENVIRONMENT, START, a_spec, cell_end, cell_start, session_start, state_of, steps

SMALL: dict[str, Any] = {"size": "small", "d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
MEDIUM: dict[str, Any] = {"size": "medium", "d_model": 1024, "d_ff": 4096, "num_layers": 24, "num_heads": 16}

MAGIC = {"svg": b"<?xml", "pdf": b"%PDF-", "png": b"\x89PNG\r\n\x1a\n"}
"""First bytes of a figure's file, by format."""
BASE_MS = {"small": 10.0, "medium": 30.0}
PASS_FACTOR = {
    "inference": 0.9,
    "forward": 1.0,
    "forward+loss": 1.1,
    "backward": 2.0,
    "forward+backward": 3.0,
    "train-step": 4.0,
}


def usual_times(spec: CellSpec) -> list[float]:
    """Measured step times in seconds, with a little spread; the first is cold without a warm-up."""
    mean = BASE_MS[spec.size] * PASS_FACTOR[spec.pass_] / 1e3 * spec.context_length / 128
    mean *= 0.5 if spec.precision == "bf16-mixed" else 1.0
    mean *= 20 if spec.device == "cpu" else 1.0
    times = [mean * (1 + 0.01 * (-1) ** step) for step in range(spec.measure_steps)]
    return times if spec.warmup_steps else [mean * 10, *times[1:]]


def _usual_end(spec: CellSpec) -> dict[str, Any]:
    return {"peak_allocated_bytes": 10**9 * spec.context_length // 128}


def grid_events(
    specs: Sequence[CellSpec],
    *,
    session: str = "sample",
    environment: Environment = ENVIRONMENT,
    times: Callable[[CellSpec], list[float]] = usual_times,
    oom: Iterable[int] = (),
    repeats: Sequence[int] = (),
    ends: Callable[[CellSpec], dict[str, Any]] = _usual_end,
) -> list[Event]:
    """A session in which every cell finished, those in `oom` without a step."""
    events: list[Event] = [
        SessionStarted(at=START, schema=2, session=session, app="0.1.0"),
        EnvironmentRead(at=START + 1, environment=environment),
        CellsQueued(at=START + 2, first=0, specs=tuple(specs), command="cs336-tui bench", repeats=tuple(repeats)),
    ]
    for cell, spec in enumerate(specs):
        events += cell_start(cell)
        if cell in set(oom):
            events.append(cell_end(cell, "oom", error="CUDA out of memory", stage="building", step=0))
            continue
        events += steps(cell, [0.4] * spec.warmup_steps_of(0.4), times(spec))
        events.append(cell_end(cell, **ends(spec)))
    return events


def grid(specs: Sequence[CellSpec], **more: Any) -> SessionState:
    return state_of(grid_events(specs, **more))


def merged(*states: SessionState) -> tuple[Result, ...]:
    return merge([(state.started.session if state.started else "", state) for state in states])


def by(sizes: Iterable[dict[str, Any]] = (SMALL, MEDIUM), **choices: Iterable[Any]) -> list[CellSpec]:
    """The product of sizes and choices, as specs."""
    found: list[dict[str, Any]] = [dict(size) for size in sizes]
    for name, values in choices.items():
        found = [fields | {name: value} for fields in found for value in values]
    return [a_spec(**fields) for fields in found]


def moved_session() -> SessionState:
    """Two equal cells; before the second the session went on another machine."""
    specs = (a_spec(), a_spec())
    other = msgspec.structs.replace(
        ENVIRONMENT,
        torch="2.14.0",
        devices=(msgspec.structs.replace(ENVIRONMENT.devices[1], label="NVIDIA A100", uuid="GPU-1"),),
    )
    events = [*session_start(specs), *cell_start(0), *steps(0, (), (0.1, 0.1)), cell_end(0)]
    events += [EnvironmentRead(at=START + 15, environment=other)]
    return state_of([*events, *cell_start(1), *steps(1, (), (0.2, 0.2)), cell_end(1)])


def with_in_force(events: Iterable[Event], **changes: Any) -> list[Event]:
    """The events, in which each model was built with these settings in force."""
    change = msgspec.structs.replace
    return [
        change(each, in_force=change(each.in_force, **changes)) if isinstance(each, ModelBuilt) else each
        for each in events
    ]
