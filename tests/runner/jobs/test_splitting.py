"""Cells split into jobs."""

from typing import Any

import pytest

from cs336_tui.runner.jobs.job import JobCell, JobRequest, LaunchChoice, Resources, is_array, shares, split
from tests.watching import small_spec

SETTINGS = JobRequest(session="s", job="", cells=(), timeout_s=9.0)


def choice(**given: Any) -> LaunchChoice:
    return LaunchChoice(**({"launcher": "slurm", "time": "0:30"} | given))


def some(*changes: dict[str, Any]) -> list[JobCell]:
    return [JobCell(number, small_spec(**change)) for number, change in enumerate(changes)]


@pytest.mark.parametrize(
    ("given", "array"),
    [
        ({}, True),
        ({"nodes": 1}, False),
        ({"gpus_per_node": 8}, False),
        ({"lanes": 0}, False),
        ({"nodes": 2, "form": "array"}, True),
        ({"form": "allocation"}, False),
    ],
)
def test_a_job_for_each_cell_unless_nodes_are_spoken_of(given: dict[str, Any], array: bool):
    assert is_array(choice(**given)) is array


def test_in_an_array_each_cell_asks_for_what_it_needs():
    on_gpus = {"device": "cuda:0", "ranks": 4, "parallel": "ddp"}
    cells = some({"threads": None}, {"threads": 3}, {"threads": 2, "ranks": 2, "parallel": "ddp"}, on_gpus)
    jobs = split(cells, choice(), SETTINGS, first=5)
    assert [(job.job, [cell.cell for cell in job.cells], job.lanes, job.timeout_s) for job in jobs] == [
        (str(5 + n), [n], 1, 9.0) for n in range(4)
    ]
    assert [job.resources for job in jobs] == [
        Resources(cores_per_node=1, time="0:30"),
        Resources(cores_per_node=3, time="0:30"),
        Resources(cores_per_node=4, time="0:30"),
        Resources(gpus_per_node=4, cores_per_node=5, time="0:30"),
    ]
    (over_nodes,) = split(cells[3:], choice(form="array", gpus_per_node=2), SETTINGS)
    assert (over_nodes.resources.nodes, over_nodes.resources.gpus_per_node) == (2, 2)


def test_an_allocation_has_all_cells_and_the_lanes_asked_for():
    cells = some({"device": "cuda:0"}, {"device": "cuda:0", "batch_size": 2})
    (job,) = split(cells, choice(nodes=2, gpus_per_node=8), SETTINGS)
    assert job.cells == tuple(cells)
    assert (job.lanes, job.resources.nodes, job.resources.gpus_per_node) == (0, 2, 8)
    (of_two,) = split(some({"threads": 3}), choice(lanes=2), SETTINGS)
    assert (of_two.lanes, of_two.resources.cores_per_node) == (2, 6)
    (of_all,) = split(some({"threads": 3}), choice(nodes=1), SETTINGS)
    assert of_all.resources.cores_per_node == 0
    assert split([], choice(nodes=1), SETTINGS) == ()


def test_the_longest_cells_are_dealt_first_to_the_node_with_least():
    cells = some(*({"measure_steps": steps} for steps in (10, 300, 20, 100, 200, 170)))
    dealt = shares(cells, 2)
    assert [sum(cell.spec.measure_steps for cell in share) for share in dealt] == [400, 400]
    assert all([cell.cell for cell in share] == sorted(cell.cell for cell in share) for share in dealt)
