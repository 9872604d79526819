"""Peaks on the screen: having them measured between cells, and telling what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cs336_tui.events.environment import Environment
from cs336_tui.events.peaks import DevicePeak, PeakError, PeakKey, peak_key
from cs336_tui.tui.live_source import WantedPeak

if TYPE_CHECKING:
    from cs336_tui.tui.app import Cs336App


class PeakView(NamedTuple):
    """What the Roofline tab has to know of peaks."""

    find: Callable[[PeakKey], DevicePeak | None]
    version: int
    """Another one when another peak is known."""
    here: Environment | None
    """The machine that peaks can be measured on now; None where this app measures none."""
    progress: str = ""
    """How far measuring is, in words."""
    problem: str = ""
    """Why a peak could not be measured."""


class PeakDesk:
    """Serves the Roofline tab of `app`."""

    def __init__(self, app: Cs336App) -> None:
        self._app = app
        self._waiting: list[WantedPeak] = []
        self._asked_at = 0.0
        self._problem = ""

    @property
    def view(self) -> PeakView:
        app = self._app
        can = app.live.source is not None and not app.replaying
        return PeakView(
            app.judging.peaks.get,
            app.judging.version,
            app.live.state.environment if can else None,
            self._progress,
            self._problem,
        )

    @property
    def _progress(self) -> str:
        if not self._waiting:
            return ""
        first = self._waiting[0]
        if self._app.live.state.running_cell is not None:
            return f"{first.device} {first.precision}: waits for the running cell"
        more = f", {len(self._waiting) - 1} to follow" if len(self._waiting) > 1 else ""
        return f"measuring {first.device} {first.precision} ... {time.monotonic() - self._asked_at:.0f} s{more}"

    def ask(self, wanted: Sequence[WantedPeak]) -> bool:
        """Have these measured before the next cell; False when that cannot be asked for."""
        source = self._app.live.source
        if source is None or self._app.replaying or self._waiting or not wanted:
            return False
        self._waiting, self._asked_at, self._problem = list(wanted), time.monotonic(), ""
        source.measure_peaks(wanted, self._told)
        return True

    def _told(self, wanted: WantedPeak, found: DevicePeak | PeakError) -> None:
        """On whichever thread measured."""
        self._app.call_later(partial(self._take, wanted, found))

    def _take(self, wanted: WantedPeak, found: DevicePeak | PeakError) -> None:
        self._waiting = [each for each in self._waiting if each != wanted]
        self._asked_at = time.monotonic()
        environment = self._app.live.state.environment
        if isinstance(found, PeakError):
            self._problem = f"{wanted.device} {wanted.precision}: {found}"
        elif environment is not None:
            # By the threads that were in force, so that it is never taken for a peak with others.
            key = peak_key(environment, wanted.device, wanted.precision, found.threads)
            self._app.judging.take_peak(key, found)
            if found.disturbance:
                self._problem = f"{wanted.device} {wanted.precision}: not kept, {found.disturbance}"
        self._app.refresh_panes()
