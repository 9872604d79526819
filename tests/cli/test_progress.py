"""The progress of a headless run: the lines of a pipe, and what stands on a terminal's screen; of a race, too."""

import io
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

import pyte
import pytest

from cs336_tui.analysis.eta import outlook_of
from cs336_tui.cli.progress import RunProgress
from cs336_tui.cli.tune import RaceProgress
from cs336_tui.config.tuning import space_of
from cs336_tui.events import events as ev
from cs336_tui.events.environment import HostSample
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import duration
from tests.made_race import made_tuning, race_events
from tests.samples import START, a_spec, cell_end, cell_start, lanes_session, session_start, state_of, steps


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def shown(self, columns: int = 80) -> list[str]:
        """The lines that stand on its screen."""
        screen = pyte.Screen(columns, 24)
        pyte.Stream(screen).feed(self.getvalue().replace("\n", "\r\n"))
        return [line.rstrip() for line in screen.display if line.strip()]


def told(
    events: Iterable[ev.Event],
    stream: io.StringIO | None = None,
    *,
    state: SessionState | None = None,
    kind: type[RunProgress] = RunProgress,
    after: Callable[[], object] = lambda: None,
) -> Any:
    """The stream, a terminal unless given, once these events were told; `after` is called after each."""
    stream, state = Terminal() if stream is None else stream, state or SessionState()
    progress = kind(state, stream)
    for event in events:
        state.apply(event)
        progress.show(event)
        after()
    return stream


@pytest.fixture(autouse=True)
def _redrawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cs336_tui.cli.progress._REDRAW_S", 0.0)


@pytest.mark.parametrize(
    ("stage", "words"), [("compiling", "compiling the model"), ("capturing", "capturing a CUDA graph")]
)
def test_a_long_stage_says_how_long_it_has_lasted_though_nothing_happens(stage: Any, words: str) -> None:
    begun = ev.StageChanged(at=START + 20, cell=0, stage=stage)
    sampled = [ev.DeviceSampled(at=START + 20 + seconds, host=HostSample()) for seconds in (5, 31)]
    terminal = told((*session_start([a_spec(compile="default")]), *cell_start(0), begun, *sampled))
    drawn = terminal.getvalue().split("\r")
    title = "[1/1] small · ctx 128 · forward+backward · fp32 · cuda:0 · compiled"
    room = 79 - len(f" · {words}, 0:05")
    cut = title if len(title) <= room else title[: room - 1].rstrip(" ·") + "…"
    assert f"{cut} · {words}, 0:05\n" in " ".join(drawn)
    assert f"{cut} · {words}, 0:31\n" in drawn[-1]


def test_samples_of_a_cell_that_says_how_far_it_is_draw_nothing() -> None:
    state = state_of((*session_start([a_spec()]), *cell_start(0)))
    assert told([ev.DeviceSampled(at=START + 30, host=HostSample())], state=state).getvalue() == ""


def test_cells_that_run_side_by_side_have_a_line_each() -> None:
    *cells, bar = told(lanes_session(4, 10)).shown()[-5:]
    assert [line.partition("]")[0] for line in cells] == ["[5/10", "[6/10", "[7/10", "[8/10"]
    assert [line.partition(" · measured ")[2][:3] for line in cells] == ["0/4", "1/4", "2/4", "3/4"]
    assert re.fullmatch(r"[━╸╺ ]+ \d+ % 4/10 cells · ETA \d+:\d\d", bar)


def test_lanes_are_told_and_why_one_is_set_aside() -> None:
    lanes = (ev.Lane(lane=0, device="cuda:1"), ev.Lane(lane=1, device="cpu", cores=(2, 6)))
    events = (ev.LanesOpened(at=START, lanes=lanes), ev.LaneSetAside(at=START, lane=0, reason="the GPU is lost"))
    assert told(events, io.StringIO()).getvalue().splitlines() == [
        "2 lanes: cuda:1, cpu cores 2,6",
        "lane 0, cuda:1, was set aside: the GPU is lost",
    ]


def test_what_is_one_is_told_in_the_singular() -> None:
    lanes = ev.LanesOpened(at=START, lanes=(ev.Lane(lane=0, device="cuda:0"),))
    terminal = told((*session_start([a_spec()]), lanes, *cell_start(0), *steps(0, [0.2], [0.1])))
    assert "1 lane: cuda:0" in terminal.getvalue()
    assert " 0/1 cell · ETA " in terminal.shown()[-1]


def test_a_cell_shows_its_phase_its_running_mean_and_the_time_left() -> None:
    state, terminal = SessionState(), Terminal()
    phases: list[str] = []
    begun = (*session_start([a_spec(warmup_steps=2, measure_steps=4)] * 2), *cell_start(0))
    events = (*begun, *steps(0, [0.2, 0.2], [0.1, 0.12]))
    told(events, terminal, state=state, after=lambda: phases.extend(terminal.shown()[:1]))
    assert any(phase.endswith(" · cuda:0 · warm-up 1/2") for phase in phases)
    line, bar = terminal.shown()
    assert line == "[1/2] small · ctx 128 · forward+backward · fp32… · measured 2/4 · 110 ms ± 14"
    left_s = outlook_of(state).ends.last_s
    assert left_s is not None
    assert bar.endswith(f" % 0/2 cells · ETA {duration(left_s)}")
    ended = told((*events, cell_end(0)))
    assert "━" not in "".join(ended.shown()), "the bar has gone"
    assert ended.shown()[0].endswith("110 ms ± 14 std (n=2)")
    assert "\x1b[?25l" not in ended.getvalue(), "the cursor is never hidden, so that nothing must bring it back"


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cs336_tui.cli.streams.StatusLines.size", os.terminal_size((columns, 8)))
    *cells, more, bar = told(lanes_session(8, 20)).shown(columns)[-7:]
    assert max(map(len, [*cells, bar])) < columns
    assert all(re.match(r"\[\d+/20\] \w+.* · \S", line) for line in cells), "a title is cut before what is told of it"
    assert more == "and 3 more", "of 8 rows 5 are for cells, so that nothing scrolls away"


def test_a_terminal_that_moves_no_cursor_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    text = told(lanes_session(4, 10)).getvalue()
    assert "\x1b" not in text
    assert "\r" not in text
    assert "[1/10]" in text


def raced(**more: Any) -> list[str]:
    """The lines of a race that is piped."""
    return told(race_events(**more), io.StringIO(), kind=RaceProgress).getvalue().splitlines()


def test_a_line_a_round_with_the_best_who_is_out_and_the_budget() -> None:
    first, one, *_ = raced()
    assert first == "race of 8 candidates, 1 combination left out; 1:00 left"
    assert one.startswith("round 1: 2 of 8 left; best: attention sdpa 0.60; out: attention sdpa, checkpoint 1 (+29")
    assert one.endswith(" and 4 more; 0:52 left")


def test_a_candidate_that_fails_is_out_with_its_reason() -> None:
    one = raced(lost={3: "CUDA error: an illegal memory access"})[1]
    assert "; out: checkpoint 1, optimizer adamw-for-loop (CUDA error: an illegal memory access), " in one


def test_rounds_that_change_nothing_are_told_every_few_seconds() -> None:
    said = raced(tuning=made_tuning(budget_s=600.0), rounds=[range(8), *[(0, 4)] * 40])
    assert 10 < len(said) < 25, "each of 40 rounds takes two seconds"
    assert not [line for line in said if "verdict" in line or "too few" in line]


@pytest.mark.parametrize("before", [[], race_events(ended="decided")], ids=["no-race", "over"])
def test_where_no_race_goes_on_cells_are_told_as_those_of_any_run(before: list[ev.Event]) -> None:
    cell = len(state_of(before).cells)
    queued = ev.CellsQueued(at=START + 10 * cell, first=cell, specs=(a_spec(),))
    events = (queued, *cell_start(cell), *steps(cell, [0.2], [0.1, 0.12]), cell_end(cell))
    usual, race = (told(events, state=state_of(before), kind=kind).getvalue() for kind in (RunProgress, RaceProgress))
    assert usual == race
    assert "budget" not in race


def test_the_place_in_a_round_is_that_among_its_visits() -> None:
    tuning = made_tuning()
    candidates = space_of(tuning).candidates
    events = (
        ev.TuningStarted(at=START, tuning=tuning, candidates=candidates),
        ev.CellsQueued(at=START, first=3, specs=candidates),
        ev.CellStarted(at=START, cell=3, pid=1),
    )
    terminal = told(events, state=state_of(session_start([a_spec()] * 3)), kind=RaceProgress)
    assert "round 1 · 1/8 · starting point · starting" in terminal.shown()


def test_those_that_the_budget_left_unvisited_are_counted_once() -> None:
    *_, first, second, third = raced(rounds=((0, 1, 4), (0, 4), (0, 4), (0, 4)), tuning=made_tuning(budget_s=600.0))
    said = [line for line in (first, second, third) if "did not allow" in line]
    assert len(said) == 1
    assert "; the budget did not allow a visit of 5; " in said[0]
    assert said[0].startswith("round 2: 1 of 8 left; ")


def test_a_long_line_breaks_between_words_on_a_terminal_and_not_at_all_in_a_pipe() -> None:
    text = " ".join(f"word{number}" for number in range(30))
    events = [*session_start([a_spec()]), ev.Notice(at=START, text=text)]
    shown = told(events).shown(80)
    words = [word for line in shown for word in line.split()]
    assert words[words.index("word0") :] == text.split()
    assert f"note: {text}\n" in told(events, io.StringIO()).getvalue()
