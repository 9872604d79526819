"""Imported once by the fork server, so that every child starts with torch loaded. The import does all the work.

The server's output goes to the file named by ``CS336_TUI_SERVER_OUTPUT``, or nowhere; ``CS336_TUI_SERVER_APP`` is the
PID of the app. It runs no torch operation, as threads do not survive a fork, and asks nothing of CUDA, which a child
could not use after that.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import signal
import sys
import traceback
from pathlib import Path
from time import monotonic, sleep

from cs336_tui.config import processes
from cs336_tui.config.processes import environment, lives
from cs336_tui.worker.measure.process import driver_initialised

OUTPUT_VARIABLE, APP_VARIABLE = "CS336_TUI_SERVER_OUTPUT", "CS336_TUI_SERVER_APP"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_ENDS_WITHIN_S = 5.0  # of killed children; one that waits for a device may not end

_OPTIONAL = (
    "numpy",
    # torch imports these at the first use of an optimizer, which would slow a child's first step.
    "torch._dynamo",
    "torch.profiler._cupti_monitor",
    # Needed by predictions and reports.
    "torch._subclasses.fake_tensor",
    "cs336_tui.worker.estimate.predict",
    "cs336_tui.worker.measure.report",
)
_NEEDED = ("cs336_tui.worker.measure.cell", "cs336_tui.worker.measure.process", "cs336_tui.worker.measure.probe")

_WHILE_IMPORTING = {
    # Else numpy's OpenBLAS starts threads on import.
    "OPENBLAS_NUM_THREADS": "1",
    # If an import asks for GPUs, torch asks NVML and leaves the CUDA driver uninitialised.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


def _redirect_output() -> None:
    try:
        fd = os.open(os.environ.get(OUTPUT_VARIABLE, os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


class _FailsAgain:
    """Makes every later import of torch fail like the first: from 2.15 on torch does not repeat the reason."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if name == "torch":
            raise self._error


def _import_everything() -> None:
    with environment({name: value for name, value in _WHILE_IMPORTING.items() if name not in os.environ}):
        try:
            importlib.import_module("torch")
        except Exception as error:
            sys.meta_path.insert(0, _FailsAgain(error))
            raise
        for name in _OPTIONAL:  # some releases of torch lack some of them
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        for name in _NEEDED:
            importlib.import_module(name)
    processes.restore_cache_folder()  # children find the user's variables, not torch's


def _stay_with_parents() -> None:
    """Adopt processes that a child left behind, so that the app finds and ends them; the rest end with the server. End
    with the app, and have each child end with the server, in whatever state they are."""
    if sys.platform != "linux":
        return
    prctl, server, app = ctypes.CDLL(None).prctl, os.getpid(), os.getppid()
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def end_without_app(*_: object) -> None:
        if os.getpid() == server and os.getppid() != app:
            _end_children()
            os._exit(0)  # the interpreter's own end would take torch a while

    # The pipe whose end ends a server tells a stopped one nothing, nor one that imports or whose stopped child holds it
    # open. This signal lets a stopped process go on. It comes too when only the app's thread that started us ends.
    signal.signal(signal.SIGCONT, end_without_app)
    prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
    if not lives(int(os.environ.get(APP_VARIABLE, app))):
        os._exit(0)  # it ended before

    def end_with_server() -> None:
        if os.getppid() == server:  # not a process that a child forks
            signal.signal(signal.SIGCONT, signal.SIG_DFL)
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    os.register_at_fork(after_in_child=end_with_server)
    atexit.register(lambda: _end_children() if os.getpid() == server else None)


def _end_children() -> None:
    server, give_up_at = os.getpid(), monotonic() + _ENDS_WITHIN_S
    with contextlib.suppress(OSError):
        # The children of a killed child become this process's.
        while children := Path(f"/proc/{server}/task/{server}/children").read_text().split():
            for child in children:
                os.kill(int(child), signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            if monotonic() > give_up_at:
                return
            sleep(0.001)


# A closing terminal sends a hang-up to all its processes. The app handles it; the server and its children end with it.
signal.signal(signal.SIGHUP, signal.SIG_IGN)
_redirect_output()
_stay_with_parents()
gc.disable()  # collections while importing find nothing and take a fifth of the time
try:
    _import_everything()
except Exception:
    # The server lives on: a child meets and reports the same error.
    traceback.print_exc()
DRIVER_INITIALISED = driver_initialised()  # True if the imports did it, which harms a child forked after it
# Spares every child the collection of the server's objects, and the copying of their pages. What is garbage among them
# is too little to be worth a collection before.
gc.freeze()
gc.enable()
