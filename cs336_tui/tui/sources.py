"""Where the app's events come from: a bench that runs cells, or a log that is played again.

Each works on threads of its own and talks to the app by messages only.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.message import Message

from cs336_tui.events import Event
from cs336_tui.session.log import LogError
from cs336_tui.session.replay import Pace, replay
from cs336_tui.spec import CUSTOM_SIZE, RunSpec, SpecError
from cs336_tui.sweep import Sweep
from cs336_tui.tui.messages import RunEnded, Trouble

if TYPE_CHECKING:
    from cs336_tui.runner.bench import Bench

Sink = Callable[[Sequence[Event]], None]
Post = Callable[[Message], object]

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Speeds of a replay that the keys go through."""


class LiveSource:
    """Runs sweeps on a bench, one at a time, and never blocks its caller."""

    def __init__(self, bench: Bench, post: Post) -> None:
        self._bench, self._post = bench, post
        self._closing = threading.Lock()
        self._stop_wanted = threading.Event()
        # The bench starts processes that inherit standard error; Textual's stand-in for it has no file descriptor.
        with contextlib.redirect_stderr(sys.__stderr__):
            bench.prepare()

    @property
    def log_path(self) -> Path:
        return self._bench.log_path

    def begin(self) -> None:
        """Get ready to run cells and ask what the machine offers; the answer comes as an event."""
        _thread("probe", self._probe)

    def run(self, sweep: Sweep, *, ddof: int, timeout_s: float | None) -> None:
        """Run the sweep's cells; `RunEnded` is posted when they are over."""
        self._bench.ddof, self._bench.timeout_s = ddof, timeout_s
        self._stop_wanted.clear()
        _thread("run", lambda: self._run(sweep))

    def cancel(self) -> None:
        """Stop the run, also when it still waits for the machine to be read."""
        self._stop_wanted.set()
        self._bench.cancel()

    def close(self) -> None:
        """End the run, its processes and the log; blocks up to 2 s. Safe to call twice and from any thread."""
        with self._closing:
            self._bench.close()

    def _probe(self) -> None:
        try:
            self._bench.probe()
        except Exception as error:  # the person must hear of it, whatever it was
            self._post(Trouble(f"this machine could not be examined: {error}"))

    def _run(self, sweep: Sweep) -> None:
        error: str | None = None
        try:
            resolved = self._bench.resolve(sweep)
            if not self._stop_wanted.is_set():
                self._bench.run(resolved.cells(), resolved.command(self._bench.ddof))
        except (LogError, SpecError) as refused:
            error = str(refused)
        except Exception as broken:  # a run must end on the screen too
            error = f"the run broke off: {type(broken).__name__}: {broken}"
        self._post(RunEnded(error))


class ReplaySource:
    """Plays a session log; its pace can be changed while it plays."""

    def __init__(self, path: Path, sink: Sink, post: Post, speed: float) -> None:
        self.path, self.pace = path, Pace(speed)
        self._sink, self._post = sink, post
        self._stop = threading.Event()
        self._at_end = False

    @property
    def mode(self) -> str:
        """How the replay goes, in words."""
        if self._at_end:
            return "replay, at its end"
        return "replay paused" if self.pace.paused else f"replay ×{self.pace.speed:g}"

    def begin(self) -> None:
        _thread("replay", self._play)

    def close(self) -> None:
        self._stop.set()

    def change_speed(self, by: int) -> None:
        """The next faster (1) or slower (-1) speed."""
        nearest = min(range(len(SPEEDS)), key=lambda index: abs(SPEEDS[index] - self.pace.speed))
        self.pace.speed = SPEEDS[min(max(nearest + by, 0), len(SPEEDS) - 1)]

    def _play(self) -> None:
        error: str | None = None
        try:
            replay(self.path, self._sink, stop=self._stop, pace=self.pace)
        except LogError as unreadable:
            error = str(unreadable)
        self._at_end = True
        if not self._stop.is_set():
            self._post(RunEnded(error))


def sweep_of(specs: Sequence[RunSpec]) -> Sweep:
    """The choices whose product these cells are, to show what a replayed run was about."""

    def each(read: Callable[[RunSpec], Any]) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(map(read, specs)))

    first = specs[0]
    return Sweep(
        sizes=each(lambda spec: spec.size),
        dims=first.dims if first.size == CUSTOM_SIZE else None,
        vocab_size=first.vocab_size,
        contexts=each(lambda spec: spec.context_length),
        batches=each(lambda spec: spec.batch_size),
        passes=each(lambda spec: spec.pass_),
        precisions=each(lambda spec: spec.precision),
        devices=each(lambda spec: spec.device),
        warmups=each(lambda spec: spec.warmup_steps),
        steps=first.measure_steps,
        edition=first.edition,
        arch=first.arch,
        sync=first.sync,
        seed=first.seed,
        threads=first.threads,
    )


def _thread(name: str, target: Callable[[], None]) -> None:
    # Daemons, so that a stuck one cannot keep the app from ending; what matters is ended by `close`.
    threading.Thread(target=target, name=f"cs336-{name}", daemon=True).start()
