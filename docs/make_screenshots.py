"""Makes the README's screenshot from the replayed demo session: ``make screenshots``. Needs no GPU and no terminal."""

from __future__ import annotations

import asyncio
import tempfile
from itertools import takewhile
from pathlib import Path

from cs336_tui.events import StepsTimed, to_line
from cs336_tui.session.log import LogReader
from cs336_tui.tui.app import Cs336App

ROOT = Path(__file__).parents[1]
DEMO_LOG = ROOT / "tests" / "data" / "demo-session.jsonl"
SCREENSHOT = ROOT / "docs" / "screenshot.svg"
SIZE = (120, 40)


def is_later(event: object) -> bool:
    """Whether the event is past the moment shown: six measured steps into the sixth cell."""
    return isinstance(event, StepsTimed) and (event.cell, event.kind, event.first) == (5, "measured", 6)


async def photograph(log: Path, target: Path) -> None:
    app = Cs336App(replay=log, speed=0)
    async with app.run_test(size=SIZE) as pilot:
        while app.run_in_progress or not app.state.cells:
            await pilot.pause()
        app.clear_notifications()
        app.paint()
        await pilot.pause()
        target.write_text(app.export_screenshot(title="cs336-tui"))


def main() -> None:
    events = takewhile(lambda event: not is_later(event), LogReader(DEMO_LOG))
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / DEMO_LOG.name
        log.write_bytes(b"".join(map(to_line, events)))
        asyncio.run(photograph(log, SCREENSHOT))
    print(f"wrote {SCREENSHOT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
