"""Looks after the fork server of this process, and ends the processes and scratch folders that a killed one leaves."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cs336_tui.config.processes import lives
from cs336_tui.events.events import CellFinished, Event, Notice, ReportFinished
from cs336_tui.stats.quantities import counted

if TYPE_CHECKING:
    import psutil


LOADS_WITHIN_S = 120.0
"""Seconds in which a server imports torch."""
ANSWERS_WITHIN_S = 10.0
"""Seconds in which a server that has done so starts a process, or tells the end of one."""
STOPPED_FOR_S = 1.0
"""Seconds for which a server that is waited for may be stopped (SIGSTOP)."""
UNWANTED_FOR_S = 0.6
"""Seconds for which a start that nobody wants any more is waited for."""
_LOOK_S = 0.2


@dataclass
class Start:
    """The start of a process that the server was asked for."""

    within_s: float | None
    """A limit in seconds beside those above."""
    is_unwanted: Callable[[], bool]
    waited_s: float = 0.0
    """Without the time for which this process itself was stopped."""
    failed_because: str = ""
    """Why the server was killed; another one may answer unless `is_final`."""
    is_final: bool = False


class ServerWatch:
    """Waits for the server beside those who wait in `multiprocessing`, where no wait has a limit: for the start of a
    process, and for the end of one in `living` that is dead. A look at them costs tens of microseconds a process."""

    def __init__(self) -> None:
        self.living: set[int] = set()
        """The processes of this one that were started and not closed."""
        self._changed = threading.Condition()
        self._start: Start | None = None
        self._unreaped: dict[int, float] = {}
        """Dead processes of the server, and for how many seconds it has not told their end."""
        self._loaded: int | None = None  # the PID of the server that has answered
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def starting(self, start: Start) -> Iterator[None]:
        """While entered a process is being started; one at a time."""
        with self._changed:
            self._start = start
            if self._thread is None:
                self._thread = threading.Thread(target=self._look_after, name="cs336-fork-server", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        try:
            yield
            self._loaded = server_pid()
        finally:
            with self._changed:
                self._start = None

    def _look_after(self) -> None:
        while True:
            with self._changed:
                if self._start is None and not self.living:
                    self._thread = None
                    return
                before = time.monotonic()
                self._changed.wait(_LOOK_S if self._start or self._unreaped else 5 * _LOOK_S)
                start = self._start
            if (server := server_pid()) is not None:
                self._look(server, start, min(time.monotonic() - before, 5 * _LOOK_S))

    def _look(self, server: int, start: Start | None, passed_s: float) -> None:
        dead = [pid for pid in tuple(self.living) if _is(pid, "zombie", server)]
        self._unreaped = {pid: self._unreaped.get(pid, -passed_s) + passed_s for pid in dead}
        if start is not None:
            start.waited_s += passed_s
        waited_s = max([*self._unreaped.values(), start.waited_s if start else 0.0])
        if waited_s >= STOPPED_FOR_S and _is(server, "stopped"):
            self._give_up(server, start, "was stopped (SIGSTOP)")
        elif self._unreaped and max(self._unreaped.values()) >= ANSWERS_WITHIN_S:
            self._give_up(server, start, f"did not answer within {ANSWERS_WITHIN_S:g} s")
        elif start is not None and start.is_unwanted() and start.waited_s >= UNWANTED_FOR_S:
            self._give_up(server, start, "did not answer before the stop", is_final=True)
        elif start is not None:
            limit_s = ANSWERS_WITHIN_S if self._loaded == server else LOADS_WITHIN_S
            limit_s = min(limit_s, start.within_s or limit_s)
            if start.waited_s >= limit_s:
                why = f"did not answer within {limit_s:g} s"
                self._give_up(server, start, why, is_final=self._loaded != server)

    def _give_up(self, server: int, start: Start | None, why: str, *, is_final: bool = False) -> None:
        if start is not None:
            start.failed_because, start.is_final = f"the fork server {why}", is_final
        known: Any = forkserver._forkserver
        with known._lock:  # nobody else waits for its end meanwhile, so that the PID is its own
            if known._forkserver_pid == server:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(server, signal.SIGKILL)


def server_pid() -> int | None:
    """The PID of this process's fork server; None without one."""
    known: Any = forkserver._forkserver
    pid: int | None = known._forkserver_pid
    return pid


def _is(pid: int, status: str, parent: int | None = None) -> bool:
    """True of a process with this status, as psutil calls it, and if given with this parent."""
    import psutil

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return process.status() == status and parent in (None, process.ppid())
    return False


WATCH = ServerWatch()
"""The one of this process, which has one fork server."""


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
        with contextlib.suppress(OSError), os.fdopen(os.open(other, os.O_RDWR | os.O_NOFOLLOW), "rb") as file:
            if os.fstat(file.fileno()).st_uid == os.getuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(other.parent, ignore_errors=True)


_GIVE_UP_S = 2.0  # seconds to wait for the end of killed processes; one that waits for a device may not end
_TORCHS_OWN = "torch/_inductor/compile_worker"
"""In the command line of the workers in which torch compiles; they are ended without a word."""


def end_orphans(living: Container[int]) -> list[str]:
    """Kill children of the fork server not in `living`, and their orphans; returns names. Takes 50 µs without any."""
    ended: list[str] = []
    if (server := server_pid()) is None:
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
