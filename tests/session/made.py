"""Sessions of cells with given step times, for tests of comparisons and tables."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from cs336_tui.analysis.merge import Result, merge
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.environment import DeviceInfo, Environment
from cs336_tui.events.events import SCHEMA, CellsQueued, EnvironmentRead, Event, SessionAnnotated, SessionStarted
from cs336_tui.session.state import SessionState
from tests.samples import ENVIRONMENT, LAPTOP, START, a_spec, cell_end, cell_start, state_of, steps

OLD_LAPTOP = msgspec.structs.replace(LAPTOP, torch="2.9.0")
OTHER_GPU = msgspec.structs.replace(
    ENVIRONMENT,
    host="other-box",
    devices=(DeviceInfo(name="cuda:0", label="NVIDIA A100", precisions=("fp32", "bf16-mixed")),),
)


class Cell(NamedTuple):
    """A cell and its outcome; `status` None: it never started. `on`: its machine, if not the session's."""

    spec: CellSpec
    measured_s: Sequence[float] = ()
    warmup_s: Sequence[float] = ()
    status: str | None = "ok"
    repeat: int = 1
    on: Environment | None = None
    peak: int | None = 1_000_000_000


def cell(measured_s: Sequence[float] = (), *, status: str | None = "ok", **spec: Any) -> Cell:
    """A cell of `a_spec` with these changes."""
    return Cell(a_spec(**spec), measured_s, status=status)


def events_of(
    *cells: Cell, environment: Environment = ENVIRONMENT, ddof: int = 1, name: str = "", session: str = "sample"
) -> Iterator[Event]:
    """The events of a session with these cells."""
    yield SessionStarted(at=START, schema=SCHEMA, session=session, app="0.1.0")
    if name:
        yield SessionAnnotated(at=START, name=name)
    yield EnvironmentRead(at=START + 1, environment=environment)
    specs, repeats = tuple(each.spec for each in cells), tuple(each.repeat for each in cells)
    yield CellsQueued(at=START + 2, first=0, specs=specs, ddof=ddof, repeats=repeats)
    for number, each in enumerate(cells):
        if each.status is None:
            continue
        yield EnvironmentRead(at=START + 3, environment=each.on or environment)
        yield from cell_start(number)
        yield from steps(number, each.warmup_s, each.measured_s)
        yield cell_end(number, each.status, peak_allocated_bytes=each.peak, peak_rss_bytes=2_000_000_000)


def session_of(*cells: Cell, **more: Any) -> SessionState:
    return state_of(events_of(*cells, **more))


def results_of(*cells: Cell, **more: Any) -> tuple[Result, ...]:
    """The results of one session, titled ``one``."""
    return merge([("one", session_of(*cells, **more))])
