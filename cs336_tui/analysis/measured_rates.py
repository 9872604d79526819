"""Measured speeds of a device and its links, to be put in the place of a data sheet's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from cs336_tui.analysis.collectives import busbw
from cs336_tui.analysis.fields import device_label
from cs336_tui.analysis.merge import Result, measured
from cs336_tui.analysis.roofline import PeakLookup, points
from cs336_tui.config.spec import CellSpec, Precision
from cs336_tui.events.peaks import peak_key

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

    def setting(each: Result) -> tuple[bool, bool]:
        return each.spec.device.startswith("cuda"), each.spec.backend_in_use == "nccl"

    best = max(map(setting, cells), default=None)
    cells = [each for each in cells if setting(each) == best]
    found: dict[str, LinkRate] = {}
    for operation in IN_RINGS:
        of_it = [each for each in cells if each.spec.collective == operation and each.cell.running.mean]
        if of_it:
            result = max(of_it, key=lambda each: (each.spec.ranks, each.spec.message_bytes))
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
        and _computes_alone(point.result.spec)
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


def _computes_alone(spec: CellSpec) -> bool:
    return spec.ranks == 1 or spec.parallel == "none"
