"""Runs the cells of a job on its machine, and begins its log."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cs336_tui import __version__
from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.events.codec import to_line
from cs336_tui.events.environment import Environment
from cs336_tui.runner.jobs.folder import write_file
from cs336_tui.runner.jobs.job import JobCell, JobRequest
from cs336_tui.runner.lanes import lanes_of, pool_of
from cs336_tui.session.lock import writer_of
from cs336_tui.session.log import LogError
from cs336_tui.session.state import fold

if TYPE_CHECKING:
    from cs336_tui.runner.bench import Bench
    from cs336_tui.session.recorder import Sink

_LOOK_S = 5.0
_LOOKS = 3
"""A request that is not there so many times is withdrawn."""


def begin_log(log: Path, request: JobRequest) -> bool:
    """Begin the log of a job, unless a former run of it has; its cells wait in it under the session's numbers. True if
    the log is that of a run on another machine, whose lock may be taken over. Raises `LogError`."""
    if log.exists():
        writer = writer_of(log)
        return writer is not None and writer.host != socket.gethostname()
    started = ev.SessionStarted(at=time.time(), schema=ev.SCHEMA, session=request.session, app=__version__)
    events: list[ev.Event] = [started, *queued(request)]
    try:
        write_file(log, b"".join(map(to_line, events)))  # a job that is killed here leaves no half log
    except OSError as error:
        raise LogError(f"{log}: {error.strerror}") from None
    return False


def work_here(request: JobRequest, bench: Bench, recall: Sink, *, trusted: bool = False) -> None:
    """Run the cells of a job, or those that its log has on a further node, on this machine; events so far go to
    `recall`. Raises `LogError`, `SpecError` and, unless their code is `trusted`, `Untrusted`."""
    history: list[ev.Event] = []

    def remember(events: Sequence[ev.Event]) -> None:
        history.extend(events)
        recall(events)

    take_over = begin_log(bench.log_path, request)
    waiting = bench.resume(remember, take_over=take_over, checked=False, trusted=trusted)
    cells = fold(history).cells
    specs = [cells[cell].asked_spec for cell in waiting]
    bench.queue.use(lanes_here(request.lanes, specs, bench.probe()))
    if request.predict:
        bench.predict_now(specs)
    bench.work()


def queued(request: JobRequest) -> Iterator[ev.CellsQueued]:
    """The cells of a job as they are queued: in its order, neighbours at once."""
    for _, group in itertools.groupby(enumerate(request.cells), _run_of):
        cells = [cell for _, cell in group]
        yield ev.CellsQueued(
            at=time.time(),
            first=cells[0].cell,
            specs=tuple(cell.spec for cell in cells),
            ddof=request.ddof,
            repeats=tuple(cell.repeat for cell in cells),
            reports=cells[0].reports,
        )


def _run_of(numbered: tuple[int, JobCell]) -> tuple[int, tuple[str, ...]]:
    """A key that is equal for neighbours whose numbers follow one another and who want the same reports."""
    place, cell = numbered
    return cell.cell - place, cell.reports


def lanes_here(lanes: int, specs: Sequence[CellSpec], environment: Environment) -> tuple[ev.Lane, ...]:
    """So many lanes of this machine for these cells, 0 for one on each device; none if they run one after the other.
    Raises `SpecError`."""
    on_gpus = any(spec.device.startswith("cuda") for spec in specs)
    return lanes_of(lanes or "auto", pool_of(("cuda" if on_gpus else "cpu",), environment), specs)


@contextmanager
def while_wanted(path: Path, stop: Callable[[], object]) -> Iterator[None]:
    """While entered, call `stop` once the request is withdrawn: its file is gone."""
    over = threading.Event()

    def look() -> None:
        missing = 0
        while missing < _LOOKS and not over.wait(_LOOK_S):
            missing = 0 if path.exists() else missing + 1
        if not over.is_set():
            stop()

    thread = threading.Thread(target=look, name="request", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
