"""Lanes of a machine: each runs one cell at a time, on a device or on cores of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec

from cs336_tui.config.spec import CellSpec, SpecError
from cs336_tui.config.sweep import UNRESOLVED, LaneCount
from cs336_tui.events.environment import Environment
from cs336_tui.events.events import CellFinished, Lane
from cs336_tui.runner.child import NO_CORES
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import counted

_TOPOLOGY = Path("/sys/devices/system/cpu")
_HARDWARE = re.compile("uncorrectable (ECC|NVLink) error|hardware error|GPU is lost|fallen off the bus", re.IGNORECASE)
"""In errors that no code of a cell can cause."""
_DEVICE = re.compile("CUDA|NCCL|CUBLAS|CUDNN|HIP|device", re.IGNORECASE)
"""In errors that a device may be to blame for."""
_RANK = re.compile(r"rank (\d+): ")

Core = tuple[int, ...]
"""A core, as the numbers of its hyperthreads."""


def pool_of(asked: Iterable[str], environment: Environment) -> tuple[str, ...]:
    """The devices that lanes share: ``auto``, ``every`` and ``cuda`` are all GPUs here, without one the CPU; others are
    themselves. Raises `SpecError` for devices that are not alike."""
    gpus = tuple(device.name for device in environment.devices if device.name.startswith("cuda"))
    found: list[str] = []
    for name in asked:
        every = name in UNRESOLVED or (name == "cuda" and gpus)
        found += (gpus or ("cpu",)) if every else environment.resolve((name,))
    pool = tuple(dict.fromkeys(found))
    labels = {name: device.label if (device := environment.device(name)) else "not here" for name in pool}
    if len(set(labels.values())) > 1:
        alike = "; ".join(f"{name} is {label}" for name, label in labels.items())
        raise SpecError("device", ",".join(pool), f"lanes share devices of one kind: {alike}; name those of one kind")
    return pool


def lanes_of(
    count: LaneCount, pool: Sequence[str], specs: Iterable[CellSpec], cores: Sequence[Core] | None = None
) -> tuple[Lane, ...]:
    """So many lanes on these devices for these cells; none for one lane. ``auto`` is a lane for each device, on a CPU
    as many as whole cores allow. `cores` are those of this machine. Raises `SpecError` if there is no room for them."""
    cells = () if count == 1 else tuple(specs)
    ranks, threads = (max((getattr(spec, name) or 0 for spec in cells), default=0) for name in ("ranks", "threads"))
    return lanes_for(count, pool, ranks=ranks, threads=threads, cores=cores)


def lanes_for(
    count: LaneCount, pool: Sequence[str], *, ranks: int, threads: int, cores: Sequence[Core] | None = None
) -> tuple[Lane, ...]:
    """As `lanes_of`, for cells of so many ranks and threads (0: torch's own) at most."""
    if count == 1:
        return ()
    if list(pool) == ["cpu"]:
        cores = cores_here() if cores is None else cores
        number = (len(cores) // threads if threads else 1) if count == "auto" else count
        each = threads or max(1, len(cores) // max(number, 1))
        if number * each > len(cores) and count != "auto":
            of = f" of {counted(threads, 'thread')}" if threads > 1 else ""
            raise SpecError("lanes", count, f"{counted(len(cores), 'core')} here, {number * each} needed for lanes{of}")
        groups = (cores[n * each : (n + 1) * each] for n in range(number))
        found = tuple(Lane(lane=n, device="cpu", cores=tuple(sorted(chain(*group)))) for n, group in enumerate(groups))
    else:
        number = len(pool) if count == "auto" else count
        if number > len(pool):
            raise SpecError("lanes", count, f"a lane needs a device of its own: {', '.join(pool)}")
        found = tuple(Lane(lane=n, device=pool[n]) for n in range(number))
    if len(found) < 2:
        return ()
    if ranks > len(found):
        raise SpecError("lanes", count, f"a cell of {ranks} ranks takes {ranks} lanes, there are {len(found)}")
    return found


def lanes_again(state: SessionState, environment: Environment, asked: LaneCount | None) -> tuple[Lane, ...]:
    """The lanes in which a session goes on here: as many as it was last run in, or as are asked for now, on the same
    devices. Raises like `lanes_of`."""
    own = [lane.lane for lane in state.lanes.values() if not (lane.lane.machine or lane.lane.job)]
    if asked is None and not (own and state.commands and "--lanes" in state.commands[-1].split()):
        return ()
    specs = [state.cells[number].asked_spec for number in state.waiting]
    kinds = {spec.device.partition(":")[0] for spec in specs}
    pool = tuple(dict.fromkeys(lane.device for lane in own)) or pool_of(
        ("cuda" if "cuda" in kinds else "cpu",), environment
    )
    return lanes_of(len(own) if asked is None else asked, pool, specs)


def cores_here() -> tuple[Core, ...]:
    """The cores that this process may use, in order; without a system that tells, one for each processor."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    found: dict[Core, None] = {}
    for number in usable:
        siblings: Core = (number,)
        with suppress(OSError, ValueError):
            text = (_TOPOLOGY / f"cpu{number}/topology/thread_siblings_list").read_text()
            ends = (part.partition("-") for part in text.strip().split(","))  # ``0-2,8`` is 0, 1, 2, 8
            numbers = (n for first, _, last in ends for n in range(int(first), int(last or first) + 1))
            siblings = tuple(n for n in numbers if n in usable) or siblings
        found[siblings] = None
    return tuple(found)


def lane_words(lane: Lane) -> str:
    """A lane's device, with its cores and its machine if it has them, such as ``cpu core 0``."""
    numbers = ",".join(map(str, lane.cores))
    cores = f" {'core' if len(lane.cores) == 1 else 'cores'} {numbers}" if lane.cores else ""
    return f"{lane.device}{cores}{f' on {lane.machine}' if lane.machine else ''}"


def in_lane(spec: CellSpec, lane: Lane) -> CellSpec:
    """The cell as it runs in a lane: on its device, on a CPU with as many threads as the lane has cores."""
    if lane.device == "cpu" and lane.cores and spec.threads is None:
        own = set(lane.cores)
        threads = sum(1 for core in cores_here() if own & set(core)) or len(own)
        return msgspec.structs.replace(spec, device=lane.device, threads=threads)
    return msgspec.structs.replace(spec, device=lane.device)


class LaneFault(NamedTuple):
    """A lane that can run no more cells, and why."""

    lane: int
    reason: str


def fault_of(end: CellFinished, lanes: Sequence[Lane], device_fault: Callable[[str], str | None]) -> LaneFault | None:
    """The lane that is to blame for a cell's end, if it is one of these. `device_fault` tries a device in a fresh
    process: whatever works there, the cell itself has broken."""
    if not lanes or end.status not in ("failed", "killed") or not end.error:
        return None
    rank = _RANK.match(end.error)
    blamed = lanes[int(rank[1])] if rank and int(rank[1]) < len(lanes) else lanes[0]
    if NO_CORES in end.error or (_HARDWARE.search(end.error) and blamed.device != "cpu"):
        return LaneFault(blamed.lane, end.error)
    for lane in (blamed, *(each for each in lanes if each is not blamed)) if _DEVICE.search(end.error) else ():
        if lane.device != "cpu" and (why := device_fault(lane.device)):
            return LaneFault(lane.lane, f"{lane.device}: {why}")
    return None
