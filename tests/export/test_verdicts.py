"""Notes under a table on how far its numbers can be trusted."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

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
from tests.samples import START, a_spec, cell_end, cell_start, session_start, steps
from tests.session.made import Cell, results_of, session_of


def flat(seed: int = 0, n: int = 40) -> list[float]:
    noise = random.Random(seed)
    return [0.1 * (1 + 0.005 * noise.gauss(0, 1)) for _ in range(n)]


def drifting(seed: int = 0, n: int = 40) -> list[float]:
    return [time_s * (1 + 0.2 * step / n) for step, time_s in enumerate(flat(seed, n))]


def cell(times_s: Sequence[float], **spec: Any) -> Cell:
    return Cell(a_spec(device="cpu", measure_steps=40, **spec), times_s)


def notes(*cells: Cell) -> str:
    return "\n".join(trust_notes(results_of(*cells)))


def test_a_number_without_a_reason_to_doubt_it_has_no_line() -> None:
    said = notes(cell(flat()))
    assert "small" not in said
    assert said.startswith("not observable on cpu: ")


def test_each_doubted_cell_is_named_with_its_evidence_and_what_to_do() -> None:
    results = results_of(cell(flat()), cell(drifting(), context_length=256), cell([0.1, 0.1], context_length=512))
    first, second, *_ = trust_notes(results)
    assert first.startswith("small · context 256 · forward+backward · fp32: drifting: ")
    assert second.startswith("small · context 512 · forward+backward · fp32: too-few-steps: ")
    for line, result in zip((first, second), results[1:], strict=True):
        judgement = judgement_of(result.cell, result.state)
        assert judgement
        assert line.endswith(judgement.sentence)


def test_repeats_are_told_apart() -> None:
    spec = a_spec(device="cpu", measure_steps=2)
    said = notes(Cell(spec, [0.1, 0.1]), Cell(spec, [0.1, 0.1], repeat=2))
    assert "fp32 · repeat 1: too-few-steps" in said
    assert "fp32 · repeat 2: too-few-steps" in said


def test_many_doubted_cells_are_counted_by_verdict() -> None:
    cells = [cell([0.1, 0.1], context_length=128 * size) for size in range(1, MOST_LINES + 1)]
    assert notes(*cells).count("too-few-steps: ") == MOST_LINES
    said = notes(*cells, cell(drifting(), seed=1), cell(flat(), seed=2)).split("\n")
    assert said[0].startswith(f"{MOST_LINES + 1} of {MOST_LINES + 2} cells are in doubt")
    (few,) = (line for line in said if line.startswith("too-few-steps: "))
    assert few.startswith(f"too-few-steps: {MOST_LINES} of {MOST_LINES + 2} cells (small · context 128")
    assert f"and {MOST_LINES - 3} more" in few
    assert "; first cell: 2 measured steps, and at least 10 are needed" in few
    assert few.endswith("(--steps 30)")
    (drift,) = (line for line in said if line.startswith("drifting: "))
    assert "seed 1" in drift
    assert ": steps get gradually slower, by " in drift
    assert not any(line.startswith("steady") for line in said)


def test_what_describes_a_doubted_cell_is_not_counted_among_the_doubts() -> None:
    busy = HostSample(cpu=1.0, cpu_count=2, child_cores=1.0, load_1m=3.0)
    state = SessionState()
    specs = [a_spec(device="cpu", seed=seed) for seed in range(MOST_LINES + 1)]
    for event in session_start(specs):
        state.apply(event)
    for number in range(len(specs)):
        for event in [*cell_start(number), *steps(number, (), flat(number)), cell_end(number)]:
            state.apply(event)
            if isinstance(event, StageChanged) and event.stage == "measuring":
                state.apply(DeviceSampled(at=event.at, host=busy))
    said = trust_notes(merge([("one", state)]))
    assert any(line.startswith(f"contended: {MOST_LINES + 1} of {MOST_LINES + 1} cells") for line in said), said
    assert not any(line.startswith("steady") for line in said)


def test_what_cannot_be_observed_is_one_line_a_device() -> None:
    said = notes(cell(flat()), cell([0.1, 0.1], seed=1)).split("\n")
    (line,) = (line for line in said if "not observable" in line)
    assert line.startswith("not observable on cpu: throttled")
    for verdict in ("throttled", "launch-bound", "allocator-retry"):
        assert verdict in line
    assert "drifting" not in line


def test_what_too_few_steps_hide_is_not_blamed_on_the_device() -> None:
    cells = cell(flat()), cell([0.1, 0.1], seed=1), cell([0.1, 0.0], seed=2)
    said = notes(*cells).split("\n")
    of_steps = "steady, still-warming, drifting, two-levels, periodic, quantised, outliers in 1 of 3 cells"
    assert f"too few steps to tell: {of_steps}" in said
    assert f"clock too coarse to tell: {of_steps}" in said


def test_sessions_side_by_side_are_named() -> None:
    states = [session_of(cell(flat(seed))) for seed in (0, 1)]
    said = trust_notes(merge([("mine", states[0]), ("yours", states[1])]))
    (line,) = (line for line in said if "not observable" in line)
    assert line.startswith("not observable on cpu: "), "both sessions say the same, and it is said once"
    states[1] = session_of(cell([0.1, 0.1]))
    said = trust_notes(merge([("mine", states[0]), ("yours", states[1])]))
    assert [line.partition(":")[0] for line in said if "to tell: " in line] == ["yours"]


def test_sessions_that_say_the_same_of_some_cells_are_counted_together() -> None:
    states = [session_of(cell(flat(seed)), cell([0.1, 0.1], seed=9)) for seed in (0, 1)]
    said = trust_notes(merge([("mine", states[0]), ("yours", states[1])]))
    (line,) = (line for line in said if "to tell: " in line)
    assert line.startswith("too few steps to tell: ")
    assert line.endswith("in 2 of 4 cells")


def test_spikes_that_were_limited_for_the_classification_are_said() -> None:
    times = flat()
    times[7], times[23] = 0.2, 0.15
    assert "clipped" in notes(cell(times))
    assert "clipped" not in notes(cell(flat()))


def test_notes_that_differ_in_number_alone_are_one() -> None:
    one, several = flat(1), flat(2)
    one[7] = 0.2
    several[7], several[23] = 0.2, 0.15
    said = [line for line in notes(cell(one, seed=1), cell(several, seed=2)).split("\n") if "clipped" in line]
    (line,) = said
    assert re.match(r"up to \d+ spikes per cell were clipped for this analysis only, in 2 of 2 cells \(small", line)
    assert line.endswith("; mean and std include them")


def test_one_and_several_are_alike() -> None:
    capped = "power cap in 1 of 1 sample while measuring", "power cap in 12 of 20 samples while measuring"
    assert len({without_numbers(note) for note in capped}) == 1
    assert len({without_numbers(note) for note in (capped[0], "power cap in none")}) == 2


def test_cells_without_timings_are_not_judged() -> None:
    results = results_of(Cell(a_spec(), status="oom"), Cell(a_spec(), status=None))
    assert [judgement_of(result.cell, result.state) for result in results] == [None, None]
    assert trust_notes(results) == ()


def test_a_cell_that_ran_again_is_judged_again() -> None:
    state = session_of(cell([0.1, 0.1]))
    (before,) = (judgement_of(each, state) for each in state.cells.values())
    for event in session_again(drifting()):
        state.apply(event)
    (after,) = (judgement_of(each, state) for each in state.cells.values())
    assert before
    assert after
    assert ("too-few-steps" in before.names, "drifting" in after.names) == (True, True)


def session_again(times_s: Sequence[float]) -> list[Event]:
    return [*cell_start(0), *steps(0, (), times_s), cell_end(0)]


def results_with_a_busy_host() -> tuple[Result, ...]:
    """Others took a core of two while the cell used all it could get."""
    state = session_of(Cell(a_spec(device="cpu"), status=None))
    host = HostSample(cpu=1.0, cpu_count=2, child_cores=1.0, load_1m=3.0)
    for event in session_again(flat()):
        state.apply(event)
        if isinstance(event, StageChanged) and event.stage == "measuring":
            state.apply(DeviceSampled(at=START + 15, host=host))
    return merge([("one", state)])


def test_a_contended_cell_names_what_was_seen() -> None:
    said = "\n".join(trust_notes(results_with_a_busy_host()))
    assert "contended: " in said


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
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=root)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_cells_that_no_field_tells_apart_are_named_by_number() -> None:
    passes = {"old": ("forward", "backward"), "new": ("forward",)}
    specs = [a_spec(model="mine:GPT", model_path=(path,), pass_=each) for path in passes for each in passes[path]]
    names = cell_names(results_of(*(Cell(spec, [0.1]) for spec in specs)))
    assert [name.rpartition(" · ")[2] for name in names.values()] == ["cell 1", "fp32", "cell 3"]
