"""Cells that ran beside others: they say so, and are contended only where that cost them something."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from cs336_tui.analysis.comparison import compare, mixed_provenance
from cs336_tui.analysis.contention import ran_beside
from cs336_tui.events.environment import Environment, GpuSample
from cs336_tui.events.events import CellsQueued, CellStarted, Event, Lane, LanesOpened, ModelBuilt
from cs336_tui.export.record import to_csv, to_json
from cs336_tui.export.writing.verdicts import trust_notes
from cs336_tui.session.state import SessionState
from tests.analysis.judging import FLAT, ON_CPU, events_of_cell, host, judged, sample
from tests.export.grids import merged
from tests.samples import START, a_spec, cell_end, state_of

LANES = (Lane(lane=0, device="cpu", cores=(0,)), Lane(lane=1, device="cpu", cores=(1,)), Lane(lane=2, device="cpu"))


def beside_two(spec: dict[str, Any] = ON_CPU, **more: Any) -> SessionState:
    """The first cell in lane 0, while cells 1 and 2 run in lanes 1 and 2."""
    further = CellsQueued(at=START, first=1, specs=(a_spec(context_length=64), a_spec(context_length=32)))
    begun = [CellStarted(at=START + 2, cell=cell, lanes=(cell,)) for cell in (1, 2)]
    events: list[Event] = []
    for event in events_of_cell(FLAT, spec=spec, **more):
        if isinstance(event, CellStarted):
            in_lane = msgspec.structs.replace(event, lanes=(0,))
            events += [further, LanesOpened(at=START, lanes=LANES), in_lane, *begun]
        elif isinstance(event, ModelBuilt):
            in_force = msgspec.structs.replace(event.in_force, threads=4)
            events.append(msgspec.structs.replace(event, in_force=in_force))
        else:
            events.append(event)
    return state_of([*events, cell_end(1), cell_end(2)])


def contended(state: SessionState) -> tuple[bool | None, str, str]:
    (check,) = (each for each in judged(state.cells[0]).checks if each.name == "contended")
    return check.holds, check.evidence, check.advice


def test_neighbours_are_named_and_are_no_contention_by_themselves() -> None:
    state = beside_two(samples=[host(cpu=0.75, child_cores=1.0, beside_cores=2.0)])
    assert ran_beside(state.cells[0]) == "ran beside cells 2 and 3, in lanes 1 and 2"
    assert ran_beside(state.cells[0]) in judged(state.cells[0]).notes
    holds, evidence, _ = contended(state)
    assert holds is False
    assert "cells 2 and 3, beside it, used 2.0 of 4 cores (3.0 busy in all)" in evidence
    assert any("ran beside cells 2 and 3, in lanes 1 and 2" in note for note in trust_notes(merged(state)))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"samples": [host(cpu=1.0, child_cores=1.0, beside_cores=2.9)]},
         "cells 2 and 3, beside it, used 2.9 of 4 cores (4.0 busy in all)"),
        ({"samples": [host()], "longest_cpu_wait_s": 0.3, "measured_for_s": 3.0},
         "was runnable but waiting 10 % of the time, beside cells 2 and 3"),
    ],
)  # fmt: skip
def test_what_neighbours_took_is_contention(more: dict[str, Any], said: str) -> None:
    holds, evidence, advice = contended(beside_two(**more))
    assert holds
    assert said in evidence
    assert advice == "repeat it with --lanes 1, or with fewer lanes"


def test_cells_on_cores_of_their_own_share_none() -> None:
    full = [host(cpu=1.0, child_cores=1.0, beside_cores=3.0)]
    holds, evidence, _ = contended(beside_two(samples=full, usable_cores=1))
    assert holds is False
    assert "cells 2 and 3 ran beside it, which has cores of its own" in evidence


def test_what_others_took_beside_the_neighbours_is_theirs() -> None:
    _, evidence, advice = contended(beside_two(samples=[host(cpu=1.0, child_cores=1.0, beside_cores=2.0)]))
    assert "other processes used 1.0 of 4 cores (4.0 busy in all)" in evidence
    assert "repeat it when nothing else runs on this machine" in advice


@pytest.mark.parametrize(
    ("reasons", "holds"), [(("hardware power brake slowdown",), True), (("software power cap",), False)]
)
def test_a_gpu_that_is_slowed_down_beside_others_is_contended(reasons: tuple[str, ...], holds: bool) -> None:
    gpu = GpuSample(sm_clock_mhz=1200, clock_reasons=reasons, other_processes=())
    found = contended(beside_two(spec={}, samples=[sample(host(cpu=0.5, beside_cores=0.2).host, gpu)]))
    assert found[0] is holds
    assert ("its GPU was slowed down (hardware power brake slowdown) in 1 of 1 sample" in found[1]) is holds


def test_exports_have_lanes_neighbours_and_machine() -> None:
    state = beside_two(samples=[host()])
    run = json.loads(to_json(state))["runs"][0]
    assert (run["lanes"], run["neighbours"], run["job"]) == ([0], [1, 2], None)
    environment = state.cells[0].environment
    assert isinstance(environment, Environment)
    assert run["machine"] == environment.host
    head, first, *_ = to_csv(state).splitlines()
    assert {"lanes", "neighbours", "machine"} <= set(head.split(","))
    assert environment.host in first


def test_cells_alone_and_beside_others_are_told_apart() -> None:
    alone = merged(state_of(events_of_cell(FLAT, spec=ON_CPU, samples=[host()])))
    beside = [each for each in merged(beside_two(samples=[host()])) if each.cell.cell == 0]
    assert "side by side: alone | beside other cells" in compare(alone, beside).notes
    assert compare(alone, alone).notes == ()
    assert any("ran alone" in line and "beside other cells" in line for line in mixed_provenance([*alone, *beside]))
