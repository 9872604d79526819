"""Snapshots of the whole screen at several sizes, from a replayed log, independent of clock and machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from cs336_tui.events.peaks import PeakCache, peak_key
from cs336_tui.session.state import fold
from cs336_tui.tui.app import Cs336App
from tests.made_peaks import made_peak
from tests.made_race import race_events
from tests.samples import jobs_session, lanes_session, mixed_session, ranks_sampled, ranks_session
from tests.tui.kept_sessions import MIXED, STOPPED, keep, stopped_session
from tests.tui.watched import demo, in_the_middle, log_of, nothing_in_background, press, until

SIZES = {"80x24": (80, 24), "120x40": (120, 40), "200x60": (200, 60)}


def after(*keys: str) -> Callable[[Pilot[None]], Any]:
    """Play the log to its end, then press the keys."""

    async def prepare(pilot: Pilot[None]) -> None:
        await until(pilot, "at its end")
        await judged(pilot)
        pilot.app.clear_notifications()  # they go by themselves, at a time of their own
        await pilot.pause()
        await pilot.press(*keys)
        pilot.app.clear_notifications()
        await pilot.pause()
        await judged(pilot)

    return prepare


async def judged(pilot: Pilot[None]) -> None:
    """Wait until every verdict in sight is known, and shown."""
    app = pilot.app
    assert isinstance(app, Cs336App)
    for _ in range(2):  # what is found may bring more rows into sight
        await until(pilot, lambda _: app.judging.is_settled and nothing_in_background())
        await pilot.pause()  # what a thread found is taken in


@pytest.mark.parametrize("size", SIZES)
def test_in_the_middle_of_a_run(size: str, snap_compare: Any, tmp_path: Path) -> None:
    app = Cs336App(replay=log_of(demo(in_the_middle), tmp_path), speed=0)
    assert snap_compare(app, terminal_size=SIZES[size], run_before=after())


@pytest.mark.parametrize("key", ["1", "4"])
def test_a_tab_fills_a_small_terminal(key: str, snap_compare: Any, tmp_path: Path) -> None:
    app = Cs336App(replay=log_of(demo(in_the_middle), tmp_path), speed=0)
    assert snap_compare(app, terminal_size=SIZES["80x24"], run_before=after(key))


@pytest.mark.parametrize("keys", [(), ("4", "home", "enter"), ("question_mark",)], ids=" ".join)
def test_at_the_end_of_a_session(keys: tuple[str, ...], snap_compare: Any, tmp_path: Path) -> None:
    app = Cs336App(replay=log_of(demo(), tmp_path), speed=0)
    assert snap_compare(app, terminal_size=SIZES["120x40"], run_before=after(*keys))


@pytest.mark.parametrize(("size", "on_gpus"), [("80x24", False), ("120x40", True)])
def test_a_running_cell_of_eight_ranks(size: str, on_gpus: bool, snap_compare: Any, tmp_path: Path) -> None:
    events = [*ranks_session(8, is_over=False), ranks_sampled(8, on_gpus=on_gpus)]
    app = Cs336App(replay=log_of(events, tmp_path), speed=0)
    assert snap_compare(app, terminal_size=SIZES[size], run_before=after())


@pytest.mark.parametrize(
    ("size", "keys"), [("80x24", ()), ("80x24", ("6",)), ("120x40", ("6",))], ids=["live", "queue", "large"]
)
def test_eight_lanes(size: str, keys: tuple[str, ...], snap_compare: Any, tmp_path: Path) -> None:
    app = Cs336App(replay=log_of(lanes_session(ranks=2, set_aside=3, cells=24), tmp_path), speed=0)
    assert snap_compare(app, terminal_size=SIZES[size], run_before=after(*keys))


def test_a_session_of_slurm(snap_compare: Any, tmp_path: Path) -> None:
    app = Cs336App(replay=log_of(jobs_session(), tmp_path), speed=0)
    assert snap_compare(app, terminal_size=SIZES["120x40"], run_before=after("6"))


@pytest.mark.parametrize("is_over", [False, True], ids=["under-way", "over"])
@pytest.mark.parametrize("size", ["80x24", "120x40"])
def test_a_race(size: str, is_over: bool, snap_compare: Any, tmp_path: Path) -> None:
    lost = {3: "RuntimeError: the optimizer's kernel needs a newer driver"}
    events = race_events(lost=lost, ended="the budget ended" if is_over else "", running=4)
    app = Cs336App(replay=log_of(events, tmp_path), speed=0)

    async def prepare(pilot: Pilot[None]) -> None:
        await until(pilot, "log axis")
        await after()(pilot)

    assert snap_compare(app, terminal_size=SIZES[size], run_before=prepare)


def test_a_light_theme(snap_compare: Any, tmp_path: Path) -> None:
    app = Cs336App(replay=log_of(demo(in_the_middle), tmp_path), speed=0, theme="cs336-light")
    assert snap_compare(app, terminal_size=SIZES["120x40"], run_before=after())


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sessions say when they began in local time."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("key", ["6", "8"])
@pytest.mark.parametrize("size", SIZES)
def test_queue_and_compare(size: str, key: str, snap_compare: Any, tmp_path: Path) -> None:
    app = Cs336App(replay=log_of(demo(in_the_middle), tmp_path), speed=0)
    assert snap_compare(app, terminal_size=SIZES[size], run_before=after(key))


@pytest.mark.parametrize("size", SIZES)
def test_export(size: str, snap_compare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    app = Cs336App(replay=log_of(demo(), tmp_path), speed=0)
    app.export_folder = Path("/home/me/write-up")
    keys = ("e", "down", "right") if size == "80x24" else ("e", "right")
    assert snap_compare(app, terminal_size=SIZES[size], run_before=after(*keys))


@pytest.mark.parametrize("size", SIZES)
def test_the_roofline(size: str, snap_compare: Any, tmp_path: Path) -> None:
    environment = fold(demo()).environment
    assert environment is not None
    peaks = PeakCache(tmp_path / "peaks")
    for precision, flops_per_s in (("fp32", 48.2e12), ("bf16-mixed", 702e12)):
        key = peak_key(environment, "cuda:0", precision)
        peaks.put(key, made_peak(flops_per_s, 2.61e12, precision))
    app = Cs336App(replay=log_of(demo(), tmp_path), speed=0, peaks=peaks)

    async def prepare(pilot: Pilot[None]) -> None:
        await after("l")(pilot)
        await until(pilot, "measured 702 TFLOP/s")
        await press(pilot, "home", seen=lambda shown: "measured 48.2 TFLOP/s" in shown and "Press n" not in shown)
        await judged(pilot)

    assert snap_compare(app, terminal_size=SIZES[size], run_before=prepare)


@pytest.mark.parametrize("size", SIZES)
def test_the_sessions_of_a_folder(size: str, snap_compare: Any, tmp_path: Path, in_utc: None) -> None:  # noqa: ARG001
    keep(tmp_path, STOPPED, stopped_session())
    keep(tmp_path, MIXED, mixed_session())
    replayed = tmp_path / "replayed"
    replayed.mkdir()
    app = Cs336App(replay=log_of(demo(in_the_middle), replayed), speed=0, session_dir=tmp_path)

    async def prepare(pilot: Pilot[None]) -> None:
        await until(pilot, "at its end")
        await press(pilot, "7", seen=STOPPED)
        pilot.app.clear_notifications()
        await judged(pilot)

    assert snap_compare(app, terminal_size=SIZES[size], run_before=prepare)
