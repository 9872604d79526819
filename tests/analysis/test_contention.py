"""Contention: other processes on the cell's GPU, cores and host, and cells that ran beside it."""

import json
from typing import Any

import msgspec
import pytest

from cs336_tui.analysis.comparison import compare, mixed_provenance
from cs336_tui.analysis.contention import ran_beside
from cs336_tui.analysis.judgement import Judgement
from cs336_tui.analysis.verdicts import judge
from cs336_tui.events.environment import GpuProcess, GpuSample
from cs336_tui.events.events import CellsQueued, CellStarted, Event, Lane, LanesOpened
from cs336_tui.export.record import document_of, to_csv, to_json
from cs336_tui.export.writing.verdicts import trust_notes
from cs336_tui.session.state import SessionState
from tests.analysis.judging import AT, FLAT, GPU, ON_CPU, a_cell, events_of_cell, evidence, host, sample
from tests.export.grids import merged
from tests.samples import START, a_spec, cell_end, state_of


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"samples": [sample(gpu=GpuSample(other_processes=(GpuProcess(pid=7, name="python"), GpuProcess(pid=9))))]},
         "also on the GPU: python (7), process 9 (stop what else uses the GPU"),
        ({"cpu_wait_s": 0.3},
         "its thread was runnable but waiting 10 % of the time (repeat it when nothing"),
        ({"spec": ON_CPU, "cpu_wait_s": 3.0},
         "each of its 4 threads was runnable but waiting 25 % of the time"),
        ({"spec": ON_CPU, "cpu_wait_s": 0.31, "longest_cpu_wait_s": 0.3},
         "a thread was runnable but waiting 10 % of the time (repeat it when nothing"),
        ({"longest_cpu_wait_s": 0.3}, "a thread was runnable but waiting 10 % of the time"),
        ({"spec": ON_CPU, "samples": [host(cpu=1.0, child_cores=3.0)], "usable_cores": 2},
         "other processes used 1.0 of 4 cores (4.0 busy in all), while the cell may use 2 only"),
        ({"spec": ON_CPU, "samples": [host(cpu=1.0, child_cores=3.0)]},
         "other processes used 1.0 of 4 cores (4.0 busy in all) ("),
        ({"samples": [host(steal=0.08)]}, "the hypervisor took 8.0 % of the cores' time"),
        ({"spec": ON_CPU, "samples": [host(load_1m=9.5)]},
         "load average 9.5 on 4 cores (this cell's share: 4 at most)"),
    ],
)  # fmt: skip
def test_whoever_took_the_gpu_or_the_cores_is_named(more: dict[str, Any], said: str) -> None:
    more = {"measured_for_s": 3.0, "samples": [sample()], "spec": {"threads": 4}} | more
    found = judge(state_of(map(_with_threads, events_of_cell(FLAT, **more))).cells[0])
    assert found.names == ("steady", "contended")
    assert said in found.sentence


def _with_threads(event: Event, threads: int = 4) -> Event:
    """The event with this number of threads in force; sample cells have 32."""
    if hasattr(event, "in_force"):
        return msgspec.structs.replace(event, in_force=msgspec.structs.replace(event.in_force, threads=threads))
    return event


def test_more_threads_than_cores_contend_with_each_other() -> None:
    found = judge(a_cell(FLAT, spec=ON_CPU, samples=[sample()], measured_for_s=3.0, cpu_wait_s=48.0))
    said = "each of its 32 threads was runnable but waiting 50 % of the time, with 32 threads on 4 cores"
    assert said in found.sentence
    assert found.holding[-1].advice == "--threads 4"
    found = judge(a_cell(FLAT, spec=ON_CPU, measured_for_s=3.0, longest_cpu_wait_s=2.5, usable_cores=3))
    assert "waiting 83 % of the time, with 32 threads on 3 cores" in found.sentence
    assert found.holding[-1].advice == "--threads 3"


@pytest.mark.parametrize("spec", [{}, ON_CPU])
def test_many_threads_that_wait_a_little_each_are_no_contention(spec: dict[str, Any]) -> None:
    """Threads that wait in turns add up to much, while no step waits for more than its slowest."""
    waits = {"measured_for_s": 3.0, "cpu_wait_s": 3.0, "longest_cpu_wait_s": 0.1}
    holds, said = evidence(judge(a_cell(FLAT, spec=spec, samples=[sample()], **waits)), "contended")
    assert (holds, "a thread was runnable but waiting 3.3 % of the time" in said) == (False, True)


@pytest.mark.parametrize(
    ("busy", "holds"),
    [
        ({"cpu": 0.55, "child_cores": 1.0}, None),  # 2.2 of 4 cores: whether among the two is not told
        ({"cpu": 0.55, "child_cores": 2.1}, False),
        ({"cpu": 0.45, "child_cores": 1.0}, False),  # 1.8 of 4: of any two one is free at times
        ({"cpu": 0.99, "child_cores": 2.0}, True),
    ],
)
def test_others_cores_may_be_ones_that_the_cell_may_not_use(busy: dict[str, float], holds: bool | None) -> None:
    more = {"spec": ON_CPU, "cpu_wait_s": None, "measured_for_s": 3.0, "usable_cores": 2}
    found = evidence(judge(a_cell(FLAT, samples=[host(**busy)], **more)), "contended")
    assert found[0] is holds
    assert "while the cell may use 2 only" in found[1]


def listed(after_s: float, age_s: float | None, *others: GpuProcess) -> Event:
    return sample(gpu=GpuSample(clock_reasons=(), other_processes=others, processes_age_s=age_s), at=AT + after_s)


STRANGER = GpuProcess(pid=7, name="python")


@pytest.mark.parametrize(
    ("within", "after", "found"),
    [
        ([listed(0.5, 0.9)], [], (None, "which processes use the GPU was read before measuring only, while the")),
        ([listed(0.5, 0.9, STRANGER)], [], (None, "which processes use the GPU was read before measuring only")),
        ([listed(0.5, 0.9), listed(2.5, 0.0)], [], (False, "no other process on the GPU in 1 sample while measuring")),
        ([listed(0.5, 0.9)], [listed(60.1, 0.0)], (False, "no other process on the GPU right after measuring")),
        ([], [listed(60.1, 0.0)], (False, "no other process on the GPU right after measuring")),
        ([], [listed(60.1, 0.0, STRANGER)], (True, "also on the GPU right after measuring: python (7)")),
        ([listed(2.5, 0.0)], [listed(60.1, 0.0, STRANGER)], (True, "also on the GPU right after measuring: python")),
        ([listed(2.5, 0.0, STRANGER)], [listed(60.1, 0.0)], (True, "also on the GPU: python (7)")),
        ([], [listed(70.0, 0.0)], (None, "no device sample fell into the 3.0 s of measuring, while the host was")),
    ],
)
def test_a_list_of_processes_tells_of_the_window_that_it_was_read_in(
    within: list[Event], after: list[Event], found: tuple[bool | None, str]
) -> None:
    events = events_of_cell(FLAT, samples=within, measured_for_s=3.0)
    holds, said = evidence(judge(state_of([*events, *after]).cells[0]), "contended")
    assert (holds, said[: len(found[1])]) == found


def test_of_another_gpu_nothing_is_concluded() -> None:
    gpu = msgspec.structs.replace(GPU, uuid="GPU-9", clock_reasons=("hardware thermal",), other_processes=(STRANGER,))
    found = judge(a_cell(FLAT, samples=[sample(gpu=gpu)]))
    for name in ("throttled", "contended"):
        holds, said = evidence(found, name)
        assert holds is None
        assert said.startswith("another GPU than cuda:0 was sampled, GPU-9")


@pytest.mark.parametrize(
    "busy", [host(cpu=1.0, child_cores=3.9), host(cpu=0.6, child_cores=1.4), host(load_1m=5.0), host(steal=0.04)]
)
def test_a_host_that_is_full_of_the_cell_itself_or_has_room_is_not_blamed(busy: Event) -> None:
    state = state_of(map(_with_threads, events_of_cell(FLAT, spec=ON_CPU, samples=[busy])))
    holds, said = evidence(judge(state.cells[0]), "contended")
    assert holds is False
    assert "was runnable but waiting 0.0 % of the time" in said


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"samples": [sample(gpu=GpuSample(clock_reasons=()))]},
         "NVML did not tell other processes on the GPU apart, as in most containers, while the host was free"),
        ({}, "no device sample fell into the 3.0 s of measuring"),
        ({"spec": {"device": "mps"}, "samples": [sample(gpu=None)]},
         "other processes on the GPU cannot be seen on mps, while the host was free"),
        ({"spec": ON_CPU, "cpu_wait_s": None},
         "no device sample fell into the 3.0 s of measuring; "
         "this system does not tell how long threads waited for a core"),
    ],
)  # fmt: skip
def test_contention_that_cannot_be_seen_is_not_ruled_out(more: dict[str, Any], why: str) -> None:
    assert evidence(judge(a_cell(FLAT, measured_for_s=3.0, **more)), "contended") == (None, why)
    if "cpu_wait_s" not in more:
        waited = judge(a_cell(FLAT, measured_for_s=3.0, **more, longest_cpu_wait_s=1.5))
        assert "contended" in waited.names, "what contends is said though the rest is not seen"


def test_threads_of_all_ranks_are_the_cells_own() -> None:
    def found(usable_cores: int, threads: int, nodes: tuple[str, ...] = ()) -> Judgement:
        spec = {"device": "cpu", "threads": None, "ranks": len(nodes) or 2}
        waits = {"measured_for_s": 3.0, "longest_cpu_wait_s": 2.5}
        more = {**waits, "usable_cores": usable_cores, "rank_nodes": nodes}
        events = events_of_cell(FLAT, spec=spec, samples=[host(load_1m=9.5)], **more)
        return judge(state_of(_with_threads(event, threads) for event in events).cells[0])

    several = found(usable_cores=4, threads=3)
    assert "with 6 threads of 2 ranks on 4 cores" in several.sentence
    assert several.holding[-1].advice == "--threads 2"
    assert "load average" not in several.sentence  # 9.5 is less than 4 cores and 6 threads
    one = found(usable_cores=1, threads=1)
    assert one.holding[-1].advice.startswith("at most 1 rank here")
    assert "load average 9.5 on 4 cores (this cell's share: 2 at most)" in one.sentence
    assert "threads of" not in found(usable_cores=2, threads=1, nodes=("n1", "n1", "n2")).sentence
    assert "with 3 threads of 3 ranks on 2 cores" in found(2, 1, ("n1", "n1", "n1", "n2")).sentence


LANES = (Lane(lane=0, device="cpu", cores=(0,)), Lane(lane=1, device="cpu", cores=(1,)), Lane(lane=2, device="cpu"))


def beside_two(spec: dict[str, Any] = ON_CPU, **more: Any) -> SessionState:
    """The first cell in lane 0, while cells 1 and 2 run in lanes 1 and 2."""
    further = CellsQueued(at=START, first=1, specs=(a_spec(context_length=64), a_spec(context_length=32)))
    begun = [CellStarted(at=START + 2, cell=cell, lanes=(cell,)) for cell in (1, 2)]
    events: list[Event] = []
    for event in map(_with_threads, events_of_cell(FLAT, spec=spec, **more)):
        if isinstance(event, CellStarted):
            in_lane = msgspec.structs.replace(event, lanes=(0,))
            events += [further, LanesOpened(at=START, lanes=LANES), in_lane, *begun]
        else:
            events.append(event)
    return state_of([*events, cell_end(1), cell_end(2)])


def contended(state: SessionState) -> tuple[bool | None, str, str]:
    (check,) = (each for each in judge(state.cells[0]).checks if each.name == "contended")
    return check.holds, check.evidence, check.advice


def test_neighbours_are_named_and_are_no_contention_by_themselves() -> None:
    state = beside_two(samples=[host(cpu=0.75, child_cores=1.0, beside_cores=2.0)])
    assert ran_beside(state.cells[0]) == "ran beside cells 2 and 3, in lanes 1 and 2"
    assert ran_beside(state.cells[0]) in judge(state.cells[0]).notes
    assert any("ran beside cells 2 and 3, in lanes 1 and 2" in note for note in trust_notes(merged(state)))


FEWER_LANES = "repeat it with --lanes 1, or with fewer lanes"


@pytest.mark.parametrize(
    ("more", "holds", "said", "advice"),
    [
        ({"samples": [host(cpu=0.75, child_cores=1.0, beside_cores=2.0)]}, False,
         "cells 2 and 3, beside it, used 2.0 of 4 cores (3.0 busy in all)", ""),
        ({"samples": [host(cpu=1.0, child_cores=1.0, beside_cores=2.9)]}, True,
         "cells 2 and 3, beside it, used 2.9 of 4 cores (4.0 busy in all)", FEWER_LANES),
        ({"samples": [host()], "longest_cpu_wait_s": 0.3, "measured_for_s": 3.0}, True,
         "was runnable but waiting 10 % of the time, beside cells 2 and 3", FEWER_LANES),
        ({"samples": [host(cpu=1.0, child_cores=1.0, beside_cores=3.0)], "usable_cores": 1}, False,
         "cells 2 and 3 ran beside it, which has cores of its own", ""),
        ({"samples": [host(cpu=1.0, child_cores=1.0, beside_cores=2.0)]}, True,
         "other processes used 1.0 of 4 cores (4.0 busy in all)", "repeat it when nothing else runs on this machine"),
    ],
)  # fmt: skip
def test_what_neighbours_took_is_contention(more: dict[str, Any], holds: bool, said: str, advice: str) -> None:
    found = contended(beside_two(**more))
    assert (found[0], said in found[1], advice in found[2]) == (holds, True, True)
    assert bool(found[2]) == holds


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
    run = json.loads(to_json(document_of(state)))["runs"][0]
    assert (run["lanes"], run["neighbours"], run["job"]) == ([0], [1, 2], None)
    environment = state.cells[0].environment
    assert run["machine"] == environment.host
    head, first, *_ = to_csv(document_of(state)).splitlines()
    assert {"lanes", "neighbours", "machine"} <= set(head.split(","))
    assert environment.host in first


def test_cells_alone_and_beside_others_are_told_apart() -> None:
    alone = merged(state_of(events_of_cell(FLAT, spec=ON_CPU, samples=[host()])))
    beside = [each for each in merged(beside_two(samples=[host()])) if each.cell.cell == 0]
    assert "side by side: alone | beside other cells" in compare(alone, beside).notes
    assert compare(alone, alone).notes == ()
    assert any("ran alone" in line and "beside other cells" in line for line in mixed_provenance([*alone, *beside]))
