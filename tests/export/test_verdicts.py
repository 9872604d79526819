"""Notes under a table on how far its numbers can be trusted."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.merge import Result, merge
from cs336_tui.events.environment import HostSample
from cs336_tui.events.events import DeviceSampled, Event, StageChanged
from cs336_tui.export.writing.verdicts import (
    MOST_LINES,
    cell_names,
    judgement_of,
    trust_notes,
    verdict_table,
    without_numbers,
)
from cs336_tui.session.state import SessionState
from tests.loading import python
from tests.samples import a_spec, cell_end, cell_start, state_of, steps
from tests.session.made import Cell, events_of, results_of, session_of


def flat(seed: int = 0, n: int = 40) -> list[float]:
    noise = random.Random(seed)
    return [0.1 * (1 + 0.005 * noise.gauss(0, 1)) for _ in range(n)]


def drifting(seed: int = 0, n: int = 40) -> list[float]:
    return [time_s * (1 + 0.2 * step / n) for step, time_s in enumerate(flat(seed, n))]


def cell(times_s: Sequence[float], **spec: Any) -> Cell:
    return Cell(a_spec(device="cpu", measure_steps=40, **spec), times_s)


def spiky(seed: int, **spikes_s: float) -> list[float]:
    """Flat, but for these steps, such as ``at_7``."""
    times_s = flat(seed)
    for at, time_s in spikes_s.items():
        times_s[int(at.removeprefix("at_"))] = time_s
    return times_s


def on_a_busy_host(cells: int) -> SessionState:
    """Others took a core of two while each cell used all it could get."""
    busy = HostSample(cpu=1.0, cpu_count=2, child_cores=1.0, load_1m=3.0)
    events: list[Event] = []
    for event in events_of(*(Cell(a_spec(device="cpu", seed=seed), flat(seed)) for seed in range(cells))):
        events.append(event)
        if isinstance(event, StageChanged) and event.stage == "measuring":
            events.append(DeviceSampled(at=event.at, host=busy))
    return state_of(events)


SHORT = [0.1, 0.1]

MANY = [cell(SHORT, context_length=128 * size) for size in range(1, MOST_LINES + 1)]

AGAIN = a_spec(device="cpu", measure_steps=2)

NOTED: dict[str, tuple[Result, ...]] = {
    "no reason to doubt a number": results_of(cell(flat())),
    "each doubted cell with its evidence and what to do": results_of(
        cell(flat()), cell(drifting(), context_length=256), cell(SHORT, context_length=512)
    ),
    "repeats are told apart": results_of(Cell(AGAIN, SHORT), Cell(AGAIN, SHORT, repeat=2)),
    "a line each": results_of(*MANY),
    "many doubted cells are counted by verdict": results_of(*MANY, cell(drifting(), seed=1), cell(flat(), seed=2)),
    "a contended cell names what was seen": merge([("one", on_a_busy_host(1))]),
    "what describes doubted cells is not counted among their doubts": merge([("one", on_a_busy_host(MOST_LINES + 1))]),
    "what too few steps hide is not blamed on the device": results_of(
        cell(flat()), cell(SHORT, seed=1), cell([0.1, 0.0], seed=2)
    ),
    "two sessions that say the same say it once": merge(
        [("mine", session_of(cell(flat(0)))), ("yours", session_of(cell(flat(1))))]
    ),
    "two sessions that say different things are named": merge(
        [("mine", session_of(cell(flat(0)))), ("yours", session_of(cell(SHORT)))]
    ),
    "two sessions that say the same of some cells are counted together": merge(
        [(name, session_of(cell(flat(seed)), cell(SHORT, seed=9))) for seed, name in enumerate(("mine", "yours"))]
    ),
    "spikes that were limited for the classification": results_of(cell(spiky(0, at_7=0.2, at_23=0.15))),
    "notes that differ in their number alone are one": results_of(
        cell(spiky(1, at_7=0.2), seed=1), cell(spiky(2, at_7=0.2, at_23=0.15), seed=2)
    ),
}


@pytest.mark.parametrize("case", NOTED)
def test_notes_on_trust(case: str, snapshot: SnapshotAssertion) -> None:
    assert "\n".join(trust_notes(NOTED[case])) == snapshot


def test_one_and_several_are_alike() -> None:
    capped = "power cap in 1 of 1 sample while measuring", "power cap in 12 of 20 samples while measuring"
    assert len({without_numbers(note) for note in capped}) == 1
    assert len({without_numbers(note) for note in (capped[0], "power cap in none")}) == 2


def test_cells_without_timings_are_not_judged() -> None:
    results = results_of(Cell(a_spec(), status="oom"), Cell(a_spec(), status=None))
    assert [judgement_of(result.cell, result.state) for result in results] == [None, None]
    assert trust_notes(results) == ()


def test_a_cell_that_ran_again_is_judged_again() -> None:
    state = session_of(cell(SHORT))
    (before,) = (judgement_of(each, state) for each in state.cells.values())
    state_of([*cell_start(0), *steps(0, (), drifting()), cell_end(0)], state)
    (after,) = (judgement_of(each, state) for each in state.cells.values())
    assert ("too-few-steps" in before.names, "drifting" in after.names) == (True, True)


def test_the_table_of_verdicts_has_intervals() -> None:
    table = verdict_table(results_of(cell(flat()), cell(drifting(), seed=1), Cell(a_spec(), status="oom")))
    assert [column.header for column in table.columns][:4] == ["cell", "verdict", "n", "mean (ms)"]
    assert len(table.rows) == 2, "the cell that ran out of memory has no number to judge"
    first, second = table.records
    assert first["verdict"] == "steady"
    assert "drifting" in str(second["verdict"])
    assert first["interval_low_s"] < first["mean_s"] < first["interval_high_s"]  # type: ignore[operator]
    low, _, high = table.rows[0][4].partition(" to ")
    assert float(low) == pytest.approx(first["interval_low_s"] * 1e3, abs=0.02)  # type: ignore[operator]
    assert float(high) == pytest.approx(first["interval_high_s"] * 1e3, abs=0.02)  # type: ignore[operator]
    assert any(line.startswith("95 % CI: ") for line in table.footnotes)


def test_nothing_is_loaded_by_the_first_judgement_once_it_is_ready() -> None:
    program = (
        "import sys\n"
        "from cs336_tui.export.writing.verdicts import get_ready, judgement_of\n"
        "from tests.session.made import cell, session_of\n"
        "session = session_of(cell([0.1, 0.102, 0.101, 0.15] * 10))\n"
        "assert 'numpy' not in sys.modules\n"
        "get_ready()\n"
        "before = set(sys.modules)\n"
        "assert judgement_of(session.cells[0], session)\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    done = python(program)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_cells_that_no_field_tells_apart_are_named_by_number() -> None:
    passes = {"old": ("forward", "backward"), "new": ("forward",)}
    specs = [a_spec(model="mine:GPT", model_path=(path,), pass_=each) for path in passes for each in passes[path]]
    names = cell_names(results_of(*(Cell(spec, [0.1]) for spec in specs)))
    assert [name.rpartition(" · ")[2] for name in names.values()] == ["cell 1", "fp32", "cell 3"]
