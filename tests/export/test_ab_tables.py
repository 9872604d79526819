"""Results of interleaved rounds of two cells, and their table."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.ab import FIRST_LOOK, Turns, is_decided, ratio_of_rounds, rounds_found, runs_in_turns, turns_of
from cs336_tui.analysis.merge import Result, merge
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import CellsQueued, CellStarted, Event
from cs336_tui.export.reports import report_tables
from cs336_tui.export.subjects.comparison import turns_table
from cs336_tui.export.summary import summary_markdown
from cs336_tui.export.writing.tables import Table
from cs336_tui.stats.intervals import t_quantile
from tests.export.keeping import kept
from tests.samples import a_spec, cell_end, cell_start, session_start, state_of, steps

A = a_spec(measure_steps=20)
B = a_spec(measure_steps=20, precision="tf32")
NOISE = [1 + 0.002 * math.sin(17.0 * step) for step in range(20)]
"""Noise so small that a few rounds resolve one percent."""


class Both:
    """Outcomes of A and B in one round. Both ran in one process unless `apart`."""

    def __init__(self, a_s: Sequence[float], b_s: Sequence[float], *, apart: bool = False, **ends: Any) -> None:
        self.times = (a_s, b_s)
        self.apart = apart
        self.ends = (ends.get("a", {}), ends.get("b", {}))


def rounds_of(*rounds: Both, a: CellSpec = A, b: CellSpec = B, in_turns: bool = False) -> list[tuple[Result, Result]]:
    events: list[Event] = session_start([spec for _ in rounds for spec in (a, b)])
    if in_turns:
        repeats = tuple(number for number, _ in enumerate(rounds, 1) for _ in "AB")
        events = [
            msgspec.structs.replace(each, in_turns=True, repeats=repeats) if isinstance(each, CellsQueued) else each
            for each in events
        ]
    for number, both in enumerate(rounds):
        cells = 2 * number, 2 * number + 1
        for cell in cells:
            for event in cell_start(cell):
                if isinstance(event, CellStarted) and not both.apart:
                    event = msgspec.structs.replace(event, pid=2000 + number)
                events.append(event)
        for cell, times in zip(cells, both.times, strict=True):
            events += steps(cell, (), times)
        events += [cell_end(cell, **end) for cell, end in zip(cells, both.ends, strict=True)]
    results = merge([("one", state_of(events))])
    return list(zip(results[::2], results[1::2], strict=True))


def a_round(ratio: float, base_s: float = 0.01, **more: Any) -> Both:
    """A takes `ratio` times as long as B; both drift together."""
    drift = [base_s * (1 + 0.3 * step / 20) for step in range(20)]
    a_s = [ratio * time_s * noise for time_s, noise in zip(drift, NOISE, strict=True)]
    return Both(a_s, drift, **more)


def table_of(rounds: Sequence[tuple[Result, Result]]) -> Table:
    return turns_table(turns_of(rounds), [result for both in rounds for result in both])


def found(*rounds: Both) -> Turns:
    return turns_of(rounds_of(*rounds))


@pytest.mark.parametrize(("ratio", "verdict"), [(1.03, "slower"), (0.97, "faster"), (1.0, "same")])
def test_a_drift_that_is_common_to_both_hides_no_difference(ratio: float, verdict: str) -> None:
    turns = found(*(a_round(ratio, base_s) for base_s in (0.010, 0.012, 0.011, 0.010, 0.013)))
    assert turns.outcome == verdict
    assert turns.ratio.low < ratio < turns.ratio.high
    assert turns.ratio.high - turns.ratio.low < 0.01
    assert [each.ratio is not None for each in turns.rounds] == [True] * 5
    assert "precision: fp32 | tf32" in turns.differs
    assert turns.a.runs == turns.b.runs == 5
    assert turns.a.summary.n == 100


def test_a_round_that_was_broken_off_does_not_count_and_says_why(snapshot: SnapshotAssertion) -> None:
    stopped = {"status": "cancelled", "error": "stopped by the user"}
    part = Both([1.0] * 7, [0.01] * 7, a=stopped, b=stopped)
    turns = found(a_round(1.03), a_round(1.03, 0.012), part)
    assert turns.ratio.ratio == pytest.approx(1.03, rel=0.005)
    assert [each.note for each in turns.rounds] == ["", "", "A and B unfinished after 7 steps: stopped by the user"]
    assert turns.a.runs == 2
    whole = table_of(rounds_of(a_round(1.03), a_round(1.03, 0.012)))
    assert kept(whole, table_of(rounds_of(a_round(1.03), a_round(1.03, 0.012), part))) == snapshot


def test_cells_that_ran_one_after_the_other_are_no_round() -> None:
    turns = found(a_round(1.03), a_round(2.0, apart=True))
    assert turns.rounds[1].note == "A and B ran one after the other, not in turns"
    assert turns.ratio.ratio == pytest.approx(1.03, rel=0.005)


def apart(*ratios: float) -> list[tuple[Result, Result]]:
    """Rounds of two sides with a process each."""
    return rounds_of(*(a_round(ratio, apart=True) for ratio in ratios), in_turns=True)


def test_sides_with_a_process_each_are_rounds_if_they_were_queued_so() -> None:
    rounds = apart(1.04, 1.05, 1.06)
    (again,) = runs_in_turns([side for both in rounds for side in both])
    assert list(again) == rounds
    turns = turns_of(rounds, 0.02)
    assert (turns.is_apart, len(turns.counted), turns.ratio.level) == (True, 3, pytest.approx(1 - 0.05 / 3))
    assert turns.passing == "cannot tell"
    assert turns.explanation.startswith("cannot tell: A takes 1.0")
    table = turns_table(turns, [side for both in rounds for side in both])
    notes = "\n".join(table.footnotes)
    assert "a round is a fresh process of each side" in notes
    assert "both models are in memory" not in notes
    assert "each in a process of its own (cs336-tui gate)" in notes
    assert (table.records[-1]["passing"], table.records[-1]["by"]) == ("cannot tell", 0.02)


def test_rounds_end_when_the_interval_decides_and_no_sooner_than_the_first_look() -> None:
    slower = apart(*[1.05, 1.051] * 5)
    assert [is_decided(slower[:number], 0.02) for number in range(1, 8)] == [False] * (FIRST_LOOK - 1) + [True] * 3
    assert turns_of(slower, 0.02).passing == "slower"
    assert turns_of(apart(*[1.0, 1.001] * 3), 0.02).passing == "not slower"
    assert not is_decided(apart(*[1.0, 1.05] * 4), 0.02)
    assert turns_of(slower).passing is None


def test_a_side_that_is_lost_ends_the_rounds_and_cannot_be_told() -> None:
    lost = Both([], [0.01] * 20, apart=True, a={"status": "failed", "error": "broken"})
    rounds = rounds_of(a_round(1.0, apart=True), lost, in_turns=True)
    assert [is_decided(rounds[:1], 0.02), is_decided(rounds, 0.02)] == [False, True]
    only = turns_of(rounds_of(lost, in_turns=True), 0.02)
    assert only.passing == "cannot tell"
    assert only.explanation == "cannot tell: A and B cannot be compared: A failed: broken."


def test_looks_after_each_round_are_wrong_no_more_often_than_one_interval() -> None:
    """Noise around the very ratio that is asked about, 60 rounds: the share in which a look ever decides on a side."""
    assert ratio_of_rounds(rounds_found(apart(*[1.0, 1.01] * 5))).level == pytest.approx(1 - 0.05 / 10)
    noise, rounds = np.random.default_rng(0).standard_normal((4000, 60)), np.arange(1, 61)
    means = noise.cumsum(1) / rounds
    variances = ((noise**2).cumsum(1) - rounds * means**2) / np.maximum(rounds - 1, 1)
    scores = means / np.sqrt(np.maximum(variances, 1e-12) / rounds)
    limits = np.array([t_quantile(1 - 0.025 / number, number - 1) for number in range(FIRST_LOOK, 61)])
    looks = scores[:, FIRST_LOOK - 1 :]
    assert (looks > limits).any(1).mean() <= 0.025
    assert (looks < -limits).any(1).mean() <= 0.025


def test_without_a_round_that_counts_there_is_no_ratio_but_a_reason(snapshot: SnapshotAssertion) -> None:
    oom = {"status": "oom", "error": "tried to allocate 2 GiB"}
    lost = Both([], [], a={"status": "failed", "error": "B ran out of memory, which ended the round"}, b=oom)
    rounds = rounds_of(lost)
    assert (turns_of(rounds).ratio, turns_of(rounds).outcome) == (None, "ambiguous")
    assert kept(table_of(rounds)) == snapshot
    with pytest.raises(ValueError, match="no rounds"):
        turns_of([])


RANKS = {"a": msgspec.structs.replace(A, ranks=2, parallel="ddp"), "b": msgspec.structs.replace(A, ranks=2)}


def test_exposed_communication_is_the_step_less_that_without_communication(snapshot: SnapshotAssertion) -> None:
    """Both drift together; A takes 1.25 times as long, so that a fifth of its step is communication."""
    rounds = rounds_of(*(a_round(1.25, base_s) for base_s in (0.010, 0.012, 0.011)), **RANKS)
    exposed = turns_of(rounds).exposed
    a_s, b_s = ([time_s for both in rounds for time_s in both[side].cell.step_times_s] for side in (0, 1))
    assert exposed.mean_s == pytest.approx(sum(a_s) / 60 - sum(b_s) / 60)
    assert exposed.low_s < 0.2 * exposed.step_s < exposed.high_s
    assert exposed.share == pytest.approx(0.2, abs=0.001)
    assert exposed.high_s - exposed.low_s < 0.01 * exposed.step_s
    table = table_of(rounds)
    assert table.records[-1]["exposed_s"] == exposed.mean_s
    assert kept(table) == snapshot


def test_either_side_may_be_the_one_that_communicates() -> None:
    factors, bases = (1.25, 1.26, 1.24), (0.010, 0.012, 0.011)
    ways = [
        turns_of(rounds_of(*(a_round(f, s) for f, s in zip(factors, bases, strict=True)), **RANKS)),
        turns_of(rounds_of(*(a_round(1 / f, f * s) for f, s in zip(factors, bases, strict=True)),
                           a=RANKS["b"], b=RANKS["a"])),
    ]  # fmt: skip
    one, other = (turns.exposed for turns in ways)
    assert (one.side, other.side) == ("A", "B")
    assert ways[1].communicating.spec == RANKS["a"]
    for name in ("mean_s", "low_s", "high_s", "step_s", "share"):
        assert getattr(other, name) == pytest.approx(getattr(one, name), rel=0.05), name
    assert other.low_s < other.mean_s < other.high_s


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (RANKS["b"], RANKS["b"]),
        (RANKS["a"], msgspec.structs.replace(RANKS["a"], parallel="zero1")),
        (msgspec.structs.replace(RANKS["a"], precision="tf32"), RANKS["b"]),
        (A, B),
    ],
)
def test_other_pairs_tell_of_no_exposed_communication(a: CellSpec, b: CellSpec) -> None:
    rounds = rounds_of(a_round(1.25), a_round(1.25, 0.012), a=a, b=b)
    assert turns_of(rounds).exposed is None
    assert not any("exposed" in note for note in table_of(rounds).footnotes)


HELD = Both([0.012 if step % 5 == 0 else 0.010 for step in range(20)], [0.010 * noise for noise in NOISE])
OWN = {side: msgspec.structs.replace(spec, optimizer="mine:get_sharded") for side, spec in RANKS.items()}
NOTED: dict[str, list[tuple[Result, Result]]] = {
    "an optimizer of one's own is told beside exposed communication": rounds_of(a_round(1.25), a_round(1.25), **OWN),
    "what was done to pairs": rounds_of(HELD, HELD, HELD),
    "how far each side can be trusted": rounds_of(
        a_round(1.0), a_round(1.0, b={"status": "ok", "num_alloc_retries": 3})
    ),
}


@pytest.mark.parametrize("case", NOTED)
def test_notes_below_the_table(case: str, snapshot: SnapshotAssertion) -> None:
    assert "\n".join(table_of(NOTED[case]).footnotes) == snapshot


def flat(rounds: Sequence[tuple[Result, Result]]) -> list[Result]:
    return [result for both in rounds for result in both]


def test_the_rounds_of_a_session_are_found_again() -> None:
    stopped = {"status": "cancelled", "error": "stopped by the user"}
    rounds = rounds_of(a_round(1.03), a_round(1.03, 0.012), Both([], [], apart=True, a=stopped, b=stopped))
    (found_again,) = runs_in_turns(flat(rounds))
    assert found_again == tuple(rounds)
    (table,) = report_tables([rounds[0][0].state], flat(rounds))["ab"]
    assert table == table_of(rounds)


def test_a_against_itself_is_found_round_by_round() -> None:
    rounds = rounds_of(a_round(1.0), a_round(1.0, 0.012), a_round(1.0, 0.011), b=A)
    assert runs_in_turns(flat(rounds)) == (tuple(rounds),)


def in_processes(specs: Sequence[CellSpec], *processes: Sequence[int]) -> tuple[Result, ...]:
    """The cells' results; those of each process ran in turns."""
    events: list[Event] = session_start(specs)
    for pid, cells in enumerate(processes, 2000):
        begun = (event for cell in cells for event in cell_start(cell))
        events += (msgspec.structs.replace(each, pid=pid) if isinstance(each, CellStarted) else each for each in begun)
        for cell in cells:
            events += [*steps(cell, (), [0.010 * noise for noise in NOISE]), cell_end(cell)]
    return merge([("one", state_of(events))])


def test_a_cell_alone_before_a_against_itself_takes_no_round_away() -> None:
    results = in_processes([A, A, A], (0,), (1, 2))
    assert runs_in_turns(results) == ((results[1:],),)


def test_several_runs_in_turns_are_told_apart_by_what_they_ran() -> None:
    results = in_processes([A, B, A, msgspec.structs.replace(A, context_length=64), A, B], (0, 1), (2, 3), (4, 5))
    found_again = runs_in_turns(results)
    assert [[(a.cell.cell, b.cell.cell) for a, b in rounds] for rounds in found_again] == [[(0, 1), (4, 5)], [(2, 3)]]
    assert len(report_tables([results[0].state], results)["ab"]) == 2


def test_cells_one_after_the_other_are_no_run_in_turns() -> None:
    assert runs_in_turns(flat(rounds_of(a_round(1.0, apart=True), a_round(1.0, apart=True)))) == ()
    assert "ab" not in report_tables([state_of(session_start([A, B]))], ())


def test_the_summary_of_a_session_has_the_verdict_however_many_rounds() -> None:
    rounds = rounds_of(*(a_round(1.03, 0.010 + 0.0001 * number) for number in range(25)))
    text = summary_markdown(rounds[0][0].state)
    section = text[text.index("## Two cells in turns") :].split("\n## ")[0]
    assert "slower" in section
    assert "| all " in section
    assert "the first 20 of 26 rows and the last" in section
    assert "## Two cells in turns" not in summary_markdown(state_of(session_start([A, B])))
