"""The Race tab in the app: of a replayed race, and how a race is asked for."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from cs336_tui.config.presets import preset
from cs336_tui.config.sweep import Sweep
from cs336_tui.runner.predictor import PredictionError
from cs336_tui.session.log import Sink
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.dialogs.tune import TuneDialog
from cs336_tui.tui.requests import RunOptions
from tests.made_race import race_events
from tests.tui.kept_sessions import STOPPED, keep
from tests.tui.test_queue import opened
from tests.tui.watched import SMALL, Benches, ScriptedBench, log_of, screen_text, until

DECIDED = "decided: every other candidate is worse than the best"


async def test_a_replayed_race_opens_by_itself_and_its_winner_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    app = Cs336App(replay=log_of(race_events(ended=DECIDED), tmp_path), speed=0)
    async with app.run_test(size=SMALL) as pilot:
        shown = await until(pilot, DECIDED)
        assert "C Race" in shown
        assert "best  0.60" in shown
        assert "cs336-tui bench" in shown
        await pilot.press("down", "enter")
        await until(pilot, "Alone it is run again by")
        await pilot.press("escape", "v")
        await until(pilot, "beside the others")
        await pilot.press("v")
        await until(pilot, "needs a GPU")
        await pilot.press("2")
        await until(pilot, "race: over, best 0.60")
        await pilot.press("C", "w")
        await until(pilot, "Save as preset")
        await pilot.press("enter")
        await until(pilot, lambda _: len(app.screen_stack) == 1)
    saved = preset("best-small")
    assert saved.sweep.attentions == ("sdpa",)
    assert "0.60" in saved.about


async def test_an_opened_session_shows_its_race(tmp_path: Path) -> None:
    keep(tmp_path, STOPPED, race_events(running=4))
    app = Cs336App(Benches(), session_dir=tmp_path)
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda _: app.live.state.environment is not None)
        await pilot.press("escape", "7")
        await until(pilot, "left, killed")
        await pilot.press("enter")
        shown = await until(pilot, "now   stopped: a race is left, u resumes")
        assert "u Resume" in shown
        await pilot.press("b", "C")
        await until(pilot, "No race in this session")


async def test_a_session_without_a_race_has_no_tab_of_it_until_it_is_opened() -> None:
    app = Cs336App(Benches())
    async with app.run_test(size=(200, 60)) as pilot:
        shown = await until(pilot, "p Precision")
        assert "C Race" not in shown
        await pilot.press("escape", "C")
        await until(pilot, lambda text: "No race in this session" in text and "C Race" in text)


def raceable(**choices: object) -> Sweep:
    usual = {"devices": ("cpu",), "passes": ("train-step",), "attentions": ("naive", "sdpa"), "checkpoints": (0, 1)}
    return Sweep(**usual | choices)


@asynccontextmanager
async def tuning(
    bench: Any, said: str = "4 candidates", sweep: Sweep | None = None, **options: Any
) -> AsyncIterator[tuple[Cs336App, Pilot[int]]]:
    """An app with the dialog of Tune, once it has said this."""
    async with opened(bench, initial=sweep or raceable(), **options) as (app, pilot):
        await pilot.press("escape", "U")
        await until(pilot, said)
        yield app, pilot


async def test_the_dialog_says_what_is_raced_and_what_is_wrong() -> None:
    async with tuning(Benches()) as (app, pilot):
        assert "attention: naive, sdpa" in screen_text(app)
        await pilot.press("up", "backspace", *"soon")
        await until(pilot, "expected a time such as 90s")
        await pilot.press(*["backspace"] * 4, *"2m", "up", *"lots")
        await until(pilot, "expected memory such as 70GB")
        await pilot.press(*["backspace"] * 4, "up", "right", "right", "space")
        await until(pilot, "energy")
        await pilot.press("escape")
        await until(pilot, lambda _: not isinstance(app.screen, TuneDialog))


async def test_choices_that_are_other_work_are_not_raced() -> None:
    async with tuning(Benches(), "Cannot race", raceable(sizes=("tiny", "small"))) as (app, _):
        assert "size tiny,small" in screen_text(app)


async def test_a_race_runs_is_stopped_and_goes_on() -> None:
    benches = Benches()
    async with tuning(benches, size=SMALL, options=RunOptions(ddof=0, timeout_s=90.0)) as (app, pilot):
        await pilot.press("enter")
        await until(pilot, "now   starting point: ")
        assert benches.ddof == 0
        await pilot.press("r", "U")  # nothing is added to a race
        await pilot.press("s")
        await until(pilot, "u resumes")
        assert len(app.screen_stack) == 1
        assert len(app.state.cells) == 1
        benches.go_on.set()
        await pilot.press("u")
        await until(pilot, "end   decided: ")
        assert "[ Save as preset ]" in screen_text(app)
        await until(pilot, lambda _: not app.run_in_progress)
        assert not [each.message for each in app._notifications if each.severity == "error"]
    (command, *others) = [command for command in benches.commands if command]
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
        await pilot.press("enter")
        await until(pilot, lambda _: made[0].predicts.is_set())
        await pilot.press("s")
        await until(pilot, lambda _: not app.run_in_progress)
        assert not list(app._notifications)


async def test_a_report_after_a_stop_is_not_taken_for_the_race() -> None:
    benches = Benches()
    async with tuning(benches, size=SMALL) as (app, pilot):
        await pilot.press("enter")
        await until(pilot, "now   starting point: ")
        await pilot.press("s")
        await until(pilot, "u resumes")
        await until(pilot, lambda _: not app.run_in_progress)
        await pilot.press("9", "n")
        await until(pilot, "warm-up ...")
        await pilot.press("C")
        assert "now   stopped" in await until(pilot, "now   ")
        benches.go_on.set()
        await until(pilot, lambda _: not app.run_in_progress)
