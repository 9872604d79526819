"""Makes the screenshots: ``make screenshots``. Needs no GPU and no terminal.

The app's is of the replayed demo session, those of the tabs of reports are of a `tiny` train-step on this machine.
They name no font of the web, so that the pages need none.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from itertools import takewhile
from pathlib import Path

from cs336_tui.config.sweep import Sweep
from cs336_tui.events.codec import to_line
from cs336_tui.events.events import StepsTimed
from cs336_tui.events.reports import ReportKind
from cs336_tui.runner.bench import Bench
from cs336_tui.session.log import LogReader
from cs336_tui.tui.app import Cs336App

ROOT = Path(__file__).parents[1]
DEMO_LOG = ROOT / "tests" / "data" / "demo-session.jsonl"
SCREENSHOT = ROOT / "docs" / "screenshot.svg"
SIZE = (120, 40)
TABS: dict[ReportKind, tuple[str, ...]] = {"kernels": ("9", "v", "v"), "memory": ("0",)}
"""Keys that lead to the view of each report."""


def is_later(event: object) -> bool:
    """True if the event is past the moment shown: six measured steps into the sixth cell."""
    return isinstance(event, StepsTimed) and (event.cell, event.kind, event.first) == (5, "measured", 6)


def make_reports(folder: Path) -> Path:
    """A session with a kernels and a memory report; its log."""
    bench = Bench(lambda _: None, session_dir=folder, device_interval_s=0)
    bench.prepare()
    try:
        (spec,) = bench.resolve(Sweep(passes=("train-step",), devices=("cpu",))).cells()
        for kind in TABS:
            bench.ask_report(kind, spec)
        bench.work()
    finally:
        bench.close()
    return bench.log_path


async def photograph(log: Path, target: Path, *keys: str) -> None:
    app = Cs336App(replay=log, speed=0)
    async with app.run_test(size=SIZE) as pilot:
        while app.run_in_progress or not (app.state.cells or app.state.reports):
            await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
        app.paint()
        while not app.judging.is_settled:  # verdicts are worked out on a thread
            await pilot.pause(0.05)
        app.clear_notifications()
        app.paint()
        await pilot.pause()
        drawn = app.export_screenshot(title="cs336-tui", simplify=True)
        target.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))  # fonts of the web


def main() -> None:
    events = takewhile(lambda event: not is_later(event), LogReader(DEMO_LOG))
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / DEMO_LOG.name
        log.write_bytes(b"".join(map(to_line, events)))
        asyncio.run(photograph(log, SCREENSHOT))
        print(f"wrote {SCREENSHOT.relative_to(ROOT)}")
        reports = make_reports(Path(scratch))
        for tab, keys in TABS.items():
            target = SCREENSHOT.with_name(f"screenshot-{tab}.svg")
            asyncio.run(photograph(reports, target, *keys))
            print(f"wrote {target.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
