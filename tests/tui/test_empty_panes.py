"""Text of an empty pane can be read to its end at any width."""

from __future__ import annotations

from pathlib import Path

import pytest

from cs336_tui.events.events import SessionAnnotated
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.screen import MainScreen
from cs336_tui.tui.tabs.device import DevicePane
from cs336_tui.tui.tabs.live import LivePane
from cs336_tui.tui.tabs.sessions import SessionsPane
from tests.made_memory import a_memory_report
from tests.samples import START, session_start
from tests.tui.kept_sessions import DEMO, keep
from tests.tui.one_pane import report_events
from tests.tui.watched import SMALL, WIDE, Benches, demo, log_of, until


@pytest.mark.parametrize("size", [WIDE, (200, 60)])
async def test_a_session_of_reports_says_where_they_are(size: tuple[int, int], tmp_path: Path) -> None:
    (started, environment, _) = session_start([])
    app = Cs336App(replay=log_of([started, environment, *report_events(a_memory_report())], tmp_path), speed=0)
    async with app.run_test(size=size) as pilot:
        await until(pilot, "at its end")
        main = app.main
        assert isinstance(main, MainScreen)
        await until(pilot, lambda _: bool(app.state.reports) and "no cells" in main.query_one(LivePane).text)
        said = " ".join(main.query_one(LivePane).text.split())
        assert said.endswith("This session has reports and no cells: Kernels (9), Memory (0), Precision (p).")
        for pane in (main.query_one(LivePane), main.query_one(DevicePane)):
            assert max(map(len, pane.text.splitlines())) <= pane.content_size.width, "nothing is cut"
        assert " ".join(main.query_one(DevicePane).text.split()).endswith("waiting for the first sample ...")


async def test_a_list_of_sessions_that_is_all_in_sight_keeps_no_room_for_where_one_is(tmp_path: Path) -> None:
    for place in range(12):
        named = SessionAnnotated(at=START + 1, name=f"{place:02} a name that is not so short")
        keep(tmp_path, f"{DEMO[:-4]}{place:04}", [*demo(), named])
    app = Cs336App(Benches(), session_dir=tmp_path)
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda _: app.live.state.environment is not None)
        await pilot.press("7")
        pane = app.query_one(SessionsPane)
        await until(pilot, lambda _: len(pane.infos) == 12)
        assert pane.position_width == 0
