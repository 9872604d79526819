"""Measured cells against the limits of their device: the roofline model (Williams, Waterman, Patterson 2009). A step of
I operations per byte moved can run at min(peak FLOP/s, I x bandwidth) at best. Two such ceilings are held against it:
the data sheet's and the one that was measured on the spot. What is not known stays None. Measured speeds of a
device and its links may be put in the place of a data sheet's. Of collectives: bandwidth over sizes of messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from cs336_tui.analysis.contention import core_words
from cs336_tui.analysis.estimates import timed_flops
from cs336_tui.analysis.fields import device_label, machine
from cs336_tui.analysis.grouping import groups, label, telling
from cs336_tui.analysis.merge import Result, ddof_of, grouped, measured, pooled
from cs336_tui.config.flops import bus_factor, busbw, least_bytes, step_flops
from cs336_tui.config.spec import CellSpec, Precision
from cs336_tui.config.values import bytes_of
from cs336_tui.config.variants import is_imported, short
from cs336_tui.events.environment import DeviceInfo
from cs336_tui.events.gpus import gpu_of_label
from cs336_tui.events.peaks import BUSY_CORES, WRONG_PEAK, DevicePeak, PeakKey, peak_key
from cs336_tui.events.prediction import prediction_key
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import counted, percent

if TYPE_CHECKING:
    from cs336_tui.analysis.published import Published


Bound = Literal["compute", "bandwidth"]

_DOUBT_OF_CPU = "may be too low: other processes used the cores"
_DOUBT_OF_GPU = "throttling not observed"
_UNSEEN_ON_GPU = "other processes on the device not observed"

AGAIN = "measure it again with cs336-tui peak --refresh when the machine is idle"

PeakLookup = Callable[[PeakKey], DevicePeak | None]
"""Such as `PeakCache.get`, or a dict's."""


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a device, by one source."""

    flops_per_s: float | None
    """None where no source states it."""
    bytes_per_s: float
    source: str
    doubt: str = ""
    """Why it may be too low, in a few words; empty where nothing speaks for it."""
    is_wrong: bool = False
    """True if a cell achieved more, which no peak allows."""

    @property
    def ridge(self) -> float | None:
        """FLOPs per byte from which on compute is the bound."""
        return None if self.flops_per_s is None else self.flops_per_s / self.bytes_per_s

    def bound(self, intensity: float) -> Bound | None:
        """Which side of the ceiling is above this intensity; None where that is unknown."""
        return None if self.ridge is None else "compute" if intensity >= self.ridge else "bandwidth"

    def attainable(self, intensity: float) -> float:
        """FLOP/s at best at this intensity, as far as is known."""
        by_bandwidth = intensity * self.bytes_per_s
        return by_bandwidth if self.flops_per_s is None else min(self.flops_per_s, by_bandwidth)


class RooflinePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One measured cell under its ceilings. `flops` are of the timed phases, `step_s` is the mean of measured steps.
    `bytes_moved` is the least of a step, so that the intensity is at most and the bandwidth at least so much."""

    result: Result
    device_name: str
    precision: Precision | None
    """In force, read back; None where what was read back is none of ours."""
    flops: int
    bytes_moved: int
    step_s: float
    sheet: Ceiling | None
    measured: Ceiling | None

    @property
    def machine(self) -> str:
        """The device and the host that it is in."""
        return machine(self.result)

    @property
    def flops_per_s(self) -> float:
        """FLOP/s achieved."""
        return self.flops / self.step_s

    @property
    def bytes_per_s(self) -> float:
        """Achieved, at least."""
        return self.bytes_moved / self.step_s

    @property
    def intensity(self) -> float:
        """FLOPs per byte, at most."""
        return self.flops / self.bytes_moved

    @property
    def share_of_sheet(self) -> float | None:
        """Of the data sheet's peak FLOP/s."""
        return _share(self.flops_per_s, self.sheet.flops_per_s if self.sheet else None)

    @property
    def share_of_measured(self) -> float | None:
        """Of the measured peak FLOP/s."""
        return _share(self.flops_per_s, self.measured.flops_per_s if self.measured else None)

    @property
    def ceiling(self) -> Ceiling | None:
        """The one that tells the bound: the measured unless it is wrong, else the data sheet's."""
        known = [each for each in (self.measured, self.sheet) if each and each.ridge is not None]
        return next((each for each in known if not each.is_wrong), None)

    @property
    def bound(self) -> Bound | None:
        """The limit that keeps the cell from more FLOP/s, by its intensity."""
        return self.ceiling.bound(self.intensity) if self.ceiling else None

    @property
    def share_of_bandwidth(self) -> float | None:
        """Of its ceiling's bandwidth, at least; None unless that is the bound."""
        if self.ceiling is None or self.bound != "bandwidth":
            return None
        return _share(self.bytes_per_s, self.ceiling.bytes_per_s)


def _share(value: float, peak: float | None) -> float | None:
    return value / peak if peak else None


class Work(NamedTuple):
    """The least FLOPs of the timed phases of a step, and the least bytes of a step."""

    flops: int
    bytes_moved: int


def work_of(result: Result) -> Work | None:
    """By the session's prediction where there is one, else by formula; None of a recording, and of an imported model
    without a prediction. FLOPs are the model's, without what checkpointing or a fused backward computes again, and
    products in a user's own optimizer. Whether masked pairs of tokens are scored is by the kernel that ran."""
    if result.spec.recording or result.spec.is_collective:
        return None
    spec, prediction, in_force = result.spec, result.state.prediction_of(result.spec), result.cell.in_force
    # Where torch was left to choose and came to the kernel that materialises scores, all pairs of tokens are scored.
    materialised = in_force is not None and (in_force.attention or "").startswith("sdpa: math")
    by_formula = step_flops(spec, materialised or None)
    if prediction is None:
        other = in_force is not None and in_force.model_revision is not None
        return None if other or is_imported(spec.model) else Work(by_formula, least_bytes(spec))
    if not is_imported(spec.model) and spec.attention != "naive":
        return Work(by_formula, prediction.min_bytes_moved)
    besides = prediction.recomputed_flops + prediction.flops.get("optimizer", 0)
    return Work(timed_flops(prediction) - besides, prediction.min_bytes_moved)


def why_unknown(result: Result) -> str:
    """``FLOPs of GPT unknown: why`` of a measured cell whose work is not known; empty of any other. A norm alone and
    a collective have no matrix products, which is known."""
    spec, work = result.spec, work_of(result)
    if spec.workload in ("norm", "collective") or not result.is_measured or (work and all(work)):
        return ""
    why = "no operation that counts was seen"
    if work is None:
        why = result.state.unpredictable.get(prediction_key(spec), "no prediction of it in this session")
    return f"FLOPs of {', '.join(map(short, spec.own_code)) or spec.title} unknown: {why}"


def points(results: Iterable[Result], peaks: PeakLookup) -> tuple[RooflinePoint, ...]:
    """A point for each measured cell whose work is known; `peaks` finds what was measured of its device."""
    return tuple(point for result in measured(results) if (point := point_of(result, peaks)))


def point_of(result: Result, peaks: PeakLookup) -> RooflinePoint | None:
    """None of a cell that is not measured, or whose work is not known."""
    work = work_of(result) if result.is_measured and result.cell.running.mean > 0 else None
    if work is None or not all(work):
        return None
    step_s, precision = result.cell.running.mean, precision_in_force(result.cell)
    ceiling = None
    if result.environment and precision:
        used = result.cell.in_force.threads if result.cell.in_force else result.spec.threads
        peak = peaks(peak_key(result.environment, result.spec.device, precision, used))
        ceiling = measured_ceiling(peak) if peak else None
        achieved = work.flops / step_s / (ceiling.flops_per_s or math.inf) if ceiling else 0.0
        if ceiling and achieved > WRONG_PEAK:
            wrong = f"this peak is wrong: a cell achieved {percent(achieved)} % of it"
            source = f"{ceiling.source}; {wrong}, {AGAIN}"
            ceiling = msgspec.structs.replace(ceiling, is_wrong=True, doubt=wrong, source=source)
    return RooflinePoint(
        result=result,
        device_name=device_label(result),
        precision=precision,
        flops=work.flops,
        bytes_moved=work.bytes_moved,
        step_s=step_s,
        sheet=sheet_ceiling(result.device, precision) if result.device and precision else None,
        measured=ceiling,
    )


def precision_in_force(cell: CellState) -> Precision | None:
    """The precision in which the cell's matrix products ran, as it was read back and not as it was asked for. None for
    settings that are none of `Precision`; what was asked for where nothing was read back."""
    found = cell.in_force
    if found is None:
        return cell.spec.precision
    if found.float8 is not None:
        return "fp8-mixed"
    if found.autocast_dtype is not None:
        mixed: dict[str, Precision] = {"bfloat16": "bf16-mixed", "float16": "fp16-mixed"}
        return mixed.get(found.autocast_dtype)
    if found.parameter_dtype == "bfloat16":
        return "bf16"
    if found.parameter_dtype != "float32":
        return None
    if found.allow_tf32:
        return "tf32"
    # Off CUDA, lower settings than "highest" may mean bf16 or nothing.
    return "fp32" if found.matmul_precision == "highest" or found.allow_tf32 is False else None


def sheet_ceiling(device: DeviceInfo, precision: Precision) -> Ceiling | None:
    """By the data sheet; None for a device that is in no table."""
    gpu = gpu_of_label(device.label) if device.name.startswith("cuda") else None
    if gpu is None:
        return None
    return Ceiling(
        flops_per_s=gpu.peak_flops(precision), bytes_per_s=gpu.bandwidth_bytes_per_s, source=f"data sheet: {gpu.source}"
    )


def measured_ceiling(peak: DevicePeak) -> Ceiling:
    """By what was measured on the spot."""
    source = f"measured: matrix products of {peak.best.size}, torch {peak.torch}"
    if peak.device == "cpu":
        source += f", {counted(peak.threads, 'thread')}"
    if said := doubt(peak):
        source += f"; {said}"
    few = _DOUBT_OF_CPU if peak.device == "cpu" else _DOUBT_OF_GPU if peak.others == 0 else _UNSEEN_ON_GPU
    return Ceiling(
        flops_per_s=peak.best.flops_per_s, bytes_per_s=peak.copy.bytes_per_s, source=source, doubt=few if said else ""
    )


def doubt(peak: DevicePeak) -> str:
    """Why the device may do better than was measured; empty where nothing speaks for it."""
    found = []
    if peak.device != "cpu" and peak.others is None:
        found.append("other processes and throttling were not observed meanwhile")
    elif peak.device != "cpu":
        found.append("throttling was not observed")
    if peak.others:
        found.append(f"processes of others on the GPU: {peak.others}, so that it may be too low")
    if peak.busy_cores is not None and peak.busy_cores >= BUSY_CORES:
        found.append(
            f"other processes kept {core_words(peak.busy_cores)} busy meanwhile, so that it may be too low: "
            "measure again with --refresh when the machine is idle"
        )
    return "; ".join(found)


Format = Literal["bf16", "tf32", "fp32"]
PRECISIONS_OF: Mapping[Format, tuple[Precision, ...]] = MappingProxyType(
    {"bf16": ("bf16", "bf16-mixed"), "tf32": ("tf32",), "fp32": ("fp32",)}
)
"""Precisions of cells whose products are in a format."""
IN_RINGS = ("all-reduce", "all-gather", "reduce-scatter")
"""Operations that plans are made of."""


class LinkRate(NamedTuple):
    """The busbw of an operation, bytes/s, and the cell that it was measured in."""

    bytes_per_s: float
    spec: CellSpec
    device: str

    @property
    def kind(self) -> str:
        """``cuda`` or ``cpu``."""
        return self.spec.device.partition(":")[0]

    @property
    def text(self) -> str:
        """``gloo, 4 ranks, 100MB, fp32``."""
        spec = self.spec
        return f"{spec.backend_in_use}, {spec.ranks} ranks, {spec.size}, {spec.precision}, {self.device}"


class Speed(NamedTuple):
    """FLOP/s of a device, and where they are from, in words."""

    flops_per_s: float
    text: str


def link_rates(results: Iterable[Result]) -> dict[str, LinkRate]:
    """busbw by operation, by its mean: of the most ranks and then of the largest size. Of several devices and backends
    that of GPUs and nccl goes first; operations of another one are left out."""
    cells = [each for each in measured(results) if each.spec.is_collective and each.spec.collective in IN_RINGS]
    by_setting = grouped(cells, lambda each: (each.spec.device.startswith("cuda"), each.spec.backend_in_use == "nccl"))
    timed = [each for each in by_setting[max(by_setting)] if each.cell.running.mean] if by_setting else []
    by_operation = grouped(timed, lambda each: str(each.spec.collective))
    found: dict[str, LinkRate] = {}
    for operation in filter(by_operation.__contains__, IN_RINGS):
        result = max(by_operation[operation], key=lambda each: (each.spec.ranks, each.spec.message_bytes))
        rate = busbw(result.spec, result.cell.running.mean)
        found[operation] = LinkRate(rate, result.spec, device_label(result))
    return found


def speed_of(
    results: Sequence[Result], spec: CellSpec, precision: Format, peaks: PeakLookup, kind: str | None = None
) -> Speed | None:
    """FLOP/s of a device in this format: the most that a cell of a model achieved without
    communication, of the dimensions of `spec` if there is one; without cells the measured peak of matrix products. Only
    of devices of this `kind`, if it is given."""
    meant = PRECISIONS_OF[precision]
    alike = [each for each in results if kind in (None, each.spec.device.partition(":")[0])]
    cells = [
        point
        for point in points(alike, peaks)
        if point.precision in meant
        and point.result.spec.workload == "language-model"
        and (point.result.spec.ranks == 1 or point.result.spec.parallel == "none")
    ]
    if same := [point for point in cells if point.result.spec.dims == spec.dims]:
        cells = same
    if cells:
        point = max(cells, key=lambda each: each.flops_per_s)
        return Speed(point.flops_per_s, f"achieved by {point.result.spec.title} on {point.device_name}")
    keys = dict.fromkeys(
        peak_key(result.environment, result.spec.device, each)
        for result in alike
        for each in meant
        if result.environment
    )
    known = [peak for key in keys if (peak := peaks(key))]
    if not known:
        return None
    peak = max(known, key=lambda each: each.best.flops_per_s)
    about = f"measured peak in {peak.precision} of {peak.device_name}, products of {peak.best.size}"
    return Speed(peak.best.flops_per_s, about)


class Point(msgspec.Struct, frozen=True):
    """A message: its size as it was asked for, bytes of the whole array, busbw in bytes/s."""

    size: str
    bytes: int
    busbw: float


class Curve(msgspec.Struct, frozen=True):
    """Bandwidths of one operation over its sizes, smallest first, all other choices alike; `name` tells it from other
    curves, `spec` is one of its cells. A published one has the name of its device, and its `source`."""

    name: str
    spec: CellSpec
    points: tuple[Point, ...]
    source: str = ""


def curves(results: Iterable[Result]) -> tuple[Curve, ...]:
    """A curve for each combination of the choices, but for the size, of collectives that were timed."""
    timed = [each for each in measured(results) if each.spec.is_collective and each.cell.running.mean]
    keys, ddof, found = telling(timed, but=("size",)), ddof_of(timed), []
    for cells in groups(timed, keys).values():
        first, points = cells[0], []
        for members in groups(cells, ("size",)).values():
            spec, summary = members[0].spec, pooled(members, ddof)
            if summary and summary.mean_s:
                points.append(Point(spec.size, spec.message_bytes, busbw(spec, summary.mean_s)))
        found.append(Curve(label(first, keys) or first.spec.collective, first.spec, tuple(points)))
    return tuple(found)


def published_curves(spec: CellSpec, rows: Iterable[Published]) -> tuple[Curve, ...]:
    """Published curves of this operation, backend and number of ranks, one for each source."""
    found: dict[tuple[str, str], list[Point]] = {}
    for row in rows:
        if (row.op, row.backend, row.ranks) == (spec.collective, spec.backend_in_use, spec.ranks) and row.mean_ms:
            size = bytes_of(row.size)
            rate = size / (row.mean_ms / 1e3) * bus_factor(row.op, spec.ranks)
            found.setdefault((row.device, row.source), []).append(Point(row.size, size, rate))
    return tuple(
        Curve(device, spec, tuple(sorted(points, key=lambda point: point.bytes)), source)
        for (device, source), points in found.items()
    )
