"""Measures a device's peak in a child process, at once or when no cell is being timed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec

from cs336_tui.config.spec import Precision
from cs336_tui.events.peaks import DevicePeak, PeakError
from cs336_tui.runner.child import PeakAnswer
from cs336_tui.runner.launcher import Child, Launcher, StartError


def measure_peak(
    launcher: Launcher,
    device: str,
    precision: Precision,
    threads: int | None = None,
    *,
    started: Callable[[Child], object] = lambda _: None,
) -> DevicePeak:
    """The device's peak in a precision; takes some seconds. Raises `PeakError`. `started` is given the child, so that
    another thread can end it."""
    try:
        child = launcher.start_peak(device, precision, threads)
    except StartError as error:
        raise PeakError(str(error)) from None
    with contextlib.closing(child):
        started(child)
        for payload in child.messages():
            answer = msgspec.json.decode(payload, type=PeakAnswer)
            if answer.peak is None:
                raise PeakError(answer.error or "no reason was given")
            return with_others(answer.peak, child.process.pid)
        raise PeakError("the process that measures ended early")


def with_others(peak: DevicePeak, pid: int | None) -> DevicePeak:
    """The peak with the number of other processes on its GPU, beside that of `pid`, as NVML sees them now."""
    if peak.uuid is None:
        return peak
    from cs336_tui.runner.device.gpu import GpuMonitor

    monitor = GpuMonitor()
    monitor.follow(peak.uuid)
    sample, _ = monitor.sample(time.monotonic(), pid, fresh=True)
    monitor.close()
    seen = sample.other_processes if sample else None
    return msgspec.structs.replace(peak, others=None if seen is None else len(seen))


Tell = Callable[[DevicePeak | PeakError], object]
STOPPED = "it was stopped"


class PeakRequests:
    """A queue of peaks to measure: filled and stopped from any thread, worked off by the one that runs cells."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._waiting: deque[tuple[str, Precision, int | None, Tell]] = deque()
        self._changing = threading.Lock()
        self._child: Child | None = None
        self._stopped = False

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, device: str, precision: Precision, threads: int | None, tell: Tell) -> None:
        """Queue a peak; `tell` is given the result, on the thread that measures or stops."""
        self._waiting.append((device, precision, threads, tell))

    def measure_all(self) -> None:
        """Measure all that wait, in some seconds each."""
        while True:
            with self._changing:
                if not self._waiting:
                    return
                self._stopped = False
                device, precision, threads, tell = self._waiting.popleft()
            found: DevicePeak | PeakError
            try:
                found = measure_peak(self._launcher, device, precision, threads, started=self._started)
            except PeakError as error:
                found = PeakError(STOPPED) if self._stopped else error
            finally:
                with self._changing:
                    self._child = None
            tell(found)

    def stop(self) -> None:
        """End the measurement under way and forget those that wait."""
        with self._changing:
            forgotten, self._waiting = self._waiting, deque()
            self._stopped = True
            self._end()
        for *_, tell in forgotten:
            tell(PeakError(STOPPED))

    def _started(self, child: Child) -> None:
        with self._changing:
            self._child = child
            if self._stopped:
                self._end()

    def _end(self) -> None:
        if self._child is not None:
            with contextlib.suppress(ValueError):  # it has just ended by itself
                self._child.process.kill()
