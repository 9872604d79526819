"""A race and a plan as sentences, tables and data."""

from collections.abc import Mapping

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.agreement import COMPARED, Agreement
from cs336_tui.analysis.next_step import NONE_LEFT
from cs336_tui.analysis.shortlist import forecast_rule, measured_rule
from cs336_tui.analysis.tuning import Race, race_of
from cs336_tui.config.tuning import BUDGET_ENDED, NOT_AFFORDED, LeftOut
from cs336_tui.events.events import TuningEnded
from cs336_tui.export.subjects.comparison import agreement_tables
from cs336_tui.export.subjects.tuning import (
    failure_lines,
    finding,
    gains_table,
    left_out_lines,
    next_lines,
    race_document,
    race_table,
)
from cs336_tui.export.writing.formats import plain_text
from cs336_tui.export.writing.terminal import Looks, terminal_text
from cs336_tui.session.state import SessionState, fold
from tests.analysis.racing import Made
from tests.analysis.test_agreement import report_of
from tests.analysis.test_findings import a_race as with_gains
from tests.export.keeping import kept
from tests.made_race import made_tuning, race_events


def a_state(**more: object) -> SessionState:
    return fold(race_events(**({"ended": "decided"} | more)))  # type: ignore[arg-type]


def a_race(**more: object) -> Race:
    return race_of(a_state(**more))


def test_a_terminal_has_one_line_for_candidates_that_were_not_visited() -> None:
    race = a_race(rounds=((0, 1, 4), (0, 4)), ended=BUDGET_ENDED)
    unseen = [entry.label for entry in race.entries if entry.status == "not visited"]
    assert len(unseen) == 5
    table = race_table(race)
    assert f"not visited: 5 candidates ({'; '.join(unseen[:3])} and 2 more): {NOT_AFFORDED}" in table.findings
    looks = Looks(width=200, styled=False)
    brief, whole = terminal_text([table], looks), terminal_text([table], looks._replace(verbose=True))
    rows, files = "\n".join(brief.splitlines()[:-3]), plain_text(table)
    assert "- not visited: 5 candidates (" in brief
    assert [brief.count(" not visited ") for brief in (rows, whole, files)] == [0, 5, 5]
    assert all(label in whole for label in unseen)


def test_a_race_with_checks_says_what_they_compared() -> None:
    race = a_race()
    without = race._replace(entries=tuple(entry._replace(agreement=None) for entry in race.entries))
    checked = with_best(without, agreement=Agreement(True, "differs by rounding alone"))
    note = f"logits and gradients compared: {COMPARED}"
    assert [note in race_table(each).footnotes for each in (without, checked)] == [False, True]
    table = next(agreement_tables([report_of(), report_of(loss=4.5)]))
    assert f"compared: {COMPARED}" in table.footnotes


def with_best(race: Race, **changes: object) -> Race:
    """The race with other figures of its best candidate, which is in no doubt, and with nothing tied to it."""
    first, *others = race.entries
    rest = [entry._replace(status="out") for entry in others]
    return race._replace(entries=(first._replace(**({"why": ""} | changes)), *rest))  # type: ignore[arg-type]


def test_the_finding_names_what_is_not_told_apart_from_the_best_which_may_be_the_starting_point(
    snapshot: SnapshotAssertion,
) -> None:
    race = with_best(a_race())
    tied = tuple(entry._replace(status="tied") for entry in race.entries[1:])
    others = tuple(entry._replace(status="out") for entry in race.entries if entry.number)
    each = ((race.entries[0], *tied[:1]), (race.entries[0], *tied), (race.start._replace(status="best"), *others))
    assert [finding(race._replace(entries=entries)) for entries in each] == snapshot


def test_the_finding_is_a_sentence_that_names_what_the_goal_makes_small(snapshot: SnapshotAssertion) -> None:
    """By goal: ratio, ends of its interval, and visits."""
    figures = [("step", 0.712, 0.703, 0.731, 3)]
    figures += [(goal, 0.5, 0.4, 0.6, 3) for goal in ("tokens/s", "tokens/J", "memory")]
    figures += [("step", 0.7, None, None, visits) for visits in (2, 1)]
    sentences = []
    for goal, *of_best in figures:
        race = with_best(a_race(), **dict(zip(("ratio", "low", "high", "visits"), of_best, strict=True)))
        sentences.append(finding(race._replace(tuning=msgspec.structs.replace(race.tuning, goal=goal))))
    assert sentences == snapshot


def without_result(lost: Mapping[int, str] | None = None, ended: str = NONE_LEFT) -> Race:
    """A race of which every candidate failed, those not `lost` for other reasons alike."""
    why = dict.fromkeys(range(8), "RuntimeError: no driver") | dict(lost or {})
    return a_race(rounds=(range(8),), lost=why, ended=ended)


def test_a_race_without_a_result_tells_why_and_the_most_common_reason(snapshot: SnapshotAssertion) -> None:
    """Sizes make no other reason."""
    over = Made(limit_bytes=10**8)
    for number in range(4):
        over.visit(number, 1.0, round_=1, peak_allocated_bytes=10**9 * (number + 1))
    over.tell(TuningEnded(at=over.at, reason=NONE_LEFT))
    races = {
        "three reasons": without_result({3: "out of registers", 5: "a crash"}),
        "many reasons": without_result({3: "b", 4: "c", 5: "d", 6: "e"}),
        "out of budget": without_result(ended=BUDGET_ENDED),
        "over the limit": over.race,
        "nothing was measured": a_race(rounds=((),), ended="no candidate could be measured"),
        "begun": a_race(rounds=((),), ended=""),
    }
    assert {name: [finding(race), *failure_lines(race), *next_lines(race)] for name, race in races.items()} == snapshot


def test_a_starting_point_that_fails_is_told_once_and_the_others_were_not_to_be_visited() -> None:
    made = Made()
    made.visit(0, 1.0, round_=1, status="failed", error="it broke")
    made.tell(TuningEnded(at=made.at, reason=made.next().reason))
    said = "the starting point could not be measured"
    assert finding(made.race) == f"No candidate has a result: {said}: it broke."
    assert not list(failure_lines(made.race))
    assert race_table(made.race).texts("why") == ("it broke", said, said, said)


def test_a_best_whose_check_could_not_be_made_is_in_doubt() -> None:
    made = Made()
    made.round(1)
    step = made.next()
    made.check(step.specs[0])
    made.check(step.specs[1], status="oom")
    made.tell(TuningEnded(at=made.at, reason="decided"))
    why = "its logits and gradients may differ: could not be checked: it broke"
    assert finding(made.race).endswith(f". In doubt: {why}.")
    best = race_document(made.race)["ranking"][0]
    assert (best["status"], best["why"], best["agrees"]) == ("best", why, None)
    assert race_table(made.race).texts("why")[0] == why
    assert "In doubt" not in finding(with_best(made.race))


def test_the_starting_point_is_the_baseline_of_all_ratios() -> None:
    race = a_race()
    table, place = race_table(race), race.entries.index(race.start)
    assert (table.texts("ratio")[place], table.texts("interval")[place]) == ("1.000", "baseline")
    record = race_document(race)["ranking"][place]
    assert (record["ratio"], record["low"], record["high"]) == (1.0, None, None)
    assert table.texts("interval").count("baseline") == 1
    unknown = a_race(rounds=((),), ended="")
    assert set(race_table(unknown).texts("interval")) == {""}


def test_a_row_a_candidate_and_what_was_not_tried_below(snapshot: SnapshotAssertion) -> None:
    state = a_state()
    table = race_table(race_of(state), state.cells)
    assert {"not tried: attention flash: needs a GPU", "the race ended after 3 rounds: decided"} <= {*table.findings}
    assert kept(table) == snapshot


def test_the_document_is_what_scripts_were_promised() -> None:
    tuning = made_tuning()
    run = msgspec.structs.replace(tuning.base, warmup_steps=7, measure_steps=40)
    race = a_race(tuning=msgspec.structs.replace(tuning, run=run))
    found = race_document(race)
    assert found["best"] == race.best.spec
    assert [each["spec"] for each in found["ranking"]] == [entry.spec for entry in race.entries]
    assert {"ratio", "low", "high", "status"} <= found["ranking"][0].keys()
    assert found["baseline"] == race.tuning.base
    assert found["command"].startswith("cs336-tui bench ")
    assert "--attention sdpa" in found["command"]
    assert "--warmup 7 --steps 40" in next(iter(next_lines(race))), "those of a run"
    assert found["over"]["attention"] == ("naive", "sdpa")
    assert msgspec.json.encode(found)


def test_combinations_with_one_reason_are_one_line() -> None:
    left = [LeftOut(f"attention {name}, cuda-graph step", "needs a GPU") for name in ("naive", "sdpa", "flash")]
    left += [*(LeftOut(f"batch {size}", "too large") for size in (1, 2, 3, 4)), LeftOut("compile default", "none here")]
    assert list(left_out_lines(left)) == [
        "not tried: cuda-graph step (3 combinations): needs a GPU",
        "not tried: batch 1; batch 2; batch 3 and 1 more: too large",
        "not tried: compile default: none here",
    ]


def limited() -> tuple[SessionState, Race]:
    """A race whose run has two minutes from empty caches, in which its steps take one."""
    tuning = made_tuning()
    run = msgspec.structs.replace(
        tuning.base, within=120, warmup_for=20.0, steps_for=40.0, warmup_steps=10_000, measure_steps=10_000
    )
    base = msgspec.structs.replace(tuning.base, within=120)
    state = a_state(tuning=msgspec.structs.replace(tuning, base=base, run=run))
    return state, race_of(state)


def test_a_limit_of_the_whole_run_leaves_time_to_compile() -> None:
    state, race = limited()
    table, best = race_table(race, state.cells), race.entries[0]
    rule = measured_rule(race.tuning, best, [state.cells[number] for number in best.cells])
    assert rule.steps_s == pytest.approx(60, rel=0.02)
    assert rule.left_s == pytest.approx(60 - rule.start_s, rel=0.02)
    assert table.texts("left")[0] == f"{rule.left_s:.0f}"
    assert table.records[0]["left_to_compile_s"] == rule.left_s
    assert any(line.startswith("left to compile: the 2:00 of a whole run") for line in table.findings)
    assert measured_rule(race.tuning, best, []) is None, "nothing was visited"


def test_a_forecast_of_the_limit_knows_the_least_of_the_steps() -> None:
    _, race = limited()
    for step_s in (None, 0.1):
        rule = forecast_rule(race.tuning, race.tuning.base, step_s)
        assert (rule.steps_s, rule.left_s) == (60, 60)
    assert forecast_rule(race.tuning, race.tuning.base, 50.0).left_s == 120 - 50 - 50
    assert forecast_rule(made_tuning(), made_tuning().base, 1.0) is None


def test_a_row_a_value_with_both_ratios_and_choices_that_spoil_each_other_interact(snapshot: SnapshotAssertion) -> None:
    ratios = {"attention=sdpa": 0.8, "checkpoint=1": 0.9}
    assert kept(gains_table(with_gains(ratios)), gains_table(with_gains(ratios, interaction=1.4))) == snapshot
