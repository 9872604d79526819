"""The referee's verdicts, from made audits: each holds where it should and nowhere else."""

from typing import Any

import pytest
from msgspec.structs import replace

from cs336_tui.analysis.comparison import compare
from cs336_tui.analysis.judgement import VerdictName
from cs336_tui.analysis.merge import Result
from cs336_tui.analysis.referee import DISQUALIFYING, checked_word, disqualified, refereed
from cs336_tui.events.audit import Audit, Books, Difference, Inputs, Results, Speed, Work
from cs336_tui.session.states import CellState
from tests.analysis.judging import FLAT, ON_CPU, a_cell, events_of_cell
from tests.samples import state_of

BOOKS = Books(window_s=2.1, steps_s=2.0, known_s=0.09, between_s=0.0002, step_s=0.1)
WORK = Work(
    forward=100,
    backward=200,
    least_forward=90,
    least_backward=200,
    parts={"head": (10, 10), "blocks": (80, 80), "attention": (10, 5)},
    dtypes={"float32": 300},
)
RIGHT = Difference(quantity="logits", whole=1e-7, worst="sequence 1, positions 1 to 8", worst_error=2e-7)
CHECKED = Results(reference="naive attention", differences=(RIGHT,))
AUDIT = Audit(
    books=BOOKS,
    work=WORK,
    results=CHECKED,
    speed=Speed(flops_per_s=1e15, bytes_per_s=1e15),
    inputs=Inputs(fresh=True, repeated=tuple(range(3, len(FLAT), 4))),
    took_s=0.2,
)


def cell(audit: Audit | None = AUDIT, times_s: list[float] | None = None, **spec: Any) -> CellState:
    return a_cell(times_s or FLAT, spec={**ON_CPU, "precision": "fp32", **spec}, audit=audit)


def holding(found: CellState) -> set[VerdictName]:
    return {name for name, finding in refereed(found).items() if finding.holds}


def test_a_cell_whose_results_are_right_is_checked() -> None:
    assert holding(cell()) == {"checked"}
    assert (disqualified(cell()), checked_word(cell())) == ("", "checked")


def test_without_checks_only_that_is_said() -> None:
    assert refereed(cell(None)) == {}, "an old log"
    assert holding(cell(None, check="off")) == {"unchecked"}
    assert (disqualified(cell(None)), checked_word(cell(None))) == ("", "unchecked")


def test_a_compared_step_that_was_slow_once_is_no_doubt() -> None:
    slow_too = [*FLAT[:-1], 3 * FLAT[0]]
    assert holding(cell(replace(AUDIT, results=replace(CHECKED, again_s=1.4 * FLAT[0])))) == {"checked"}
    assert "less-work" not in holding(cell(replace(AUDIT, results=replace(CHECKED, again_s=2 * FLAT[0])), slow_too))


_SLOW_AGAIN = [0.1 if step % 4 != 3 else 0.04 for step in range(24)]


@pytest.mark.parametrize(
    ("verdict", "changes", "evidence"),
    [
        ("work-outside-steps", {"books": replace(BOOKS, between_s=0.04)}, "40 ms of work between two steps"),
        ("work-outside-steps", {"books": replace(BOOKS, replaced=("time.time",))}, "time.time replaced"),
        ("work-outside-steps", {"books": replace(BOOKS, threads_s=0.5)}, "500 ms of work on other threads"),
        ("work-outside-steps", {"books": replace(BOOKS, after_s=0.02)}, "after the last step"),
        ("work-outside-steps", {"books": replace(BOOKS, parent_s=9.0)}, "9 s by the parent's clock"),
        (
            "work-outside-steps",
            {"books": replace(BOOKS, between_s=0.0, known_s=0.0, window_s=4.0)},
            "2 s of the window of 4 s in no step",
        ),
        ("less-work", {"work": replace(WORK, parts={"head": (5, 10)})}, "head 50 %"),
        ("less-work", {"work": replace(WORK, backward=100)}, "backward 50 %"),
        ("less-work", {"results": replace(CHECKED, again_s=2 * FLAT[0])}, " % of the time of one whose results"),
        ("more-work", {"work": replace(WORK, forward=400)}, "444 %"),
        ("other-precision", {"work": replace(WORK, dtypes={"float32": 90, "bfloat16": 10})}, "10 % in bfloat16"),
        ("impossible", {"speed": Speed(flops_per_s=1e3, bytes_per_s=1e15)}, "of the FLOP/s of a matrix product"),
        ("impossible", {"speed": Speed(bytes_per_s=1e3)}, "of the bytes/s of a copy"),
        ("impossible", {"speed": Speed(sheet_flops_per_s=1e3)}, "of the FLOP/s of the data sheet"),
        (
            "differs",
            {"results": Results(reference="LM", differences=(replace(RIGHT, quantity="moments", worst_error=0.002),))},
            "moments by 0.2 %",
        ),
        (
            "differs",
            {"results": Results(reference="LM", differences=(replace(RIGHT, worst_error=0.3),))},
            "logits by 30 % (sequence 1, positions 1 to 8)",
        ),
        ("differs", {"results": Results(reference="LM", unmoved=("a", "b"))}, "left a and 1 more as it was"),
        ("differs", {"results": Results(reference="LM", unequal=("a",))}, "ranks have unequal a"),
        ("unchecked", {"results": Results(unchecked="no room")}, "no room"),
    ],
)
def test_each_verdict_holds_by_what_was_found(verdict: VerdictName, changes: dict[str, Any], evidence: str) -> None:
    found = cell(replace(AUDIT, **changes))
    beside = {"differs": set(), "unchecked": set()}.get(verdict, {"checked"})
    assert holding(found) == {verdict, *beside}
    assert evidence in refereed(found)[verdict].evidence
    assert bool(disqualified(found)) == (verdict in DISQUALIFYING)


def test_steps_that_take_less_on_repeated_tokens_remember_them() -> None:
    audit = replace(AUDIT, inputs=Inputs(fresh=True, repeated=tuple(range(3, 24, 4))))
    assert "remembers-inputs" in holding(cell(audit, _SLOW_AGAIN))
    assert "remembers-inputs" not in holding(cell(audit, [0.1 + 0.001 * (step % 3) for step in range(24)]))
    fixed = replace(AUDIT, inputs=Inputs(fresh=False, why_fixed="--inputs fixed"))
    assert refereed(cell(fixed))["remembers-inputs"].holds is None


def test_bf16_may_have_products_in_float32_and_no_other() -> None:
    half = replace(AUDIT, work=replace(WORK, dtypes={"bfloat16": 200, "float32": 100}))
    assert "other-precision" not in holding(cell(half, precision="bf16-mixed"))
    none = replace(AUDIT, work=replace(WORK, dtypes={"float32": 300}))
    assert "other-precision" in holding(cell(none, precision="bf16-mixed"))


def result(audit: Audit | None, times_s: list[float]) -> Result:
    state = state_of(events_of_cell(times_s, spec={**ON_CPU, "precision": "fp32"}, audit=audit))
    return Result(0, "a", state, state.cells[0])


def test_a_disqualified_cell_is_not_called_faster() -> None:
    cheat = replace(AUDIT, results=Results(reference="LM", unmoved=("a",)))
    quick = [time_s / 20 for time_s in FLAT]
    (pair,) = compare([result(cheat, quick)], [result(AUDIT, FLAT)]).pairs
    assert pair.outcome == "ambiguous"
    assert pair.explanation.startswith("A is not compared: differs: ")
    (honest,) = compare([result(AUDIT, quick)], [result(AUDIT, FLAT)]).pairs
    assert honest.outcome == "faster"


def test_it_is_said_where_one_side_was_checked_and_the_other_was_not() -> None:
    unchecked = replace(AUDIT, results=Results(unchecked="no room"))
    found = compare([result(unchecked, FLAT)], [result(AUDIT, FLAT)])
    assert "results: unchecked | checked" in (*found.notes, *found.pairs[0].differs)
