"""Measures a device's peak in a child process."""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial

import msgspec

from cs336_tui.config.spec import Precision
from cs336_tui.events.peaks import DevicePeak, PeakError
from cs336_tui.runner.child import PeakAnswer, peak
from cs336_tui.runner.launcher import Launcher, StartError
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.runner.queue import STOPPED


def measure_peak(
    launcher: Launcher, device: str, precision: Precision, threads: int | None = None, *, stop: StopSignal | None = None
) -> DevicePeak:
    """The device's peak in a precision; takes some seconds. Raises `PeakError`, also when `stop` is set meanwhile."""
    try:
        child = launcher.start_answers("peak", partial(peak, device, precision, threads))
    except StartError as error:
        raise PeakError(str(error)) from None
    with closing(child):
        for payload in child.messages(stop=stop):
            answer = msgspec.json.decode(payload, type=PeakAnswer)
            if answer.peak is None:
                raise PeakError(answer.error or "no reason was given")
            return with_others(answer.peak, child.process.pid)
        raise PeakError(STOPPED if stop and stop.is_set() else "the process that measures ended early")


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
