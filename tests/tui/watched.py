"""Driving the app in tests: a bench that plays a script, and waiting for what the screen shows."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from textual._context import active_app
from textual.app import App
from textual.pilot import Pilot

from cs336_tui.config.order import rounds_of
from cs336_tui.config.spec import CellSpec, Precision
from cs336_tui.config.sweep import Sweep
from cs336_tui.events import events as ev
from cs336_tui.events.environment import Environment
from cs336_tui.events.peaks import DevicePeak, PeakError, WantedPeak
from cs336_tui.events.reports import ReportKind
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.runner.queue import CellQueue, Tell, WaitingPeak, WaitingReport
from cs336_tui.runner.resume import left_of
from cs336_tui.runner.trust import Import, Trust, check_log
from cs336_tui.session.log import LogReader, SessionRecorder, Sink
from cs336_tui.session.state import fold
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.widgets.lines import Line
from tests.samples import DEMO_LOG, ENVIRONMENT, START, write_log
from tests.watching import PATIENCE_S

_T = TypeVar("_T")
"""A session of synthetic data, shaped like one on an H100: no such run took place."""
WIDE = (120, 40)
SMALL = (80, 24)


class ScriptedBench:
    """Replaces the real bench: a real queue and no process. Each cell ends when `go_on` is set or `finish_one` is
    called. `outcomes` holds the status of cells that do not end ok."""

    def __init__(self, sink: Sink, log: Path | None = None, environment: Environment = ENVIRONMENT) -> None:
        recorder = SessionRecorder(Path("/nowhere"), "2026-11-20T14-03-42-ab12", sink)
        self.sink, self.listen, self.environment = recorder.pass_on, recorder.listen, environment
        self.log_path = log or recorder.path
        self.ddof, self.timeout_s, self.skip_after_oom = 1, None, True
        self.trust = Trust()
        self.prepared = self.closed = False
        self.go_on = threading.Event()
        self.refuse: Exception | None = None
        self.refuse_sweep: Exception | None = None
        self.commands: list[str] = []
        self.outcomes: dict[int, ev.Status] = {}
        self.may_stop = threading.Event()
        """Cleared by a test in which a stop is slow."""
        self.may_stop.set()
        self.predicted: list[tuple[CellSpec, ...]] = []
        """Cells of each request for predictions."""
        self.capability: tuple[int, int] | None = None
        """That of the GPU elsewhere that was asked about last."""
        self.reports = 0
        self.report_ends = ev.ReportFinished(at=START + 2, report=0, status="failed", error="no report was given")
        """Last event of a report that is not stopped."""
        self.peaks_measured: list[tuple[str, Precision]] = []
        self.peak: DevicePeak | PeakError = PeakError("no peak was given")
        """Result of every peak measurement asked for."""
        self._permits = threading.Semaphore(0)
        self._stop = StopSignal()
        self.queue = CellQueue(self.sink, self._stop)
        self._in_parts: threading.Event | None = None

    def prepare(self) -> None:
        self.prepared = True

    def probe(self) -> Environment:
        self.sink([ev.EnvironmentRead(at=START, environment=self.environment)])
        return self.environment

    def resolve(self, sweep: Sweep) -> Sweep:
        if self.refuse_sweep:
            raise self.refuse_sweep
        return sweep.with_devices(self.environment.resolve(sweep.devices))

    def lanes_of(self, sweep: Sweep) -> tuple[ev.Lane, ...]:
        del sweep
        return ()

    def add(
        self,
        cells: Sequence[tuple[CellSpec, int]],
        command: str | None = None,
        reports: tuple[str, ...] = (),
        *,
        lanes: Sequence[ev.Lane] = (),
        in_turns: bool = False,
    ) -> None:
        del lanes
        if self.refuse:
            raise self.refuse
        if not self.commands:
            self.sink([ev.SessionStarted(at=START, schema=ev.SCHEMA, session=self.log_path.stem, app="0")])
        self.commands.append(command or "")
        self.queue.add(cells, command=command, ddof=self.ddof, reports=reports, in_turns=in_turns)

    predictor = None
    """Nothing is predicted for a race."""

    def record(self, event: ev.Event) -> None:
        self.sink([event])

    @contextmanager
    def in_parts(self, stopped: threading.Event) -> Iterator[None]:
        self._in_parts = stopped
        yield
        self._in_parts = None

    def run_ab(self, a: CellSpec, b: CellSpec, rounds: int, command: str | None = None, *, first: int = 1) -> None:
        self.add(rounds_of(a, b, rounds, first), command, in_turns=True)
        self.work()

    def stop_running(self) -> None:
        self.queue.stop_running()

    def resume(self, *, trusted: bool, show: Callable[[Sequence[Import]], object]) -> tuple[int, ...]:
        if self.refuse:
            raise self.refuse
        history = list(LogReader(self.log_path))
        state = fold(history)
        went_on: list[ev.Event] = [ev.SessionResumed(at=time.time(), app="0")]
        stopped = [cell.cell for cell in state.cells.values() if cell.status == "cancelled"]
        went_on += [ev.CellRequeued(at=time.time(), cell=cell) for cell in stopped]
        fold(went_on, state)
        show(check_log("s", left_of(state), trusted=trusted))
        self.sink(history)
        self.sink(went_on)
        self.queue.restore(state)
        return tuple(state.waiting)

    def ask_report(self, kind: ReportKind, spec: CellSpec, cell: int | None = None) -> None:
        if self.refuse:
            raise self.refuse
        self.queue.ask(WaitingReport(kind, spec, cell))

    def ask_peak(self, wanted: WantedPeak, tell: Tell) -> None:
        self.queue.ask(WaitingPeak(wanted, tell))

    def predict(
        self, specs: Sequence[CellSpec], elsewhere: Sequence[CellSpec] = (), capability: tuple[int, int] | None = None
    ) -> None:
        self.predicted.append((*elsewhere, *specs))
        self.capability = capability

    def work(self, refuse: Callable[[CellSpec], str] = lambda _: "") -> None:
        del refuse
        if not self.queue.claim():
            return
        while (taken := self.queue.take()) is not None:
            if isinstance(taken, WaitingPeak):
                self.peaks_measured.append((taken.wanted.device, taken.wanted.precision))
                self._wait()
                taken.tell(self.peak)
                continue
            if isinstance(taken, WaitingReport):
                self._report(taken)
                continue
            cell = taken.cell
            self.sink([ev.CellStarted(at=START + 1, cell=cell, pid=1)])
            self._wait()
            self.may_stop.wait(10)
            status = "cancelled" if self._stop.is_set() else self.outcomes.get(cell, "ok")
            steps = [a_step(cell, 0.1532)] if status == "ok" else []
            self.sink([*steps, ev.CellFinished(at=START + 3, cell=cell, status=status)])

    def _report(self, asked: WaitingReport) -> None:
        number, self.reports = self.reports, self.reports + 1
        self.sink([ev.ReportStarted(at=START + 1, report=number, kind=asked.kind, spec=asked.spec, cell=asked.cell)])
        self.sink([ev.ReportStage(at=START + 1, report=number, stage="warm-up")])
        self._wait()
        self.may_stop.wait(10)
        ended = self.report_ends
        if self._stop.is_set():
            ended = ev.ReportFinished(at=START + 2, report=number, status="cancelled")
        self.sink([msgspec.structs.replace(ended, report=number)])

    def _wait(self) -> None:
        while not (self.go_on.is_set() or self._stop.is_set() or self._permits.acquire(timeout=0.005)):
            pass

    def finish_one(self) -> None:
        """Let the running cell or report end, or the next that runs."""
        self._permits.release()

    def cancel(self) -> bool:
        if self._in_parts is not None:
            self._in_parts.set()
        return self.queue.cancel()

    def close(self) -> None:
        self.closed = True
        self.queue.close()


class Benches:
    """Makes the benches of a `kind` that an app asks for, and keeps them for the test; `made` holds all, attributes are
    the first's."""

    def __init__(self, kind: Callable[[Sink, Path | None], ScriptedBench] = ScriptedBench) -> None:
        self.made: list[Any] = []
        self._kind = kind

    def __call__(self, sink: Sink, log: Path | None = None) -> Any:
        self.made.append(self._kind(sink, log))
        return self.made[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made[0], name)


def a_step(cell: int, time_s: float, first: int = 0, kind: str = "measured") -> ev.StepsTimed:
    return ev.StepsTimed(at=START + 2, cell=cell, kind=kind, first=first, times_s=(time_s,))


def demo(until: Callable[[ev.Event], bool] | None = None) -> list[ev.Event]:
    """Events of the demo session up to and including the first that satisfies `until`."""
    events: list[ev.Event] = []
    for event in LogReader(DEMO_LOG):
        events.append(event)
        if until and until(event):
            break
    return events


def in_the_middle(event: ev.Event) -> bool:
    """Six measured steps into the sixth cell of the demo session."""
    return isinstance(event, ev.StepsTimed) and (event.cell, event.kind, event.first) == (5, "measured", 5)


def log_of(events: Iterable[ev.Event], folder: Path) -> Path:
    return write_log(folder / "session.jsonl", events)


def replaying(events: Iterable[ev.Event], folder: Path, **options: Any) -> Cs336App:
    """An app that plays a log of these events without waiting."""
    return Cs336App(replay=log_of(events, folder), speed=0, **options)


def is_ready(app: Cs336App) -> bool:
    """True if the app has read its machine and its themes, or has played its log to the end."""
    read = app.live.source is None or app.live.state.environment is not None
    return len(app.themes.names) > 1 and read and not app.run_in_progress


@asynccontextmanager
async def on_screen(
    app: Cs336App, seen: str | Callable[[Cs336App], bool] = is_ready, size: tuple[int, int] = WIDE, **options: bool
) -> AsyncIterator[tuple[Cs336App, Pilot[None]]]:
    """An app in a terminal, from when its screen shows the text, or this holds of it; at once if empty."""
    async with app.run_test(size=size, **options) as pilot:
        if seen:
            await until(pilot, seen if isinstance(seen, str) else lambda _: seen(app))
        yield app, pilot


def screen_text(app: Cs336App) -> str:
    """Text of the terminal's screen, rows joined by newlines."""
    return "\n".join("".join(s.text for s in strip) for strip in app.screen._compositor.render_strips())


LOOK_S, BUSY_S = 0.004, 0.0002
"""Seconds between two looks, and of work between them from which on an app is busy."""


async def idle(min_sleep: float = 0.0, max_sleep: float = 1) -> None:
    """Textual's `wait_for_idle` by five times as many looks, and surer: nothing may wait for its turn in the event
    loop, as in a process that got no core for a while, nor for the next frame."""
    began, loop = time.monotonic(), asyncio.get_running_loop()
    while (waited_s := time.monotonic() - began) < max_sleep:
        worked_s = time.process_time()
        await asyncio.sleep(LOOK_S)
        worked_s = time.process_time() - worked_s
        waits = loop._ready or frame_waits(active_app.get())  # type: ignore[attr-defined]
        if worked_s < BUSY_S and waited_s >= min_sleep and not waits:
            return


def frame_waits(app: App[Any]) -> bool:
    """True if a layout, a repaint or a call after it is still to come."""
    screen = app.screen_stack[-1] if app.screen_stack else None
    flags = "_layout_required _scroll_required _repaint_required _dirty_widgets _callbacks".split()
    return screen is not None and any(getattr(screen, flag) for flag in flags)


async def until(pilot: Pilot[None], seen: str | Callable[[str], bool]) -> str:
    """Let the app work until its screen shows the text (or satisfies the predicate); the screen."""
    app = pilot.app
    assert isinstance(app, Cs336App)
    wanted = (lambda text: seen in text) if isinstance(seen, str) else seen
    give_up_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at:
        await pilot.pause(0.01)
        if len(app.screen_stack) == 1:
            app.paint()
            await pilot._wait_for_screen()
            await idle()
            app.screen._on_timer_update()
        text = screen_text(app)
        if wanted(text):
            return text
    raise AssertionError(f"{seen!r} did not appear; the screen was:\n{screen_text(app)}")


async def press(pilot: Pilot[None], *keys: str, seen: str | Callable[[str], bool]) -> str:
    """Press these keys, and let the app work `until` its screen shows what they bring."""
    await pilot.press(*keys)
    return await until(pilot, seen)


def nothing_in_background() -> bool:
    """True if no thread works on what the screen shows."""
    return all(thread.name != "cs336-background" for thread in threading.enumerate())


async def comes(pilot: Pilot[None], seen: Callable[[], _T | None]) -> _T:
    """Let an app, of whatever kind, work until this holds, and return it."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not (found := seen()):
        assert time.monotonic() < give_up_at, "it did not come"
        await pilot.pause(0.01)
    return found


def text(lines: list[Line]) -> str:
    """Lines of a pane as they are read, joined by newlines."""
    return "\n".join("".join(span.text for span in spans) for spans in lines)


def absent(shown: str, *words: str) -> list[str]:
    """Those of the words that are not in what is shown."""
    return [each for each in words if each not in shown]
