"""Measured peaks of a device, of matrix products and of copies, and their cache."""

import contextlib
from pathlib import Path
from typing import NamedTuple

import msgspec
import platformdirs

from cs336_tui.config.reading import UNREADABLE, file_named_by, read_small, write_quietly
from cs336_tui.config.spec import Precision
from cs336_tui.events.environment import Environment
from cs336_tui.stats.quantities import whole_percent

BUSY_CORES = 0.25
"""Cores in use by others from which on a CPU's measurement may be below its peak."""
WRONG_PEAK = 1.05
"""A measured peak is wrong if a cell achieves more than this share of it."""
_BUSY_SHARE = 0.05  # the share of the used cores below which others do not count
_AGREE = 0.1  # two measurements may differ by this share


class PeakError(Exception):
    """A peak could not be measured; one line says why."""


class _Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Timed until the noise settled or the time was up; times are of one product or copy."""

    median_s: float
    fastest_s: float
    timings: int
    spread: float
    """Half the 95 % interval of the median, as a share of it."""


class MatmulTrial(_Trial, frozen=True, kw_only=True):
    """Products of two square matrices of `size` rows and columns."""

    size: int
    layout: str
    """The product of a linear layer: ``forward``, ``input gradient``, ``weight gradient``."""

    @property
    def flops_per_s(self) -> float:
        """By the median; a product has 2 size³ operations."""
        return 2 * self.size**3 / self.median_s


class CopyTrial(_Trial, frozen=True, kw_only=True):
    """Copies of one array of `bytes` to another: each reads and writes as many."""

    bytes: int

    @property
    def bytes_per_s(self) -> float:
        """Read and written, by the median."""
        return 2 * self.bytes / self.median_s


class DevicePeak(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The measured peak of one device in one precision, with its effective settings."""

    device: str
    device_name: str
    """As its maker calls it; `device` is torch's name: ``cpu``, ``mps``, ``cuda:N``."""
    precision: Precision
    dtype: str
    """Of the matrices and of their product."""
    matmul_precision: str
    """torch's float32 matmul precision: highest, high or medium."""
    allow_tf32: bool | None
    """True if cuBLAS may use TF32 for float32; None off CUDA."""
    threads: int
    """torch's intra-op threads."""
    torch: str
    at: float
    """Unix time at its end."""
    matmul: tuple[MatmulTrial, ...]
    """A trial a size, smallest first; at least one."""
    copy: CopyTrial
    busy_cores: float | None = None
    """Mean number of cores that other processes used meanwhile; None off the CPU."""
    note: str = ""
    """Such as why larger sizes were not tried."""
    disagreement: float | None = None
    """Share by which the slower of two measurements is below the faster, of products or copy; None if one."""
    uuid: str | None = None
    others: int | None = None
    """Number of other processes on the GPU meanwhile; None if not observed."""

    @property
    def disturbance(self) -> str:
        """The reason not to keep it; empty if the machine was quiet and two measurements agree."""
        found = []
        if self.busy_cores is not None and self.busy_cores >= max(BUSY_CORES, _BUSY_SHARE * self.threads):
            found.append(f"other processes kept {self.busy_cores:.1f} cores busy meanwhile")
        if self.others:
            found.append(f"processes of others on the GPU: {self.others}")
        if self.disagreement is not None and self.disagreement > _AGREE:
            found.append(f"measured twice, it came out {whole_percent(self.disagreement)} lower once")
        return "; ".join(found)

    @property
    def best(self) -> MatmulTrial:
        """The trial with the most FLOP/s."""
        return max(self.matmul, key=lambda trial: trial.flops_per_s)


class WantedPeak(NamedTuple):
    """A peak that is to be measured on this machine."""

    device: str
    precision: Precision
    threads: int | None
    """Those of a CPU; None elsewhere."""


class PeakKey(msgspec.Struct, frozen=True, kw_only=True):
    """The scope of a measured peak: one piece of hardware, a precision, a number of threads, a torch."""

    hardware: str
    """A GPU's UUID; elsewhere host, processor, its usable cores and the device."""
    precision: Precision
    threads: int | None
    """None on a GPU, whose peak they do not touch."""
    torch: str


def peak_key(environment: Environment, device: str, precision: Precision, threads: int | None = None) -> PeakKey:
    """The key of a device of this machine; without `threads` torch's default counts."""
    info = environment.device(device)
    if info and info.uuid:
        hardware = info.uuid
    else:
        name = info.label if info else "unknown"
        hardware = f"{environment.host}, {environment.cpu}, {environment.cpu_count} usable, {device}: {name}"
    return PeakKey(
        hardware=hardware,
        precision=precision,
        threads=(threads or environment.threads) if device == "cpu" else None,
        torch=environment.torch or "",
    )


class _Entry(msgspec.Struct, frozen=True):
    """One file of the cache."""

    key: PeakKey
    peak: DevicePeak


class PeakCache:
    """Measured peaks in memory and as small files, but for disturbed ones. A folder that cannot be used holds none."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or platformdirs.user_cache_path("cs336-tui", appauthor=False) / "peaks"
        self._known: dict[PeakKey, DevicePeak] = {}

    def get(self, key: PeakKey) -> DevicePeak | None:
        """The peak; None without one, also for one in an old file that was disturbed."""
        if key not in self._known:
            with contextlib.suppress(*UNREADABLE):
                entry = msgspec.json.decode(read_small(self._path(key)), type=_Entry)
                if entry.key == key and not entry.peak.disturbance:
                    self._known[key] = entry.peak
        return self._known.get(key)

    def put(self, key: PeakKey, peak: DevicePeak) -> None:
        """Keep it in place of an earlier one, unless it was disturbed."""
        if peak.disturbance:
            return
        self._known[key] = peak
        write_quietly(self._path(key), msgspec.json.encode(_Entry(key, peak)))

    def _path(self, key: PeakKey) -> Path:
        return self._folder / file_named_by(msgspec.json.encode(key))
