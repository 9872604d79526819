"""Sessions that this app does not run: a log is replayed and shows the choices of the run, and what another process or
jobs run is watched."""

import threading
import time
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from cs336_tui.config.choices import sweep_from, sweep_of
from cs336_tui.config.sweep import Sweep
from cs336_tui.events import events as ev
from cs336_tui.events.events import Event
from cs336_tui.runner.jobs.bench import JobsBench
from cs336_tui.runner.jobs.job import JobRequest, LaunchChoice
from cs336_tui.session.load import Pace, replay
from cs336_tui.session.log import SessionLog
from cs336_tui.session.store import load
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.configure.pane import ConfigurePane
from tests.samples import DEMO_LOG, START, lanes_session, session_start
from tests.tui.watched import SMALL, Benches, comes, demo, in_the_middle, log_of, on_screen, press, replaying, until
from tests.watching import PATIENCE_S, Watch, small_spec


async def test_keys_hold_and_change_the_pace(tmp_path: Path) -> None:
    app = Cs336App(replay=log_of(demo(in_the_middle), tmp_path), speed=2.0)
    async with on_screen(app, "replay ×2") as (_, pilot):
        await press(pilot, "right_curly_bracket", seen="replay ×4")
        await press(pilot, *["left_curly_bracket"] * 3, seen="replay ×0.5")
        assert "Pause" in await press(pilot, "space", seen="replay paused")
        await pilot.press("space")
        for _ in range(8):
            await pilot.press("right_curly_bracket")
        await until(pilot, "replay, at its end")
    assert f"  cs336-tui export {tmp_path / 'session.jsonl'}" in app.farewell().splitlines()


async def test_a_replay_shows_its_choices_and_its_queue_and_runs_and_changes_nothing(tmp_path: Path) -> None:
    async with on_screen(replaying(demo(in_the_middle), tmp_path), "at its end") as (app, pilot):
        pane = app.query_one(ConfigurePane)
        passes, precisions = ("forward", "forward+backward", "train-step"), ("fp32", "bf16-mixed")
        sizes, devices = ("small", "large", "xl"), ("cuda:0",)
        assert pane.form.sweep == Sweep(
            sizes=sizes, contexts=(512,), passes=passes, precisions=precisions, devices=devices
        )
        assert pane.disabled
        await pilot.press("r", "w")
        await pilot.pause()
        assert not app.run_in_progress
        assert len(app.screen_stack) == 1, "no preset is saved"
        text = await press(pilot, "6", seen="12 cells wait")
        assert "ETA " in text
        assert " x Skip" not in text.splitlines()[-1]
        await pilot.press("x", "J", "R")
        assert len(app.state.waiting) == 12


@pytest.mark.parametrize(
    ("damage", "seen"),
    [
        (lambda _: b"", "empty; expected a session log"),
        (lambda _: b'{"what": 1}\n', "not a session log"),
        (lambda data: data[:5000] + b"\n{broken\n" + data[5000:], "damaged"),
        (lambda data: data[:-20], "the last line was cut"),
        (None, "No such file"),
    ],
)
async def test_a_damaged_log_is_told_and_what_is_whole_is_shown(damage, seen: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "x.jsonl"
    if damage is not None:
        path.write_bytes(damage(log_of(demo(), tmp_path).read_bytes()))
    async with on_screen(Cs336App(replay=path, speed=0)) as (_, pilot):
        await press(pilot, "5", seen=lambda text: seen in text.replace("\n", ""))


@pytest.mark.parametrize("speed", [0.0, 1e6])
def test_a_pause_holds_every_event_back(speed: float, tmp_path: Path) -> None:
    pace, stop, third, seen = Pace(speed), threading.Event(), threading.Event(), list[Event]()
    pace.paused = True
    wait, waits = stop.wait, count(1)

    def counted(timeout: float | None = None) -> bool:
        """Wait, and report the third time, when two slices of the wait are over."""
        if next(waits) == 3:
            third.set()
        return wait(timeout)

    stop.wait = counted  # type: ignore[method-assign]
    playing = threading.Thread(target=partial(replay, log_of(demo(), tmp_path), seen.extend, pace=pace, stop=stop))
    playing.start()
    try:
        assert third.wait(10), "it does not wait"
        assert seen == []
        pace.paused = False
        playing.join(PATIENCE_S)
        assert seen == demo()
    finally:
        stop.set()
        playing.join(PATIENCE_S)


def test_speed_scales_the_log_s_time_and_stop_cuts_it() -> None:
    pace, stop = Pace(speed=1000.0), threading.Event()
    began = time.monotonic()
    assert pace.wait(20.0, stop) is False
    assert time.monotonic() - began < 5
    threading.Timer(0.05, stop.set).start()
    pace.speed = 0.001
    assert pace.wait(1000.0, stop) is True


OWN = {"model_path": (str(Path(__file__).parent),)}
RUNS = {
    "compiled": {"compiles": ("off", "default"), "optimizers": ("adamw", "adamw-fused")},
    "checkpoints": {"checkpoints": (0, 1, 2), "attentions": ("naive", "flash")},
    "attention": {"workload": "attention", "head_dims": (16, 32), "causal": False, "attentions": ("naive", "sdpa")},
    "own model": {"models": ("a:GPT",), "model_args": (("dropout", "0"),), "loss": "a:loss", **OWN},
    "own models": {"models": ("a:GPT", "b:Net"), "model_args": (("GPT.dropout", "0"), ("Net.bias", "1")), **OWN},
    "graphs": {"cuda_graphs": ("off", "step"), "passes": ("forward",)},
}


@pytest.mark.parametrize("name", RUNS)
def test_the_cells_make_the_choices_again(name: str) -> None:
    sweep = sweep_from(devices=("cpu",), **RUNS[name])
    assert sweep_of(sweep.cells()).cells() == sweep.cells()


async def test_a_replay_shows_how_many_cells_there_were_and_what_was_unusual(tmp_path: Path) -> None:
    sweep = sweep_from(devices=("cpu",), passes=("forward",), compiles=("off", "default"))
    async with on_screen(replaying(session_start(sweep.cells()), tmp_path), "at its end") as (app, pilot):
        await until(pilot, "2 cells")
        await until(pilot, "variants: compile off/default")
        assert app.query_one(ConfigurePane).form.sweep == sweep


async def test_a_session_that_another_process_writes_is_shown_as_it_goes_on_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with closing(SessionLog(path)) as log:
        log.write(lanes_session())
        app = Cs336App(watch=path, session_dir=tmp_path)
        async with on_screen(app, "8 run · 4 wait", size=SMALL, notifications=True) as (_, pilot):
            assert "watching" in await until(pilot, "s Stop")
            log.write([ev.CellFinished(at=START + 60, cell=8, status="ok")])
            await until(pilot, "7 run · 4 wait · 8 ok")
            await press(pilot, "s", seen="cs336-tui cancel sample")
            before = path.read_bytes()
            await pilot.press("q")
        assert path.read_bytes() == before
        log.write([ev.SessionEnded(at=START + 90, reason="cancelled")])


async def test_it_is_watched_from_the_list_of_sessions_too_until_it_is_over(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with closing(SessionLog(path)) as log:
        log.write(lanes_session())
        async with on_screen(Cs336App(Benches(), session_dir=tmp_path), size=SMALL) as (_, pilot):
            await press(pilot, "7", seen="▶ running")
            await press(pilot, "enter", seen="watching, b goes back")
            await until(pilot, "8 run · 4 wait")
            log.write([ev.SessionEnded(at=START + 90, reason="cancelled")])
            await until(pilot, "opened, b goes back")
            await press(pilot, "b", seen=lambda text: "goes back" not in text)


async def test_a_session_of_jobs_is_watched_left_and_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    bench = JobsBench(Watch(), path)
    queued = ev.CellsQueued(at=START, first=0, specs=(small_spec(measure_steps=1_000_000),))
    settings = JobRequest(session="s", job="", cells=(), device_interval_s=0)
    bench.submit([queued], LaunchChoice(launcher="local", form="array"), settings)
    try:
        bench.close()
        async with on_screen(Cs336App(watch=path, session_dir=tmp_path), "▶ measuring", size=SMALL) as (_, pilot):
            await press(pilot, "s", seen="Leave them")
            await press(pilot, "escape", seen="1 run")
        async with on_screen(Cs336App(Benches(), session_dir=tmp_path), size=SMALL) as (again, pilot):
            await press(pilot, "7", seen="s  ")
            await press(pilot, "enter", seen="▶ measuring")
            await press(pilot, "s", seen="Leave them")
            await pilot.press("tab", "enter")
            await comes(pilot, lambda: again.shown.state.ended is not None)
            assert {cell.status for cell in again.shown.state.cells.values()} == {"cancelled"}
        assert {cell.status for cell in load(path).cells.values()} == {"cancelled"}
    finally:
        ender = JobsBench(Watch(), path)
        ender.watch()
        ender.cancel()
        ender.work()
        ender.close()


async def test_a_session_that_is_named_at_the_start_is_opened_at_its_end(bench: Benches) -> None:
    async with on_screen(Cs336App(bench, opened=DEMO_LOG)) as (app, pilot):
        seen = await until(pilot, "opened, b goes back")
        assert "100 % · 270/270 steps" in seen
        assert app.shown.path == DEMO_LOG
        assert not app.replaying
        await press(pilot, "b", seen=lambda text: "goes back" not in text)
