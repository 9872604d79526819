"""A session closed while it is being resumed: its log is complete, in order and no longer being written."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from cs336_tui.events.events import Event, SessionEnded, SessionResumed
from cs336_tui.runner.bench import Bench
from cs336_tui.session.lock import lock_path
from cs336_tui.session.log import LogReader
from tests.runner.sessions import run
from tests.watching import PATIENCE_S, Watch, small_spec


def test_closing_waits_until_the_session_is_resumed(tmp_path: Path) -> None:
    path, _ = run(tmp_path, small_spec())
    bench = Bench(Watch(), session_dir=path.parent, session=path.stem, device_interval_s=0)
    bench.prepare()
    bench.probe()
    closing = threading.Thread(target=bench.close)

    def close_meanwhile(_history: Sequence[Event]) -> None:
        closing.start()
        closing.join(1.0)  # closing has time to do what it does

    try:
        bench.resume(close_meanwhile)
    finally:
        closing.join(PATIENCE_S)
        bench.close()
    last = [event for event in LogReader(path) if isinstance(event, SessionResumed | SessionEnded)][-2:]
    assert [type(event) for event in last] == [SessionResumed, SessionEnded]
    assert not lock_path(path).exists()
