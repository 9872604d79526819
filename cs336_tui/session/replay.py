"""Playing a log back at the pace at which it was written, or faster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from cs336_tui.events.events import Event, Notice
from cs336_tui.session.log import TORN, LogReader

LONGEST_PAUSE_S = 2.0
"""A pause between runs is cut to this, so that nobody watches nothing happen."""

_SLICE_S = 0.1


class Pace:
    """How fast a replay goes; may be changed from another thread while it plays. Speed 0 means at once."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        self.paused = False

    def wait(self, log_s: float, stop: threading.Event) -> bool:
        """Let `log_s` seconds of the log pass; true when `stop` was set meanwhile."""
        while self.paused or (log_s > 0.0 and self.speed):
            here_s = _SLICE_S if self.paused else min(log_s / self.speed, _SLICE_S)
            if stop.wait(here_s):
                return True
            if not self.paused:
                log_s -= here_s * self.speed
        return stop.is_set()


def replay(
    path: Path,
    sink: Callable[[Sequence[Event]], None],
    *,
    speed: float = 1.0,
    stop: threading.Event | None = None,
    pace: Pace | None = None,
) -> None:
    """Hand the log's events to `sink`, `speed` times as fast as they came; 0 means at once. A `pace` replaces `speed`.

    Blocks until the end or until `stop` is set. A log whose last line was cut ends with a notice that says so.
    Raises `LogError` for a log that cannot be read, after handing on what came before the damage.
    """
    stop = stop or threading.Event()
    pace = pace or Pace(speed)
    reader = LogReader(path)
    last_at: float | None = None
    batch: list[Event] = []
    try:
        for event in reader:
            pause = min(event.at - last_at, LONGEST_PAUSE_S) if last_at is not None else 0.0
            if (pause > 0.0 and pace.speed) or pace.paused:
                if batch:
                    sink(batch)
                    batch = []
                if pace.wait(pause, stop):
                    return
            last_at = event.at
            batch.append(event)
        if reader.torn:
            batch.append(Notice(at=last_at or 0.0, text=f"{path.name}: {TORN}"))
    finally:
        if batch and not stop.is_set():
            sink(batch)
