"""Devices that cells are to run on, here or elsewhere, and the largest batch or context that fits one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from math import floor, prod
from typing import Literal

import msgspec

from cs336_tui.config.spec import MAX_COUNT, CellSpec, Precision
from cs336_tui.events.environment import DeviceInfo, Environment
from cs336_tui.events.events import DeviceSampled
from cs336_tui.events.gpus import GpuModel, gpu_of_label
from cs336_tui.events.prediction import Prediction
from cs336_tui.stats.quantities import bandwidth

CONTEXT_BYTES = {"cuda": 2**29, "mps": 2**29, "cpu": 2**28}
"""The memory of a torch process besides its tensors. On a CUDA device that is not here, context and loaded kernels are
assumed to take 0.5 GiB; on a CPU, an interpreter that has imported torch was seen to take 0.23 GiB."""
_MOST_CONTEXT = 2 * 2**30


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A device that cells are to run on, here or elsewhere. None is unknown."""

    name: str
    """As its maker calls it."""
    device: str
    """torch's name: ``cpu``, ``mps``, ``cuda:N``."""
    capacity_bytes: int | None
    free_bytes: int | None
    source: str
    """The source of the two, in words."""
    gpu: GpuModel | None = None
    context: int | None = None
    """Bytes of a process's context there, where that was seen."""
    stated_flops: float | None = None
    """Peak FLOP/s that a person stated; goes before the data sheet's."""
    stated_link: float | None = None
    """Outgoing bandwidth in bytes/s that a person stated; goes before the data sheet's."""

    @property
    def kind(self) -> str:
        return self.device.partition(":")[0]

    @property
    def context_bytes(self) -> int:
        return CONTEXT_BYTES[self.kind] if self.context is None else self.context

    @property
    def shares_memory(self) -> bool:
        """True if the ranks of a cell have one memory together."""
        return self.kind != "cuda"

    def room_bytes(self, ranks: int) -> int | None:
        """The most that the tensors of one rank may take, so that all fit; None if unknown."""
        if self.free_bytes is None:
            return None
        return self.free_bytes // (ranks if self.shares_memory else 1) - self.context_bytes

    @property
    def link_bytes_per_s(self) -> float | None:
        """Outgoing bandwidth of a device to others, None if unknown."""
        return self.stated_link or (self.gpu.link_bytes_per_s if self.gpu else None)

    @property
    def link_text(self) -> str:
        """The bandwidth and its source: ``450 GB/s, NVLink of H100 SXM 80GB by its data sheet``; empty if unknown."""
        if self.stated_link is not None:
            return f"{bandwidth(self.stated_link)} GB/s, as given"
        if self.gpu is None or self.gpu.link_bytes_per_s is None:
            return ""
        return f"{bandwidth(self.gpu.link_bytes_per_s)} GB/s, NVLink of {self.gpu.name} by its data sheet"

    def peak_flops(self, precision: Precision) -> float | None:
        """FLOP/s of dense matrix products at best."""
        if self.stated_flops is not None:
            return self.stated_flops
        return self.gpu.peak_flops(precision) if self.gpu else None


def named_target(gpu: GpuModel) -> Target:
    """A GPU that need not be here, with nothing else on it."""
    memory = gpu.memory_bytes
    source = "all memory that torch reports for this GPU, with nothing else on it"
    return Target(name=gpu.name, device="cuda:0", capacity_bytes=memory, free_bytes=memory, source=source, gpu=gpu)


def target_here(
    device: DeviceInfo, environment: Environment, samples: Iterable[tuple[DeviceSampled, int | None]] = ()
) -> Target:
    """A device of this machine. `samples`, oldest first, each with the cell that ran then: what others use is not
    free; what the session's own cell used then will be."""
    cuda = device.name.startswith("cuda")
    capacity = device.memory_bytes or (environment.memory_bytes if device.name == "cpu" else None)
    used, source, samples = None, "all of it; what is in use is not known", tuple(samples)
    for sample, cell in reversed(samples):
        used = _used_on_gpu(sample, cell, device.uuid) if cuda else _used_on_host(sample, cell)
        if used is not None:
            source = "free now" if cell is None else "free once the running cell is over"
            break
    total = capacity if cuda or device.name == "cpu" else environment.memory_bytes
    free = None if capacity is None or total is None else max(min(capacity, total - (used or 0)), 0)
    seen = next((each for each in environment.devices if each.label == device.label and each.free_bytes), None)
    context = None if seen is None else _context_of(seen, samples)
    return Target(
        name=device.label,
        device=device.name,
        capacity_bytes=capacity,
        free_bytes=free,
        source=source,
        gpu=gpu_of_label(device.label) if cuda else None,
        context=context,
    )


def _context_of(device: DeviceInfo, samples: Sequence[tuple[DeviceSampled, int | None]]) -> int | None:
    """Bytes of the device that a process of its own had, if nobody else uses more or less of it since."""
    used = [_used_on_gpu(sample, None, device.uuid) for sample, cell in samples if cell is None]
    others = next((each for each in reversed(used) if each is not None), None)
    if device.memory_bytes is None or device.free_bytes is None or others is None:
        return None
    found = device.memory_bytes - device.free_bytes - others
    return found if 0 < found < _MOST_CONTEXT else None


def _used_on_gpu(sample: DeviceSampled, cell: int | None, uuid: str | None) -> int | None:
    """Bytes that others use; None where the sample cannot tell."""
    gpu = sample.gpu
    if gpu is None or (uuid and gpu.uuid and gpu.uuid != uuid):
        return None
    if cell is None:
        return gpu.memory_used_bytes
    if gpu.other_processes is None or any(process.memory_bytes is None for process in gpu.other_processes):
        return None
    return sum(process.memory_bytes or 0 for process in gpu.other_processes)


def _used_on_host(sample: DeviceSampled, cell: int | None) -> int | None:
    host = sample.host
    ranks = [each.rss_bytes for each in host.ranks if each.rss_bytes is not None]
    used, own = host.memory_used_bytes, sum(ranks) if ranks else host.child_rss_bytes
    if used is None or (cell is not None and own is None):
        return None
    return used - (own or 0)


Dimension = Literal["batch", "context"]
FIELD: dict[Dimension, str] = {"batch": "batch_size", "context": "context_length"}
LIMIT: dict[Dimension, int] = {"batch": 65_536, "context": 131_072}
"""Nothing larger is tried unless asked for."""


def step_of(spec: CellSpec, by: Dimension) -> int:
    """The step in which sizes are tried. Contexts are multiples of 16: nobody trains at 1,337, and kernels like even
    shapes. Batches are those that micro-batches, and ranks of a global batch, divide equally."""
    if by == "context":
        return 16
    return spec.accumulate * (spec.ranks if spec.batch_is == "global" else 1)


def largest(need: Callable[[int], int], room: int, *, start: int, limit: int, step: int = 1) -> int | None:
    """The largest multiple of `step` up to `limit` whose need is at most `room`; None when not even one step fits.
    `need` must not fall when its argument grows. It is asked from `start` on upwards, at least twice as far each time,
    until something does not fit. Then two guesses are where the parabola through the three nearest known needs meets
    `room` (Muller 1956), every third is half-way, which bounds their number; about six do."""
    top = limit // step
    known: dict[int, int] = {}

    def fits(at: int) -> bool:
        known[at] = need(at * step)
        return known[at] <= room

    low, high, at = 0, top + 1, min(max(start // step, 1), top)
    while low < top:
        if not fits(at):
            high = at
            break
        # From two on, one beyond where the curve ends: it likely does not fit, and then the one before is the answer.
        beyond = _meets(known, room, 2 * at, top) + 1 if len(known) > 1 else 2 * at
        low, at = at, min(beyond, top)
    turn = 0
    while high - low > 1:
        turn += 1
        at = (low + high) // 2 if turn % 3 == 0 else _meets(known, room, low + 1, high - 1)
        if fits(at):
            low = at
        else:
            high = at
    return low * step or None


def _meets(known: dict[int, int], room: int, first: int, last: int) -> int:
    """The last place from `first` to `last` at which a curve through the three known needs nearest to `room` is at
    most `room`; `first` where it is nowhere."""
    points = sorted(known.items(), key=lambda point: abs(point[1] - room))[:3]

    def curve(at: int) -> int:  # Lagrange's form, rounded down
        total = Fraction(0)
        for x, y in points:
            others = [other for other, _ in points if other != x]
            total += y * prod((Fraction(at - other, x - other) for other in others), start=Fraction(1))
        return floor(total)

    return max(first + bisect_right(range(first, last + 1), room, key=curve) - 1, first)


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The result: the cell with the largest batch or context that fits, None when none does."""

    by: Dimension
    largest: int | None
    spec: CellSpec | None
    next_spec: CellSpec | None
    """The next larger one, which does not fit; None where the limit ended the search."""
    limit: int
    predictions: int
    found: Prediction | None
    """The prediction of the largest."""
    following: Prediction | None
    """That of the next larger one."""


def search(
    spec: CellSpec,
    by: Dimension,
    predict: Callable[[CellSpec], Prediction],
    room: int,
    *,
    limit: int | None = None,
    on_try: Callable[[CellSpec, bool], object] = lambda _spec, _fits: None,
) -> Fit:
    """The largest batch or context of this cell, all else as it is, that by prediction fits into `room` bytes. `on_try`
    hears of every one that was looked at and whether it fits."""
    limit = min(limit or LIMIT[by], MAX_COUNT)
    step = min(step_of(spec, by), limit)
    tried: dict[CellSpec | None, Prediction] = {}

    def at(value: int) -> CellSpec:
        return msgspec.structs.replace(spec, **{FIELD[by]: value})

    def measure(value: int) -> int:
        candidate = at(value)
        tried[candidate] = predict(candidate)
        needed = tried[candidate].needed_of(room)
        on_try(candidate, needed <= room)
        return needed

    start = getattr(spec, FIELD[by])
    found = largest(measure, room, start=start, limit=limit, step=step)
    following = (found or 0) + step
    fitting, larger = None if found is None else at(found), at(following) if following <= limit else None
    return Fit(
        by=by,
        largest=found,
        spec=fitting,
        next_spec=larger,
        limit=limit,
        predictions=len(tried),
        found=tried.get(fitting),
        following=tried.get(larger),
    )
