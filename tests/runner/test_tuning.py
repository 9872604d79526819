"""Races of real processes: who wins, who may not, the budget, a stop, and what goes on after a kill."""

import json
import time
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cs336_tui.analysis.next_step import ONE_LEFT, next_step
from cs336_tui.analysis.shortlist import started_of
from cs336_tui.analysis.tuning import Entry, Race, race_of
from cs336_tui.config.order import Checks, Finish
from cs336_tui.config.tuning import BUDGET_ENDED, Over, Tuning
from cs336_tui.events.codec import to_line
from cs336_tui.events.events import CellFinished, CellsQueued, CellStarted, Event, TuningEnded
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.predictor import predictions_of
from cs336_tui.runner.resume import BROKEN_OFF
from cs336_tui.runner.tuning import Tuner
from cs336_tui.session.load import load
from cs336_tui.session.log import LogReader
from cs336_tui.session.state import fold
from cs336_tui.session.store import info_of, standing_of
from tests.commands import call
from tests.made_race import race_events
from tests.runner.running import Running
from tests.samples import write_log
from tests.watching import Watch, small_spec
from tests.worker.workload.own_code import Folder

ATTENTIONS = """
import time
import torch.nn.functional as F

def slow(q, k, v, is_causal):
    time.sleep(0.03)
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

def fast(q, k, v, is_causal):
    time.sleep(0.01)
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

def wrong(q, k, v, is_causal):
    return v * 1.0

def broken(q, k, v, is_causal):
    raise RuntimeError("it does not work")

def hangs(q, k, v, is_causal):
    time.sleep(1000)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "own").mkdir()
    return Folder(tmp_path / "own")


def tuning_of(folder: Folder, *names: str, budget_s: float, **base: Any) -> Tuning:
    """A race of these attentions, the first one the starting point."""
    module = folder.write(ATTENTIONS)
    attentions = tuple(f"{module}:{name}" for name in names)
    start = small_spec(attention=attentions[0], model_path=folder.paths, **base)
    return Tuning(base=start, over=(Over("attention", attentions),), budget_s=budget_s)


class Racing(Running):
    """A race on a bench of its own."""

    def __init__(self, directory: Path, session: str | None = None) -> None:
        super().__init__(directory, session, explain_oom=False)
        self.tuner = Tuner(self.bench, next_step)
        self.took_s = 0.0

    def tune(self, tuning: Tuning) -> None:
        began = time.monotonic()
        self.bench.trust.name(tuning.base, tuning)
        started = started_of(tuning, self.bench.probe(), partial(predictions_of, self.bench.predictor))
        self.tuner.run(started, "cs336-tui tune")
        self.took_s = time.monotonic() - began
        self.bench.close()

    def resume(self) -> None:
        self.bench.resume(trusted=True)
        self.tuner.go_on()
        self.bench.close()

    @property
    def race(self) -> Race:
        return race_of(self.watch.state)


def entry(race: Race, name: str) -> Entry:
    return next(each for each in race.entries if each.spec.attention.endswith(f":{name}"))


def test_the_fastest_that_computes_the_same_wins(tmp_path: Path, folder: Folder) -> None:
    running = Racing(tmp_path)
    running.tune(tuning_of(folder, "slow", "fast", "wrong", "broken", budget_s=60))
    race = running.race
    assert {name: entry(race, name).status for name in ("slow", "fast", "wrong", "broken")} == {
        "slow": "out",
        "fast": "best",
        "wrong": "differs",
        "broken": "failed",
    }
    assert race.ended == ONE_LEFT
    best, wrong = entry(race, "fast"), entry(race, "wrong")
    assert best.agreement.agrees
    assert best.ratio < best.high < 1
    assert wrong.ratio < best.ratio
    assert "it does not work" in entry(race, "broken").why
    assert race_of(load(running.bench.log_path)).entries == race.entries, "a replay decides as the live race"
    info = info_of(running.bench.log_path)
    assert (info.stage, info.standing.can_resume) == ("done", False)
    again = Racing(tmp_path, running.bench.session)
    again.resume()
    assert len(again.watch.of(TuningEnded)) == 1, "nothing is left to race"


def test_a_visit_that_hangs_does_not_break_the_budget(tmp_path: Path, folder: Folder) -> None:
    running = Racing(tmp_path)
    running.tune(tuning_of(folder, "fast", "hangs", "slow", budget_s=8))
    assert running.took_s < 8 * 1.2
    hangs = entry(running.race, "hangs")
    assert (hangs.status, "no result within" in hangs.why) == ("failed", True)
    assert entry(running.race, "fast").status == "best"


def test_what_runs_when_the_budget_ends_is_stopped_and_nothing_is_left(tmp_path: Path, folder: Folder) -> None:
    running = Racing(tmp_path)
    running.tune(tuning_of(folder, "fast", "slow", budget_s=4, measure_steps=10_000))
    assert 4 <= running.took_s < 4 * 1.2 + 1  # a stop takes up to a second
    assert running.race.ended == BUDGET_ENDED
    assert running.race.best is None
    assert standing_of(load(running.bench.log_path), runs=False).stage == "done"


def test_checks_that_wait_when_the_budget_ends_are_stopped_as_well(tmp_path: Path, folder: Folder) -> None:
    running, tuning = Racing(tmp_path), tuning_of(folder, "hangs", "fast", budget_s=3)
    specs = tuple(msgspec.structs.replace(tuning.base, context_length=length) for length in (8, 16, 32))
    running.tuner = Tuner(running.bench, lambda _, left_s: Checks(specs) if left_s > 0 else Finish(BUDGET_ENDED))
    thread = running.on_a_thread(running.tune, tuning)
    thread.join(30)
    running.bench.close()
    thread.join()
    assert running.took_s < 30
    assert [report.status for report in running.watch.state.reports.values()] == ["cancelled"] * 3


def test_a_race_in_a_session_that_has_begun_knows_its_machine_and_hears_no_more_when_it_is_over(
    tmp_path: Path, folder: Folder
) -> None:
    running = Racing(tmp_path)
    running.bench.run([small_spec()], "cs336-tui bench")
    running.tuner.close()
    running.tuner = Tuner(running.bench, lambda _state, _left_s: Finish(ONE_LEFT))
    running.tune(tuning_of(folder, "slow", "fast", budget_s=60))
    assert running.tuner.state.environment == running.watch.state.environment
    assert running.tuner.state.races[-1].ended is not None
    assert running.watch.state.ended is not None
    assert running.tuner.state.ended is None


@pytest.mark.parametrize(
    ("rounds", "is_refused"), [((range(7),), True), ((range(7), (0, 4)), False)], ids=["first-round", "second-round"]
)
def test_time_for_the_check_of_the_best_is_kept_in_the_first_round_alone(
    rounds: Iterable[Iterable[int]], is_refused: bool, tmp_path: Path
) -> None:
    """2.5 s are left; a visit takes 1 s, and two checks as much each."""
    with closing(Bench(Watch(), session_dir=tmp_path)) as bench:
        tuner = Tuner(bench, next_step, began=time.monotonic() - 57.5)
        tuner.recall(race_events(rounds=rounds))
        assert bool(tuner._refuse(tuner.state.tuning.candidates[0])) == is_refused


def test_a_race_that_was_stopped_goes_on_with_the_rest_of_its_budget(tmp_path: Path, folder: Folder) -> None:
    running = Racing(tmp_path)
    tuning = tuning_of(folder, "slow", "fast", budget_s=60)
    running.on_a_thread(running.tune, tuning)
    running.watch.until(lambda state: state.cells and state.cells[0].is_over)
    running.bench.cancel()
    running.finish(30)
    state = load(running.bench.log_path)
    assert state.has_unfinished_race
    assert standing_of(state, runs=False).words == "stopped in a race"
    assert race_of(state).ended == ""
    spent_s = state.races[-1].spent_s
    again = Racing(tmp_path, running.bench.session)
    again.resume()
    assert entry(again.race, "fast").status == "best"
    assert again.race.ended == ONE_LEFT
    assert again.race.spent_s > spent_s
    assert info_of(running.bench.log_path).stage == "done"


def test_a_race_that_was_killed_in_turns_goes_on_without_them(tmp_path: Path, folder: Folder) -> None:
    log, race = _killed(tmp_path, tuning_of(folder, "fast", "slow", budget_s=60), ends=4)
    assert info_of(log).standing.words == "killed in a race"
    a, b = (each.spec for each in sorted(race.entries, key=lambda each: each.number))
    state = load(log)
    first, at = len(state.cells), (state.last_at or 0.0) + 0.1
    queued = CellsQueued(at=at, first=first, specs=(a, b), repeats=(9, 9), in_turns=True)
    started = [CellStarted(at=at, cell=cell, pid=1) for cell in (first, first + 1)]
    with log.open("ab") as file:
        file.write(b"".join(map(to_line, (queued, *started))))
    resumed = Racing(tmp_path, log.stem)
    resumed.resume()
    cells = resumed.watch.state.cells.values()
    assert [cell.cell for cell in cells if cell.skipped_because == BROKEN_OFF] == [first, first + 1]
    assert resumed.race.ended == ONE_LEFT


def test_turns_that_a_stop_broke_off_are_dropped_when_the_race_goes_on(tmp_path: Path) -> None:
    raced = race_events()
    state = fold(raced)
    number, at, specs = len(state.cells), raced[-1].at, state.tuning.candidates[:2]
    turns: list[Event] = [CellsQueued(at=at, first=number, specs=specs, repeats=(9, 9), in_turns=True)]
    for cell in (number, number + 1):
        turns += [CellStarted(at=at, cell=cell, pid=1), CellFinished(at=at, cell=cell, status="cancelled")]
    with closing(Bench(Watch(), session_dir=tmp_path, device_interval_s=0)) as bench:
        tuner = Tuner(bench, lambda _state, _left_s: Finish(ONE_LEFT))
        tuner.recall([*raced, *turns])
        tuner.stop()
        tuner.go_on()
    assert [tuner.state.cells[cell].skipped_because for cell in (number, number + 1)] == [BROKEN_OFF] * 2
    assert standing_of(tuner.state, runs=False).stage == "done"


def test_the_command_resume_goes_on_with_a_race_and_prints_its_outcome(tmp_path: Path, folder: Folder) -> None:
    log, _ = _killed(tmp_path, tuning_of(folder, "slow", "fast", budget_s=60), ends=1)
    words = ("resume", log.stem, "--session-dir", str(tmp_path), "--format", "json", "--trust")
    done, again = call(*words), call(*words)
    assert done.returncode == 0, done.stderr
    assert "the race goes on with " in done.stderr
    assert json.loads(done.stdout)["best"]["attention"].endswith(":fast")
    assert info_of(log).stage == "done"
    assert "nothing left to run" in again.stderr
    assert again.stdout == done.stdout


def test_the_command_resume_prints_all_of_a_session_that_went_on_after_its_race(tmp_path: Path) -> None:
    raced = race_events(ended=ONE_LEFT)
    cell, at = sum(isinstance(event, CellStarted) for event in raced), raced[-1].at
    later: list[Event] = [
        CellsQueued(at=at, first=cell, specs=(small_spec(),)),
        CellStarted(at=at, cell=cell, pid=1),
        CellFinished(at=at + 1, cell=cell, status="failed", error="it broke"),
    ]
    for name, events in (("race", raced), ("both", [*raced, *later])):
        write_log(tmp_path / f"{name}.jsonl", events)
    words = ("--session-dir", str(tmp_path), "--format", "csv")
    race, both = (call("resume", name, *words) for name in ("race", "both"))
    assert "nothing left to run" in both.stderr
    assert race.stdout.startswith("table,candidate,")
    assert "custom" in both.stdout
    assert not both.stdout.startswith("table,candidate,")
    assert (race.returncode, both.returncode) == (0, 1), "a cell failed"


def _killed(directory: Path, tuning: Tuning, ends: int) -> tuple[Path, Race]:
    """The log of a race that was killed when so many visits were over, and the race as it was."""
    running = Racing(directory)
    running.tune(tuning)
    lines = running.bench.log_path.read_bytes().splitlines(keepends=True)
    over = [at for at, event in enumerate(LogReader(running.bench.log_path)) if isinstance(event, CellFinished)]
    log = directory / "killed.jsonl"
    log.write_bytes(b"".join(lines[: over[ends - 1] + 1]))
    return log, race_of(load(log))
