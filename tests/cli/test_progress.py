"""The progress line below a headless run in a terminal."""

from __future__ import annotations

import io
import os
import re

import pyte
import pytest

from cs336_tui.analysis.eta import remaining_s
from cs336_tui.cli.progress import RunProgress
from cs336_tui.events.environment import HostSample
from cs336_tui.events.events import DeviceSampled, Lane, LaneSetAside, LanesOpened, StageChanged
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import duration
from tests.samples import START, a_spec, cell_end, cell_start, lanes_session, session_start, steps


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(terminal: Terminal, columns: int = 80) -> list[str]:
    """The lines that stand on the terminal's screen."""
    screen = pyte.Screen(columns, 24)
    stream = pyte.Stream(screen)
    stream.feed(terminal.getvalue().replace("\n", "\r\n"))
    return [line.rstrip() for line in screen.display if line.strip()]


@pytest.mark.parametrize(
    ("stage", "words"), [("compiling", "compiling the model"), ("capturing", "capturing a CUDA graph")]
)
def test_a_long_stage_says_how_long_it_has_lasted_though_nothing_happens(
    stage: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cs336_tui.cli.progress._REDRAW_S", 0.0)
    state, terminal = SessionState(), Terminal()
    progress = RunProgress(state, terminal)
    begun = StageChanged(at=START + 20, cell=0, stage=stage)  # type: ignore[arg-type]  # one of them
    sampled = [DeviceSampled(at=START + 20 + seconds, host=HostSample()) for seconds in (5, 31)]
    for event in (*session_start([a_spec(compile="default")]), *cell_start(0), begun, *sampled):
        state.apply(event)
        progress.show(event)
    drawn = terminal.getvalue().split("\r")
    title = "[1/1] small · ctx 128 · forward+backward · fp32 · cuda:0 · compiled"
    room = 79 - len(f" · {words}, 0:05")
    cut = title if len(title) <= room else title[: room - 1].rstrip(" ·") + "…"
    assert f"{cut} · {words}, 0:05\n" in " ".join(drawn)
    assert f"{cut} · {words}, 0:31\n" in drawn[-1]


def test_samples_of_a_cell_that_says_how_far_it_is_draw_nothing() -> None:
    state, terminal = SessionState(), Terminal()
    progress = RunProgress(state, terminal)
    for event in (*session_start([a_spec()]), *cell_start(0)):
        state.apply(event)
    sample = DeviceSampled(at=START + 30, host=HostSample())
    state.apply(sample)
    progress.show(sample)
    assert terminal.getvalue() == ""


def test_cells_that_run_side_by_side_have_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cs336_tui.cli.progress._REDRAW_S", 0.0)
    state, terminal = SessionState(), Terminal()
    progress = RunProgress(state, terminal)
    for event in lanes_session(4, 10):
        state.apply(event)
        progress.show(event)
    *cells, bar = shown(terminal)[-5:]
    assert [line.partition("]")[0] for line in cells] == ["[5/10", "[6/10", "[7/10", "[8/10"]
    assert [line.partition(" · measured ")[2][:3] for line in cells] == ["0/4", "1/4", "2/4", "3/4"]
    assert re.fullmatch(r"[━╸╺ ]+ \d+ % 4/10 cells · ETA \d+:\d\d", bar)


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


def test_what_is_one_is_told_in_the_singular(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cs336_tui.cli.progress._REDRAW_S", 0.0)
    state, terminal = SessionState(), Terminal()
    progress = RunProgress(state, terminal)
    lanes = LanesOpened(at=START, lanes=(Lane(lane=0, device="cuda:0"),))
    for event in (*session_start([a_spec()]), lanes, *cell_start(0), *steps(0, [0.2], [0.1])):
        state.apply(event)
        progress.show(event)
    assert "1 lane: cuda:0" in terminal.getvalue()
    assert " 0/1 cell · ETA " in shown(terminal)[-1]


def test_a_cell_shows_its_phase_its_running_mean_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cs336_tui.cli.progress._REDRAW_S", 0.0)
    state, terminal = SessionState(), Terminal()
    progress = RunProgress(state, terminal)
    spec = a_spec(warmup_steps=2, measure_steps=4)
    phases = []
    for event in (*session_start([spec] * 2), *cell_start(0), *steps(0, [0.2, 0.2], [0.1, 0.12])):
        state.apply(event)
        progress.show(event)
        phases.append(shown(terminal)[0] if shown(terminal) else "")
    assert any(phase.endswith(" · cuda:0 · warm-up 1/2") for phase in phases)
    line, bar = shown(terminal)
    assert line == "[1/2] small · ctx 128 · forward+backward · fp32… · measured 2/4 · 110 ms ± 14"
    left_s = remaining_s(state)
    assert left_s is not None
    assert bar.endswith(f" % 0/2 cells · ETA {duration(left_s)}")
    state.apply(end := cell_end(0))
    progress.show(end)
    assert "━" not in "".join(shown(terminal)), "the bar has gone"
    assert shown(terminal)[0].endswith("110 ms ± 14 std (n=2)")
    assert "\x1b[?25l" not in terminal.getvalue(), "the cursor is never hidden, so that nothing must bring it back"


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cs336_tui.cli.progress._REDRAW_S", 0.0)
    size = os.terminal_size((columns, 8))
    monkeypatch.setattr("cs336_tui.cli.streams.StatusLines.size", size)
    state, terminal = SessionState(), Terminal()
    progress = RunProgress(state, terminal)
    for event in lanes_session(8, 20):
        state.apply(event)
        progress.show(event)
    *cells, more, bar = shown(terminal, columns)[-7:]
    assert max(map(len, [*cells, bar])) < columns
    assert all(re.match(r"\[\d+/20\] \w+.* · \S", line) for line in cells), "a title is cut before what is told of it"
    assert more == "and 3 more", "of 8 rows 5 are for cells, so that nothing scrolls away"


def test_a_terminal_that_moves_no_cursor_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    state, terminal = SessionState(), Terminal()
    progress = RunProgress(state, terminal)
    for event in lanes_session(4, 10):
        state.apply(event)
        progress.show(event)
    assert "\x1b" not in terminal.getvalue()
    assert "\r" not in terminal.getvalue()
    assert "[1/10]" in terminal.getvalue()
