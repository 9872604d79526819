"""Measuring what a device does at best, in a child process."""

from __future__ import annotations

import msgspec

from cs336_tui.peaks import DevicePeak, PeakError
from cs336_tui.runner.child import PeakAnswer
from cs336_tui.runner.launcher import Launcher
from cs336_tui.spec import Precision


def measure_peak(launcher: Launcher, device: str, precision: Precision, threads: int | None = None) -> DevicePeak:
    """The device's peak in a precision; takes some seconds. Raises `PeakError`."""
    try:
        child = launcher.start_peak(device, precision, threads)
    except (OSError, EOFError) as error:
        raise PeakError(f"no process could be started: {error or type(error).__name__}") from None
    frames = child.frames()
    try:
        while not frames.at_end:
            for payload in frames.read():
                answer = msgspec.json.decode(payload, type=PeakAnswer)
                if answer.peak is None:
                    raise PeakError(answer.error or "no reason was given")
                return answer.peak
        raise PeakError("the process that measures ended early")
    finally:
        child.close()
