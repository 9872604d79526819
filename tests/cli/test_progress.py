"""The progress line below a headless run in a terminal."""

from __future__ import annotations

import io

import pytest

from cs336_tui.cli.run import RunProgress
from cs336_tui.events.events import DeviceSampled, HostSample, Lane, LaneSetAside, LanesOpened, StageChanged
from cs336_tui.session.state import SessionState
from tests.samples import START, a_spec, cell_start, lanes_session, session_start


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stage", "words"), [("compiling", "compiling the model"), ("capturing", "capturing a CUDA graph")]
)
def test_a_long_stage_says_how_long_it_has_lasted_though_nothing_happens(
    stage: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cs336_tui.cli.run._REDRAW_S", 0.0)
    state, terminal = SessionState(), Terminal()
    progress = RunProgress(state, terminal)
    begun = StageChanged(at=START + 20, cell=0, stage=stage)  # type: ignore[arg-type]  # one of them
    sampled = [DeviceSampled(at=START + 20 + seconds, host=HostSample()) for seconds in (5, 31)]
    for event in (*session_start([a_spec(compile="default")]), *cell_start(0), begun, *sampled):
        state.apply(event)
        progress.show(event)
    drawn = terminal.getvalue().split("\r")
    assert f"small · ctx 128 · forward+backward · fp32 · cuda:0 · compiled · {words}, 0:05" in " ".join(drawn)
    assert drawn[-1].endswith(f"{words}, 0:31")


def test_samples_of_a_cell_that_says_how_far_it_is_draw_nothing() -> None:
    state, terminal = SessionState(), Terminal()
    progress = RunProgress(state, terminal)
    for event in (*session_start([a_spec()]), *cell_start(0)):
        state.apply(event)
    sample = DeviceSampled(at=START + 30, host=HostSample())
    state.apply(sample)
    progress.show(sample)
    assert terminal.getvalue() == ""


def test_cells_that_run_side_by_side_are_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cs336_tui.cli.run._REDRAW_S", 0.0)
    state, terminal = SessionState(), Terminal()
    progress = RunProgress(state, terminal)
    for event in lanes_session(4, 10):
        state.apply(event)
        progress.show(event)
    assert "4/10 cells over · 4 run: 5 0/4, 6 1/4, 7 2/4, 8 3/4 · ETA " in terminal.getvalue().split("\r")[-1]


def test_lanes_are_told_and_why_one_is_set_aside() -> None:
    state, said = SessionState(), io.StringIO()
    progress = RunProgress(state, said)
    lanes = (Lane(lane=0, device="cuda:1"), Lane(lane=1, device="cpu", cores=(2, 6)))
    for event in (LanesOpened(at=START, lanes=lanes), LaneSetAside(at=START, lane=0, reason="the GPU is lost")):
        state.apply(event)
        progress.show(event)
    assert said.getvalue().splitlines() == [
        "2 lanes: cuda:1, cpu cores 2,6",
        "lane 0, cuda:1, was set aside: the GPU is lost",
    ]
