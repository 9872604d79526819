"""Entry points of child processes: set up pipes and output, call the worker, end."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import current_process, forkserver, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from cs336_tui.config.spec import CellSpec, Precision
from cs336_tui.events.codec import pack
from cs336_tui.events.environment import TorchEnvironment
from cs336_tui.events.events import CellFinished, Event, ReportFinished
from cs336_tui.events.peaks import DevicePeak
from cs336_tui.events.prediction import Prediction
from cs336_tui.runner.pipes import write_frame
from cs336_tui.runner.processes import end_offspring, offspring_of, remark_on_orphans
from cs336_tui.worker import worker_entry
from cs336_tui.worker.worker_entry import Place

EXIT_ORPHANED = 71
_LOOK_S, _SETTLE_S = 0.1, 0.015  # OpenMP's threads of the other side spin for milliseconds after its step
_PR_SET_PDEATHSIG = 1
_PREDICTING_NICENESS = 10  # so that a prediction slows nothing else down

_T = TypeVar("_T")
Work = Callable[[Callable[[Event], None], Callable[[], bool]], None]

_settled_as = 0  # the PID of the child; a copy of it that a user's code forked has another

NO_CORES = "the cores of its lane cannot be had"
"""Begins the error of a cell that could not be pinned to the cores of its lane."""
EXIT_NO_CORES = 72
IMPOSSIBLE = "no device can hold it"
"""Begins the reason why a cell that is too large for any device cannot be predicted."""


@dataclass(frozen=True)
class OnCores:
    """Work on these cores alone, before torch makes threads; the process ends with `EXIT_NO_CORES` where that cannot
    be."""

    cores: tuple[int, ...]
    work: Callable[..., object]

    def __call__(self, *args: Any, **options: Any) -> None:
        if hasattr(os, "sched_setaffinity"):
            try:
                os.sched_setaffinity(0, self.cores)
                if missing := set(self.cores) - os.sched_getaffinity(0):
                    raise OSError(f"not usable: {', '.join(map(str, sorted(missing)))}")
            except OSError as error:
                print(error.strerror or error, flush=True)
                _leave(EXIT_NO_CORES)
        self.work(*args, **options)


@dataclass(frozen=True)
class InTurns:
    """Two cells whose processes run their steps in turns: each asks before a step if it may go on, and waits there
    until the other one asks, as long as that lives."""

    cells: tuple[int, int]
    specs: tuple[CellSpec, CellSpec]
    ends: tuple[Connection, Connection]

    def __call__(self, emit: Callable[[Event], None], cancelled: Callable[[], bool], *, place: Place) -> None:
        has_turn, own = False, self.ends[place.rank]
        self.ends[1 - place.rank].close()

        def asked() -> bool:
            nonlocal has_turn
            with contextlib.suppress(EOFError, OSError):  # the other one is over
                if has_turn:
                    own.send_bytes(b".")
                while not (cancelled() or own.poll(_LOOK_S)):
                    pass
                has_turn = bool(own.poll() and own.recv_bytes())
                time.sleep(_SETTLE_S)
            return cancelled()

        worker_entry.run_cell(self.specs[place.rank], self.cells[place.rank], emit, asked)


FORKED_AFTER_DRIVER = "the CUDA driver was initialised before the fork"
"""The reason of a forked child that can tell nothing of devices; a spawned one can."""


class Answer(msgspec.Struct, Generic[_T], frozen=True):
    """Whatever a child has found, or in one line why there is nothing; neither if it is ready to find something."""

    found: _T | None = None
    error: str | None = None


def run_work(events: Connection, commands: Connection, output: str, work: Work) -> NoReturn:
    """Entry point of a process of cells or of a report: `work` is given the means to send and to ask for a stop."""
    _settle(output)
    poll = select.poll()
    poll.register(commands.fileno(), select.POLLIN | select.POLLHUP)

    def emit(event: Event) -> None:
        told, parent = [event], parent_process()
        is_spawned = parent is not None and parent.pid == os.getppid()  # by the app itself, not by a fork server
        if isinstance(event, CellFinished | ReportFinished) and is_spawned:
            _end_a_copy()  # nobody could find the processes started here once this one has ended
            told = remark_on_orphans([event], end_offspring(offspring_of(os.getpid())))
        for each in told:
            _send(events, pack(each))

    def cancelled() -> bool:
        _end_a_copy()
        return bool(poll.poll(0))

    try:
        work(emit, cancelled)
    except BaseException:
        _end_a_copy()
        traceback.print_exc()
        _leave(1)
    _leave(0)


def run_answers(
    events: Connection, _commands: Connection, output: str, answers: Callable[[], Iterable[msgspec.Struct]]
) -> NoReturn:
    """Entry point of a process that sends answers as they are found."""
    _settle(output)
    for answer in answers():
        _send(events, msgspec.json.encode(answer))  # FLOPs of the largest do not fit msgpack's 64 bits
    _leave(0)


def predictions(asked: Iterable[tuple[CellSpec, tuple[int, int] | None]]) -> Iterator[Answer[Prediction]]:
    """An answer that the process is ready, then one for each spec and the compute capability of its device."""
    os.nice(_PREDICTING_NICENESS)
    yield Answer()
    for spec, capability in asked:
        try:
            answer = Answer(worker_entry.predict(spec, capability=capability))
        except BaseException as error:  # a user's model may raise anything, and call sys.exit
            why = worker_entry.in_one_line(error)  # its traceback goes to the output
            if "Storage size calculation overflowed" in str(error):
                why = f"{IMPOSSIBLE}: one of its tensors alone has more bytes than can be addressed"
            answer = Answer(error=why)
        yield answer


def probe() -> list[Answer[TorchEnvironment]]:
    """The devices and settings that torch offers on this machine."""
    if worker_entry.forked_after_driver():
        return [Answer(error=FORKED_AFTER_DRIVER)]
    try:
        return [Answer(worker_entry.probe())]
    except BaseException as error:
        traceback.print_exc()
        return [Answer(error=f"{type(error).__name__}: {error}")]


def tried(device: str) -> list[Answer[None]]:
    """A device as a fresh process finds it."""
    try:
        worker_entry.try_device(device)
    except BaseException as error:
        traceback.print_exc()
        return [Answer(error=worker_entry.in_one_line(error))]
    return [Answer()]


def peak(device: str, precision: Precision, threads: int | None) -> list[Answer[DevicePeak]]:
    """The measured peak of a device."""
    try:
        return [Answer(worker_entry.measure_peak(device, precision, threads))]
    except Exception as error:
        traceback.print_exc()
        return [Answer(error=f"{type(error).__name__}: {error}".splitlines()[0])]


def store() -> Iterator[Answer[int]]:
    """The port of a store in which ranks over nodes meet; served until the process is ended."""
    served = worker_entry.served_store()
    yield Answer(served.port)
    threading.Event().wait()


def _settle(output: str) -> None:
    """Redirect output to a file, leave Ctrl-C and hang-ups to the parent, and end with the parent."""
    global _settled_as
    _settled_as = os.getpid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    fd = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    # The parent's interface may have replaced these objects.
    sys.stdout = open(1, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115
    # The temporary files of a killed child go with the runner's folder.
    tempfile.tempdir = os.environ["TMPDIR"] = str(Path(output).parent)
    faulthandler.enable(sys.stderr)
    worker_entry.keep_freed_memory()
    current_process().daemon = False  # else a model could not have a data loader with workers
    os.register_at_fork(after_in_child=_let_go_of_server)
    _die_with_parent()


def _let_go_of_server() -> None:
    """In a forked copy: close the pipe that keeps the fork server alive, which ends with the app and its cells."""
    server: Any = forkserver._forkserver
    fd, server._forkserver_alive_fd = server._forkserver_alive_fd, None
    if fd is not None:
        with contextlib.suppress(OSError):
            os.close(fd)


def _end_a_copy() -> None:
    """End a copy that a user's code forked and returned from; those of a data loader never come here."""
    if os.getpid() != _settled_as:
        os._exit(0)


def _die_with_parent() -> None:
    parent = parent_process()
    if parent is None:
        return
    if sys.platform != "linux":
        _watch_on_a_thread(parent.sentinel)
        return
    import ctypes

    # Our parent is the fork server: when it goes, nobody can tell the app of our end.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The server outlives the app while it has children. The app's end closes a pipe, on which the kernel sends us a
    # signal.
    try:
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(parent.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, os.O_ASYNC | os.O_RDONLY)
    except OSError:  # some sandboxes' kernels do not know these
        _watch_on_a_thread(parent.sentinel)
    if wait([parent.sentinel], 0):
        os._exit(EXIT_ORPHANED)


def _watch_on_a_thread(sentinel: int) -> None:
    def exit_after() -> None:
        wait([sentinel])
        os._exit(EXIT_ORPHANED)

    threading.Thread(target=exit_after, name="parent-watch", daemon=True).start()


def _send(events: Connection, payload: bytes) -> None:
    _end_a_copy()
    try:
        write_frame(events.fileno(), payload)
    except BrokenPipeError:
        _leave(EXIT_ORPHANED)


def _leave(status: int) -> NoReturn:
    """Exit without the interpreter's clean-up, which takes torch 0.1 s."""
    _end_a_copy()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
