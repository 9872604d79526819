"""Splits cells into jobs: one a cell, one for all, or one a host."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from cs336_tui.config.order import relative_work
from cs336_tui.config.spec import CellSpec
from cs336_tui.runner.jobs.choice import LaunchChoice
from cs336_tui.runner.jobs.job import JobCell, JobRequest, Resources


def split(
    cells: Sequence[JobCell], choice: LaunchChoice, settings: JobRequest, first: int = 1
) -> tuple[JobRequest, ...]:
    """The jobs that run these cells, numbered from `first`, with the settings of a request. In an array each job has
    one cell and asks for what it needs; an allocation has all; with hosts each has a share."""
    if choice.launcher == "ssh":
        parts = [part for part in shares(cells, max(len(choice.hosts), 1)) if part]
        jobs = [(part, Resources(), 0 if choice.lanes is None else choice.lanes) for part in parts]
    elif is_array(choice):
        jobs = [((cell,), needs(cell.spec, choice), 1) for cell in cells]
    else:
        jobs = [(tuple(cells), _allocated(choice, cells), 0 if choice.lanes is None else choice.lanes)] if cells else []
    return tuple(
        msgspec.structs.replace(settings, job=str(number), cells=part, resources=resources, lanes=lanes)
        for number, (part, resources, lanes) in enumerate(jobs, first)
    )


def is_array(choice: LaunchChoice) -> bool:
    """True if each cell gets a job of its own, as ``--as`` says, or without it if nothing was said of nodes."""
    if choice.form is not None:
        return choice.form == "array"
    return choice.nodes is None and choice.gpus_per_node is None and choice.lanes is None


def needs(spec: CellSpec, choice: LaunchChoice) -> Resources:
    """The resources of a cell that has a job of its own: a GPU for each rank and a core besides, or its threads."""
    if not spec.device.startswith("cuda"):
        return Resources(cores_per_node=spec.ranks * (spec.threads or 1), time=choice.time)
    gpus = min(spec.ranks, choice.gpus_per_node or spec.ranks)
    return Resources(nodes=math.ceil(spec.ranks / gpus), gpus_per_node=gpus, cores_per_node=gpus + 1, time=choice.time)


def _allocated(choice: LaunchChoice, cells: Sequence[JobCell]) -> Resources:
    """The resources of all cells together. On a CPU `lanes` times the threads of a cell, or all of each node."""
    gpus = choice.gpus_per_node or 0
    threads = max(cell.spec.ranks * (cell.spec.threads or 1) for cell in cells)
    cores = gpus + 1 if gpus else threads * (choice.lanes or 0)
    return Resources(nodes=choice.nodes or 1, gpus_per_node=gpus, cores_per_node=cores, time=choice.time)


def shares(cells: Sequence[JobCell], number: int) -> tuple[tuple[JobCell, ...], ...]:
    """The cells in `number` shares of about the same work, the longest cells dealt first; each in the order given."""
    work = [0.0] * number
    place: dict[int, int] = {}
    for cell in sorted(cells, key=_work, reverse=True):
        place[cell.cell] = least = min(range(number), key=work.__getitem__)
        work[least] += _work(cell)
    return tuple(tuple(_those(cells, place, share)) for share in range(number))


def _those(cells: Sequence[JobCell], place: dict[int, int], share: int) -> Iterator[JobCell]:
    return (cell for cell in cells if place[cell.cell] == share)


def _work(cell: JobCell) -> float:
    return relative_work(cell.spec) * cell.spec.ranks * cell.spec.total_steps
