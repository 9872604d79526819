"""The last words in the terminal that the app leaves: its session, and the commands that go on with it."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
from collections.abc import Iterable
from pathlib import Path

from cs336_tui.export.writing.texts import one_line
from cs336_tui.session.log import default_session_dir
from cs336_tui.session.store import SessionInfo, info_of

_TAKES_WITHIN_S = 1.0
_GOES_ON = {"running": ("watch",), "stopped": ("resume",), "killed": ("resume",)}


def farewell(logs: Iterable[Path]) -> str:
    """The first of these sessions that has cells, then the commands that resume it, if cells are left, show and export
    it, each in a line of its own. Empty where none has cells."""
    infos = (info_of(log) for log in logs if log.is_file())
    return next((_words(info) for info in infos if info.cells), "")


def _words(info: SessionInfo) -> str:
    standing, own_name = info.standing, f" ({one_line(info.name)})" if info.name else ""
    how = f"{standing.words}, {standing.cells_left}" if standing.can_resume else info.stage
    name = info.session if info.path.parent == default_session_dir() else shlex.quote(str(info.path.absolute()))
    verbs = (*_GOES_ON.get(info.stage, ()), "show", "export")
    about = f"Session {info.session}{own_name}: {how}. To {', '.join(verbs[:-1])} or {verbs[-1]} it:"
    return "\n".join([about, *(f"  cs336-tui {verb} {name}" for verb in verbs), ""])


def say(text: str) -> None:
    """Write to the terminal, if there is one and it takes something: Ctrl+S holds what is written to it."""
    with contextlib.suppress(OSError):
        if text and os.isatty(1) and select.select([], [1], [], _TAKES_WITHIN_S)[1]:
            os.write(1, text.encode())
