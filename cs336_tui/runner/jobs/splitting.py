"""Splits cells into jobs, one a cell or one for all, and a job's cells among nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from cs336_tui.config.order import relative_work
from cs336_tui.config.spec import CellSpec
from cs336_tui.runner.jobs.job import JobCell, JobRequest, LaunchChoice, Resources


def split(
    cells: Sequence[JobCell],
    choice: LaunchChoice,
    settings: JobRequest,
    first: int = 1,
) -> tuple[JobRequest, ...]:
    """The jobs that run these cells, numbered from `first`, with the settings of a request. In an array each job has
    one cell and asks for what it needs; an allocation has all."""
    lanes = 0 if choice.lanes is None else choice.lanes
    jobs: list[tuple[tuple[JobCell, ...], Resources, int]]
    if is_array(choice):
        jobs = [((cell,), needs(cell.spec, choice), 1) for cell in cells]
    else:
        jobs = [(tuple(cells), _allocated(choice, cells), lanes)] if cells else []
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
    """The resources of all cells together. On a CPU the threads of a rank for each lane, or all of each node; each rank
    takes a lane, and those of a cell may be spread over nodes."""
    gpus, nodes, lanes = choice.gpus_per_node or 0, choice.nodes or 1, choice.lanes or 0
    most = max((cell.spec.threads or 1) * max(lanes, math.ceil(cell.spec.ranks / nodes)) for cell in cells)
    cores = gpus + 1 if gpus else most if lanes else 0
    return Resources(nodes=nodes, gpus_per_node=gpus, cores_per_node=cores, time=choice.time)


def shares(cells: Sequence[JobCell], nodes: int) -> tuple[tuple[JobCell, ...], ...]:
    """The cells in a share of equal work for each node; the longest are dealt first. Each share is in the order
    given."""
    work = [0.0] * nodes
    dealt: dict[int, int] = {}
    for cell in sorted(cells, key=_work, reverse=True):
        dealt[cell.cell] = least = work.index(min(work))
        work[least] += _work(cell)
    return tuple(tuple(cell for cell in cells if dealt[cell.cell] == node) for node in range(nodes))


def _work(cell: JobCell) -> float:
    return relative_work(cell.spec) * cell.spec.ranks * cell.spec.total_steps
