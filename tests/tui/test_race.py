"""The Race tab: its rows, names, columns, intervals and gains; in the app a replayed race, and how one is asked for."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

import cs336_tui.tui.tabs.race  # noqa: F401  # the pane declares the keys that its lines name
from cs336_tui.analysis.agreement import Agreement, agreement_key
from cs336_tui.analysis.tuning import Race, race_of
from cs336_tui.config.presets import preset
from cs336_tui.config.sweep import Sweep
from cs336_tui.config.tuning import candidate
from cs336_tui.events.events import CellsQueued, CellStarted, Event, ReportStarted
from cs336_tui.runner.predictor import PredictionError
from cs336_tui.session.log import Sink
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.charts.bars import Scale, axis_line, interval_line, scale_of
from cs336_tui.tui.dialogs.tune import TuneDialog
from cs336_tui.tui.requests import RunOptions
from cs336_tui.tui.tabs import race_lines
from cs336_tui.tui.tabs.race_lines import Order, Raced, raced
from cs336_tui.tui.widgets.lines import width_of
from tests.made_race import made_tuning, race_events
from tests.samples import START, state_of
from tests.tui.kept_sessions import STOPPED, keep
from tests.tui.test_queue import opened
from tests.tui.watched import (
    SMALL,
    Benches,
    ScriptedBench,
    absent,
    on_screen,
    press,
    replaying,
    screen_text,
    text,
    until,
)

DECIDED = "decided: every other candidate is worse than the best"


async def test_a_replayed_race_opens_by_itself_and_its_winner_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    async with on_screen(replaying(race_events(ended=DECIDED), tmp_path), "", size=SMALL) as (app, pilot):
        assert not absent(await until(pilot, DECIDED), "C Race", "best  0.60", "cs336-tui bench")
        await press(pilot, "down", "enter", seen="Alone it is run again by")
        await press(pilot, "escape", "v", seen="beside the others")
        await press(pilot, "v", seen="needs a GPU")
        await press(pilot, "2", seen="race: over, best 0.60")
        await press(pilot, "C", "w", seen="Save as preset")
        await press(pilot, "enter", seen=lambda _: len(app.screen_stack) == 1)
    saved = preset("best-small")
    assert saved.sweep.attentions == ("sdpa",)
    assert "0.60" in saved.about


async def test_an_opened_session_shows_its_race(tmp_path: Path) -> None:
    keep(tmp_path, STOPPED, race_events(running=4))
    async with on_screen(Cs336App(Benches(), session_dir=tmp_path), size=SMALL) as (_, pilot):
        await press(pilot, "escape", "7", seen="✗ killed")
        assert "u Resume" in await press(pilot, "enter", seen="now   stopped: a race is left, u resumes")
        await press(pilot, "b", "C", seen="No race in this session")


async def test_a_session_without_a_race_has_no_tab_of_it_until_it_is_opened() -> None:
    async with on_screen(Cs336App(Benches()), "p Precision", size=(200, 60)) as (app, pilot):
        assert "C Race" not in screen_text(app)
        await press(pilot, "escape", "C", seen=lambda text: "No race in this session" in text and "C Race" in text)


def raceable(**choices: object) -> Sweep:
    usual = {"devices": ("cpu",), "passes": ("train-step",), "attentions": ("naive", "sdpa"), "checkpoints": (0, 1)}
    return Sweep(**usual | choices)


@asynccontextmanager
async def tuning(
    bench: Any, said: str = "4 candidates", sweep: Sweep | None = None, **options: Any
) -> AsyncIterator[tuple[Cs336App, Pilot[int]]]:
    """An app with the dialog of Tune, once it has said this."""
    async with opened(bench, initial=sweep or raceable(), **options) as (app, pilot):
        await press(pilot, "escape", "U", seen=said)
        yield app, pilot


async def test_the_dialog_says_what_is_raced_and_what_is_wrong() -> None:
    async with tuning(Benches()) as (app, pilot):
        assert "attention: naive, sdpa" in screen_text(app)
        await press(pilot, "up", "backspace", *"soon", seen="expected a time such as 90s")
        await press(pilot, *["backspace"] * 4, *"2m", "up", *"lots", seen="expected memory such as 70GB")
        await press(pilot, *["backspace"] * 4, "up", "right", "right", "space", seen="energy")
        await press(pilot, "escape", seen=lambda _: not isinstance(app.screen, TuneDialog))


async def test_of_several_passes_the_last_is_raced_and_named() -> None:
    async with tuning(Benches(), sweep=raceable(passes=("forward", "train-step"))) as (app, _):
        assert "pass: train-step, the last of 2" in screen_text(app)


@pytest.mark.parametrize("field", ["goal", "within", "budget"])
async def test_enter_races_from_every_field_and_arrows_stay_in_the_fields(field: str) -> None:
    async with tuning(Benches()) as (app, pilot):
        assert app.screen.focused is app.screen.query_one("#entry-goal"), "the first field"
        fields = ("goal", "within", "budget")
        for name in (*fields, *fields)[1 : fields.index(field) + 4]:
            await pilot.press("down")
            assert app.screen.query_one(f"#entry-{name}").has_focus_within
        await press(pilot, "enter", seen=lambda _: not isinstance(app.screen, TuneDialog))
        await until(pilot, lambda _: app.run_in_progress)


async def test_the_dialog_keeps_its_size_while_one_types() -> None:
    async with tuning(Benches()) as (app, pilot):
        size = app.screen.query_one("#box").size
        await press(pilot, "up", "backspace", *"soon", seen="expected a time such as 90s")
        assert app.screen.query_one("#box").size == size
        assert "attention: naive, sdpa" in screen_text(app), "what is raced stays in sight"


async def test_choices_that_are_other_work_are_not_raced() -> None:
    async with tuning(Benches(), "Cannot race", raceable(sizes=("tiny", "small"))) as (app, _):
        assert "size tiny,small" in screen_text(app)


async def test_a_race_runs_is_stopped_and_goes_on(bench: Benches) -> None:
    async with tuning(bench, size=SMALL, options=RunOptions(ddof=0, timeout_s=90.0)) as (app, pilot):
        await press(pilot, "enter", seen="now   starting point: ")
        assert bench.ddof == 0
        await pilot.press("r", "U")  # nothing is added to a race
        await press(pilot, "s", seen="u resumes")
        assert len(app.screen_stack) == 1
        assert len(app.state.cells) == 1
        bench.go_on.set()
        await press(pilot, "u", seen="end   decided: ")
        assert "[ Save as preset ]" in screen_text(app)
        await until(pilot, lambda _: not app.run_in_progress)
        assert not [each.message for each in app._notifications if each.severity == "error"]
    (command, *others) = [command for command in bench.commands if command]
    assert command.startswith("cs336-tui tune --size tiny")
    assert "--over attention=naive,sdpa --over checkpoint=0,1" in command
    assert others == []


class StoppedInPredicting(ScriptedBench):
    """A bench whose predictions break off when they are stopped."""

    def __init__(self, sink: Sink, log: Path | None = None) -> None:
        super().__init__(sink, log)
        self.predicts, self.stopped = threading.Event(), threading.Event()

    def resolve(self, sweep: Sweep) -> Sweep:
        del sweep
        self.predicts.set()
        self.stopped.wait(10)
        raise PredictionError("stopped")

    def cancel(self) -> bool:
        self.stopped.set()
        return super().cancel()


async def test_a_stop_before_the_first_visit_is_no_failure() -> None:
    made: list[StoppedInPredicting] = []

    def bench(sink: Sink, log: Path | None) -> StoppedInPredicting:
        made.append(StoppedInPredicting(sink, log))
        return made[-1]

    async with tuning(bench, size=SMALL) as (app, pilot):
        await press(pilot, "enter", seen=lambda _: made[0].predicts.is_set())
        await press(pilot, "s", seen=lambda _: not app.run_in_progress)
        assert not list(app._notifications)


async def test_a_report_after_a_stop_is_not_taken_for_the_race(bench: Benches) -> None:
    async with tuning(bench, size=SMALL) as (app, pilot):
        await press(pilot, "enter", seen="now   starting point: ")
        await press(pilot, "s", seen="u resumes")
        await until(pilot, lambda _: not app.run_in_progress)
        await press(pilot, "9", "n", seen="warm-up ...")
        assert "now   stopped" in await press(pilot, "C", seen="now   ")
        bench.go_on.set()
        await until(pilot, lambda _: not app.run_in_progress)


WIDTHS = (40, 78, 118, 198)


def shown_after(events: list[Event]) -> Raced:
    state = state_of(events)
    return raced(state, race_of(state), goes_on=True, left="")


def race_after(events: list[Event]) -> Race:
    return shown_after(events).race


def test_an_interval_is_a_bar_around_a_point_and_1_is_marked() -> None:
    scale = Scale(0.5, 2.0)
    assert text([axis_line(scale, 21)]) == "0.5       1         2"
    assert text([interval_line(scale, 21, 1.5, 1.2, 1.8, "good")]) == "          │  ━━━●━━  "
    assert text([interval_line(scale, 21, None, None, None, "good")]).rstrip() == "          │"
    assert text([interval_line(scale, 21, 0.7, 0.6, 0.8, "good")]).count("│") == 1
    assert text([interval_line(scale, 11, 3.0, 1.5, 4.0, "good")]) == "     │  ━━▸", "what is beyond is an arrow"
    assert text([interval_line(scale, 11, 0.2, 0.1, 0.3, "good")]).startswith("◂")
    assert "1" not in text([axis_line(Scale(0.5, 0.8), 20)])


@pytest.mark.parametrize("ratios", [[1.0], [0.448, 0.503], [0.05, 5.0], [0.9, 40.0], [1.0, 1.0004]])
def test_an_axis_holds_its_ratios_and_ends_at_round_ones(ratios: list[float]) -> None:
    low, high = scale_of(ratios)
    assert 0 < low <= min(ratios) * (1 + 1e-9)
    assert max(ratios) <= high * (1 + 1e-9)
    assert low < high
    assert all(len(f"{end:.6g}") <= 6 for end in (low, high))


def test_a_name_says_what_is_changed_and_is_shortened_by_whole_choices() -> None:
    tuning = made_tuning("attention=naive,sdpa", "compile=off,default", "checkpoint=0,2")
    spec = candidate(tuning, {"attention": "sdpa", "compile": "default", "checkpoint": 2})
    assert race_lines.name(tuning, spec) == "sdpa, compile default, checkpoint 2"
    assert race_lines.name(tuning, tuning.base) == "starting point"
    assert race_lines.shortened(tuning, spec, 25) == "sdpa, compile default +1"
    assert race_lines.shortened(tuning, spec, 10) == "sdpa +2"


@pytest.mark.parametrize("width", WIDTHS)
def test_no_row_is_wider_than_the_pane_and_columns_hold_still(width: int) -> None:
    events = race_events(lost={3: "RuntimeError: the optimizer's kernel needs a newer driver than this machine has"})
    layouts = set()
    for last in range(3, len(events), 5):
        race = race_after(events[:last])
        layouts.add(race_lines.columns_of(race, width))
        columns, axis = race_lines.columns_of(race, width), race_lines.scale(race, zoomed=False)
        assert all(width_of(race_lines.row(race, each, columns, axis)) <= max(width, 44) for each in race.entries)
    assert len(layouts) == 1
    assert ("visits" in race_lines.column_names(columns, axis)[0].text) == (width == WIDTHS[-1])


def test_the_heading_tells_what_runs_and_that_none_is_measured_yet() -> None:
    shown = shown_after(race_events(running=4))
    assert shown.running == {4}
    assert "now   sdpa: measuring" in text(race_lines.heading(shown, "ranking", 118, 20))
    assert "none measured yet" in text(race_lines.heading(shown_after(race_events()[:3]), "gains", 78, 20))
    over = shown_after(race_events(ended="the budget ended"))
    assert "the budget ended" in text(race_lines.heading(over, "ranking", 118, 12)), "a low pane, too"


def test_a_best_in_doubt_is_told_and_is_not_green() -> None:
    race = race_after(race_events(ended="decided"))
    assert race.entries[0].why, "nothing was checked"
    assert "in doubt" in text([race_lines.best_line(race, 78)])
    columns, axis = race_lines.columns_of(race, 118), race_lines.scale(race, zoomed=False)
    (state,) = [span for span in race_lines.row(race, race.entries[0], columns, axis) if span.text.startswith("best")]
    assert state.role == "caution"
    assert race.entries[0].why in text(race_lines.brief(race, race.entries[0], 200, 2))
    known = race._replace(entries=(race.entries[0]._replace(why=""), *race.entries[1:]))
    assert "in doubt" not in text([race_lines.best_line(known, 78)])


def test_the_order_changes_between_rounds_only() -> None:
    events = race_events()
    orders: list[tuple[int, tuple[int, ...]]] = []
    order, states = Order(), state_of([])
    for event in events:
        states.apply(event)
        race = race_of(states)
        if race is not None:
            order = order.now(states, raced(states, race, goes_on=True, left=""))
            orders.append((race.rounds, order.numbers))
    assert len({numbers for rounds, numbers in orders if rounds == 2}) == 1
    assert all(a == b for (round_, a), (next_round, b) in pairwise(orders) if round_ == next_round)
    assert orders[-1][1][0] == 4
    assert orders[-1][1] != tuple(range(8))


def test_the_zoomed_axis_is_of_those_in_the_race() -> None:
    race = race_after(
        race_events(made_tuning("attention=naive,sdpa", "norm=rmsnorm,torch-rmsnorm"), rounds=[range(4)] * 3)
    )
    whole, near = race_lines.scale(race, zoomed=False), race_lines.scale(race, zoomed=True)
    assert whole.low < near.low
    assert whole.high >= 1.1
    assert near.high < 1.0


def test_gains_are_alone_beside_the_others_and_together() -> None:
    race = race_after(race_events(ended="decided"))
    narrow, wide = (text(race_lines.gains(race, width)) for width in (60, 78))
    assert not absent(wide, "sdpa            0.60", "checkpoint 1                   1.3")
    assert not absent(narrow, "sdpa          0.60", "checkpoint 1  ", "adamw-for-l…")
    assert "attention" not in narrow, "the value says it"
    assert "Known once" in text(race_lines.gains(race_after(race_events()[:3]), 78))


def test_everything_known_of_a_candidate_with_its_command() -> None:
    events = race_events(ended="decided")
    race = race_after(events)
    told = text(race_lines.detail(state_of(events), race, race.entries[1], 78))
    assert race.entries[1].label in told
    assert "--attention sdpa" in told
    assert told.count("✓ ok") == race.entries[1].visits
    assert "needs a GPU" in text(race_lines.not_tried(race, 78))
    checked = race.entries[1]._replace(agreement=Agreement(True, "differs by rounding alone"), status="out")
    told = " ".join(text(race_lines.detail(state_of(events), race, checked, 78)).split())
    assert not absent(told, "differs by rounding alone", "on at most 2 sequences; not further sequences, later steps")


def test_the_last_two_run_in_turns_and_a_check_names_its_candidate() -> None:
    events = race_events()
    state = state_of(events)
    base, sdpa = (state.tuning.candidates[number] for number in (0, 4))
    pair = CellsQueued(at=START + 20, first=50, specs=(base, sdpa), repeats=(4, 4), in_turns=True)
    shown = shown_after([*events, pair, *(CellStarted(at=START + 20, cell=cell, pid=7) for cell in (50, 51))])
    assert {*shown.running} == {0, 4}
    assert shown.now in ("in turns: sdpa and starting point", "in turns: starting point and sdpa")
    check = ReportStarted(at=START + 20, report=0, kind="agreement", spec=agreement_key(sdpa, base))
    assert shown_after([*events, check]).now == "logits and gradients of sdpa: starting"
