"""Scratch folders and processes that a killed process leaves, and their end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Container, Iterable, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cs336_tui.config.processes import lives
from cs336_tui.events.events import CellFinished, Event, Notice, ReportFinished
from cs336_tui.stats.quantities import counted

if TYPE_CHECKING:
    import psutil

_PREFIX = "cs336-tui-"
_OWNER = "owner"
"""A file that is locked for as long as the process lives that made the folder; children do not inherit that."""
_owned: dict[Path, int] = {}


def make_scratch(kind: str = "") -> Path:
    """A new folder for temporary files of this process. Raises OSError."""
    path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}"))
    with contextlib.suppress(OSError):  # a full disk, or a file system without locks; it is not found by others then
        draft = path / f"{_OWNER}.draft"
        _owned[path] = fd = os.open(draft, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.rename(path / _OWNER)
    return path


def end_scratch(path: Path) -> None:
    """Remove a folder of this process, and those of processes that were killed. Safe to call twice."""
    shutil.rmtree(path, ignore_errors=True)
    if (fd := _owned.pop(path, None)) is not None:
        os.close(fd)
    for other in path.parent.glob(f"{_PREFIX}*/{_OWNER}"):
        with contextlib.suppress(OSError):
            _remove_if_dead(other)


def _remove_if_dead(owner: Path) -> None:
    fd = os.open(owner, os.O_RDWR | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_uid == os.getuid():
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(owner.parent, ignore_errors=True)
    finally:
        os.close(fd)


_GIVE_UP_S = 2.0  # seconds to wait for the end of killed processes; one that waits for a device may not end
_TORCHS_OWN = "torch/_inductor/compile_worker"
"""In the command line of the workers in which torch compiles; they are ended without a word."""


def end_orphans(living: Container[int]) -> list[str]:
    """Kill children of the fork server not in `living`, and their orphans; returns names. Takes 50 µs without any."""
    known: Any = forkserver._forkserver
    server: int | None = known._forkserver_pid
    ended: list[str] = []
    if server is None:
        return ended
    give_up_at = time.monotonic() + _GIVE_UP_S
    while orphans := [pid for pid in _children_of(server) if pid not in living]:
        killed = _kill(orphans)
        ended += killed
        if not killed or time.monotonic() >= give_up_at:
            break
    return [name for name in ended if name]


def offspring_of(pid: int) -> list[psutil.Process]:
    """The living descendants of a living process."""
    import psutil

    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def end_offspring(started: Iterable[psutil.Process]) -> list[str]:
    """Kill these; returns their names."""
    return [name for name in _kill([each.pid for each in started if each.is_running()]) if name]


def remark_on_orphans(ends: Sequence[CellFinished | ReportFinished], names: Sequence[str]) -> list[Event]:
    """The ends of a child's cells or report, with a notice and a remark if orphans of these names were ended."""
    if not names:
        return [*ends]
    cells = [end for end in ends if isinstance(end, CellFinished)]
    processes = counted(len(names), "process")
    text = f"ended {processes} that the {'cell' if cells else 'report'} had left: {', '.join(sorted(set(names)))}"
    if not cells:
        return [Notice(at=time.time(), text=text), *ends]
    notice = Notice(at=time.time(), text=f"cell {min(end.cell for end in cells) + 1}: {text}")
    return [notice, *(msgspec.structs.replace(end, remarks=(*end.remarks, text)) for end in cells)]


def _children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # not every kernel is built with it
        import psutil

        with contextlib.suppress(psutil.Error):
            return [child.pid for child in psutil.Process(pid).children()]
        return []


def _kill(pids: Iterable[int]) -> list[str]:
    """Kill them and wait for their end; returns the name of each that lived, empty for torch's own."""
    import psutil

    killed: list[tuple[int, float]] = []
    names: list[str] = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            since = process.create_time()
            if not lives(pid, since):
                continue
            name = "" if any(_TORCHS_OWN in part for part in process.cmdline()) else process.name()
            process.kill()
            killed.append((pid, since))
            names.append(name)
    give_up_at = time.monotonic() + _GIVE_UP_S  # psutil's own wait takes a zombie for a process that lives
    while any(lives(pid, since) for pid, since in killed) and time.monotonic() < give_up_at:
        time.sleep(0.001)
    return names
