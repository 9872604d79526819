"""Splits cells into jobs: one a cell, one for all, or one a host."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from cs336_tui.config.order import relative_work
from cs336_tui.config.spec import CellSpec
from cs336_tui.runner.jobs.choice import LaunchChoice
from cs336_tui.runner.jobs.job import JobCell, JobRequest, Place, Resources


def split(
    cells: Sequence[JobCell],
    choice: LaunchChoice,
    settings: JobRequest,
    first: int = 1,
    places: Sequence[Place] = (),
) -> tuple[JobRequest, ...]:
    """The jobs that run these cells, numbered from `first`, with the settings of a request. With `places` each of them
    has a share; in an array each job has one cell and asks for what it needs; an allocation has all."""
    lanes = 0 if choice.lanes is None else choice.lanes
    if places:
        return among(places, cells, msgspec.structs.replace(settings, lanes=lanes), first)
    jobs: list[tuple[tuple[JobCell, ...], Resources, int]]
    if is_array(choice):
        jobs = [((cell,), needs(cell.spec, choice), 1) for cell in cells]
    else:
        jobs = [(tuple(cells), _allocated(choice, cells), lanes)] if cells else []
    return tuple(
        msgspec.structs.replace(settings, job=str(number), cells=part, resources=resources, lanes=lanes)
        for number, (part, resources, lanes) in enumerate(jobs, first)
    )


def among(
    places: Sequence[Place], cells: Sequence[JobCell], settings: JobRequest, first: int
) -> tuple[JobRequest, ...]:
    """A job for each place that gets cells, numbered from `first`, with the settings of a request."""
    parts = [(place, part) for place, part in zip(places, shares(cells, places), strict=True) if part]
    return tuple(
        msgspec.structs.replace(settings, job=str(number), cells=part, machine=place.name)
        for number, (place, part) in enumerate(parts, first)
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


def shares(cells: Sequence[JobCell], places: Sequence[Place]) -> tuple[tuple[JobCell, ...], ...]:
    """The cells in a share for each place, of work in proportion to its lanes; the longest cells are dealt first, to
    places that can run them, if there are any. Each share is in the order given."""
    work = [0.0] * len(places)
    dealt: dict[int, int] = {}
    for cell in sorted(cells, key=_work, reverse=True):
        able = [n for n, place in enumerate(places) if _can_run(place, cell)] or range(len(places))
        dealt[cell.cell] = least = min(able, key=lambda n: (work[n] + _work(cell)) / max(places[n].lanes, 1))
        work[least] += _work(cell)
    return tuple(tuple(cell for cell in cells if dealt[cell.cell] == n) for n in range(len(places)))


def _can_run(place: Place, cell: JobCell) -> bool:
    return cell.spec.ranks <= max(place.lanes, 1) and (
        not place.environment or not place.environment.refusal(cell.spec)
    )


def _work(cell: JobCell) -> float:
    return relative_work(cell.spec) * cell.spec.ranks * cell.spec.total_steps
