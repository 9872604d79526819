"""Named sessions in a folder, for tests of the session list."""

from pathlib import Path

from cs336_tui.events.events import CellFinished, Event, SessionStarted
from tests.samples import START, a_spec, cell_end, cell_start, session_start, steps, write_log

STOPPED = "2026-11-18T09-00-00-aaaa"
MIXED = "2026-11-19T10-00-00-bbbb"
DEMO = "2026-11-20T14-03-42-demo"


def stopped_session() -> list[Event]:
    """Three cells of which the first has a result and the others were stopped."""
    specs = [a_spec(context_length=length) for length in (128, 256, 512)]
    events = [*session_start(specs), *cell_start(0), *steps(0, (0.4,), (0.1, 0.11)), cell_end(0)]
    return [*events, *(CellFinished(at=START + 60, cell=cell, status="cancelled", error="stopped") for cell in (1, 2))]


def keep(folder: Path, name: str, events: list[Event]) -> Path:
    first = events[0]
    renamed = SessionStarted(at=first.at, schema=first.schema, session=name, app=first.app)
    return write_log(folder / f"{name}.jsonl", [renamed, *events[1:]])
