"""Summarises the device and host samples taken while a cell measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from cs336_tui.events.environment import GpuProcess, GpuSample, HostSample
from cs336_tui.events.events import DeviceSampled, Stage

_Value = TypeVar("_Value")
AFTER_S = 2.0
"""Seconds after the window within which a list of the GPU's processes still counts."""
_LAST = 8  # energy readings kept beside the first: the last may come after the window, before its end is known


class Window(msgspec.Struct):
    """The time of measuring, Unix seconds; None while it has not begun or ended."""

    began_at: float | None = None
    ended_at: float | None = None


class Surroundings(msgspec.Struct):
    """Sums up the samples of one cell's life, taken in order, with the cell's own GPU: a cell may run for days. Of
    several ranks the GPU is all of theirs together (`together`)."""

    window: Window = msgspec.field(default_factory=Window)
    samples: int = 0
    """Taken within the window."""
    clock_before_mhz: int | None = None
    """SM clock in the last sample before the window."""
    clock_after_mhz: int | None = None
    """SM clock in the last sample of the window, else in the first after it."""
    lowest_clock_mhz: int | None = None
    why: str | None = None
    """The latest sample's reason for missing measurements."""
    persistence_mode: bool | None = None
    reasons_known: int = 0
    """Samples of the window with clock-event reasons."""
    reasons: dict[str, int] = {}
    """Number of samples of the window with each clock-event reason."""
    ranks_of: dict[str, tuple[int, ...]] = {}
    """Ranks on whose GPUs each reason was seen, of several."""
    others_known: int = 0
    """Samples of the window with a list of the GPU's other processes that was read within it."""
    others_stale: int = 0
    """Samples of the window with a list that was read before it."""
    others: dict[int, GpuProcess] = {}
    """Other processes seen on the GPU within the window, by PID."""
    load_1m: float | None = None
    """The highest of the window."""
    cpu_count: int | None = None
    busy_cores: float | None = None
    """Cores in use by all processes, on average over the window's samples."""
    other_cores: float | None = None
    """Those of them that neither the cell's processes used nor those of its neighbours."""
    beside_cores: float | None = None
    """Cores that its neighbours in other lanes used, on average over the window's samples that tell."""
    other_cores_around: float | None = None
    """As `other_cores`, in the first sample after the window: since the sample before it."""
    steal: float | None = None
    """Mean share of all cores' time that the hypervisor gave to others."""
    energies: list[tuple[float, float]] = []
    """Time (Unix seconds) and energy counter (joules): the first and the last few of the window."""
    _after: list[tuple[float, tuple[GpuProcess, ...]]] = []
    """Reading times (Unix seconds) and lists of other processes, the first two after the window or at its end."""
    _host_known: int = 0
    _beside_known: int = 0
    _steal_known: int = 0
    _is_past: bool = False  # True once a sample after the window was taken

    def take(self, sample: DeviceSampled, stage: Stage | None) -> None:
        """Add a sample that was taken at this stage of the cell, None if it was over."""
        gpu = together((sample.gpu, *sample.other_gpus)) if sample.gpu else None
        if gpu is not None and gpu.persistence_mode is not None:
            self.persistence_mode = gpu.persistence_mode
        if stage in ("starting", "building", "warm-up"):
            self.clock_before_mhz = gpu.sm_clock_mhz if gpu else None
        elif stage == "measuring":
            self.samples += 1
            self.why = sample.why
            self._take_host(sample.host)
            if gpu is not None:
                self._take_gpu(gpu, sample.at)
            for rank, each in enumerate((sample.gpu, *sample.other_gpus) if sample.other_gpus else ()):
                for reason in (each and each.clock_reasons) or ():
                    self.ranks_of[reason] = tuple(sorted({*self.ranks_of.get(reason, ()), rank}))
        elif not self._is_past:
            self._is_past = True
            self.other_cores_around = _other_cores(sample.host)
        if gpu is not None and stage in ("finishing", None):
            if self.clock_after_mhz is None:
                self.clock_after_mhz = gpu.sm_clock_mhz
            if gpu.other_processes is not None and gpu.processes_age_s is not None and len(self._after) < 2:
                self._after.append((sample.at - gpu.processes_age_s, gpu.other_processes))

    @property
    def others_after(self) -> dict[int, GpuProcess] | None:
        """Other processes by PID in the first list after the window that was read since its begin, if any."""
        began_at, ended_at = self.window.began_at, self.window.ended_at
        if began_at is None or ended_at is None:
            return None
        lists = (found for read_at, found in self._after if began_at <= read_at <= ended_at + AFTER_S)
        return next(({process.pid: process for process in found} for found in lists), None)

    @property
    def energy(self) -> tuple[float, float] | None:
        """Joules used within the window, and the seconds between the two readings; None without two."""
        ended_at = self.window.ended_at
        readings = [r for r in self.energies if ended_at is None or r[0] <= ended_at]
        if len(readings) < 2:
            return None
        (begin, first), (end, last) = readings[0], readings[-1]
        return (last - first, end - begin) if end > begin and last >= first else None

    def _take_host(self, host: HostSample) -> None:
        if host.load_1m is not None:
            self.load_1m = max(host.load_1m, self.load_1m or 0.0)
        self.cpu_count = host.cpu_count or self.cpu_count
        if host.steal is not None:
            self._steal_known += 1
            self.steal = _averaged(self.steal, host.steal, self._steal_known)
        others = _other_cores(host)
        if others is not None and host.cpu is not None and host.cpu_count:
            self._host_known += 1
            self.busy_cores = _averaged(self.busy_cores, host.cpu * host.cpu_count, self._host_known)
            self.other_cores = _averaged(self.other_cores, others, self._host_known)

        if host.beside_cores is not None:
            self._beside_known += 1
            self.beside_cores = _averaged(self.beside_cores, host.beside_cores, self._beside_known)

    def _take_gpu(self, gpu: GpuSample, at: float) -> None:
        if gpu.sm_clock_mhz is not None:
            self.clock_after_mhz = gpu.sm_clock_mhz
            self.lowest_clock_mhz = min(gpu.sm_clock_mhz, self.lowest_clock_mhz or gpu.sm_clock_mhz)
        if gpu.clock_reasons is not None:
            self.reasons_known += 1
            for reason in gpu.clock_reasons:
                self.reasons[reason] = self.reasons.get(reason, 0) + 1
        if gpu.other_processes is not None:
            # In an old log without the age of its lists, every list counts.
            began_at = self.window.began_at
            if gpu.processes_age_s is None or began_at is None or at - gpu.processes_age_s >= began_at:
                self.others_known += 1
                self.others |= {process.pid: process for process in gpu.other_processes}
            else:
                self.others_stale += 1
        if gpu.energy_j is not None:
            if len(self.energies) > _LAST:
                del self.energies[1]
            self.energies.append((at, gpu.energy_j))


def together(gpus: Sequence[GpuSample]) -> GpuSample:
    """The GPUs of a cell's ranks as one: the lowest clock, the sum of energies, the reasons and processes of any. What
    one does not tell is not known of all, except for reasons and processes that another has."""
    if len(gpus) == 1:
        return gpus[0]
    processes = {each.pid: each for gpu in gpus for each in gpu.other_processes or ()}
    reasons = tuple(dict.fromkeys(reason for gpu in gpus for reason in gpu.clock_reasons or ()))
    energies, clocks = _all(gpu.energy_j for gpu in gpus), _all(gpu.sm_clock_mhz for gpu in gpus)
    ages = _all(gpu.processes_age_s for gpu in gpus if gpu.other_processes is not None)
    modes = _all(gpu.persistence_mode for gpu in gpus)
    return msgspec.structs.replace(
        gpus[0],
        energy_j=sum(energies) if energies else None,
        sm_clock_mhz=min(clocks) if clocks else None,
        persistence_mode=all(modes) if modes else None,
        clock_reasons=reasons if reasons or all(gpu.clock_reasons is not None for gpu in gpus) else None,
        other_processes=tuple(processes.values())
        if processes or all(gpu.other_processes is not None for gpu in gpus)
        else None,
        processes_age_s=max(ages) if ages else None,
    )


def _all(values: Iterable[_Value | None]) -> list[_Value]:
    """The values, none if one of them is not known."""
    found = list(values)
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else []


def _other_cores(host: HostSample) -> float | None:
    if host.cpu is None or not host.cpu_count or host.child_cores is None:
        return None
    return max(host.cpu * host.cpu_count - host.child_cores - (host.beside_cores or 0.0), 0.0)


def _averaged(mean: float | None, value: float, count: int) -> float:
    """The mean of `count` values, the last of them this one."""
    return value if mean is None else mean + (value - mean) / count
