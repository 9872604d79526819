"""Run pressed before the machine has been read: a message says what is awaited."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cs336_tui.config.sweep import Sweep
from cs336_tui.events.environment import Environment
from cs336_tui.session.log import Sink
from cs336_tui.tui.app import Cs336App
from tests.tui.watched import SMALL, WIDE, ScriptedBench, until


class SlowBench(ScriptedBench):
    """A bench that reads its machine when a test allows it."""

    def __init__(self, sink: Sink, log: Path | None = None) -> None:
        super().__init__(sink, log)
        self.may_read = threading.Event()

    def probe(self) -> Environment:
        self.may_read.wait()
        return super().probe()

    def resolve(self, sweep: Sweep) -> Sweep:
        self.may_read.wait()
        return super().resolve(sweep)


@pytest.mark.parametrize("size", [SMALL, WIDE])
async def test_the_live_pane_says_that_the_run_waits_for_the_machine(size: tuple[int, int]) -> None:
    made: list[SlowBench] = []

    def bench(sink: Sink, log: Path | None) -> SlowBench:
        made.append(SlowBench(sink, log))
        return made[-1]

    app = Cs336App(bench)  # type: ignore[arg-type]
    async with app.run_test(size=size) as pilot:
        await until(pilot, "[ Run ]")
        await pilot.press("escape", "r")
        shown = await until(pilot, "Reading this machine; the run starts then.")
        assert "press r" not in shown
        made[0].may_read.set()
        await until(pilot, "cell 1/")
