"""Ctrl-C, a hang-up and SIGTERM during a headless run."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType


class StopOnSignal:
    """While entered, Ctrl-C, a hang-up or SIGTERM calls `stop`; a second one raises KeyboardInterrupt.

    `stop` returns whether there was something to stop; when not, the first signal raises at once.
    """

    def __init__(self, stop: Callable[[], bool]) -> None:
        self._stop = stop
        self.received: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopOnSignal:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal gave it takes back

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        again = self.received is not None
        self.received = number
        if again or not self._stop():
            raise KeyboardInterrupt
