"""Imported once by the fork server, so that every child starts with torch loaded. The import does all the work.

The server's output goes to the file named by ``CS336_TUI_SERVER_OUTPUT``, or nowhere. It runs no torch operation, as
threads do not survive a fork, and asks nothing of CUDA, which a child could not use after that.
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

from cs336_tui.config import environment_variables
from cs336_tui.config.environment_variables import environment
from cs336_tui.worker.measure.process import driver_initialised

OUTPUT_VARIABLE = "CS336_TUI_SERVER_OUTPUT"
_PR_SET_CHILD_SUBREAPER = 36

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


def _import_torch() -> None:
    try:
        importlib.import_module("torch")
    except Exception as error:
        sys.meta_path.insert(0, _FailsAgain(error))
        raise


def _import_everything() -> None:
    with environment({name: value for name, value in _WHILE_IMPORTING.items() if name not in os.environ}):
        _import_torch()
        for name in _OPTIONAL:  # some releases of torch lack some of them
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        for name in _NEEDED:
            importlib.import_module(name)
    environment_variables.restore_cache_folder()  # children find the user's variables, not torch's


def _take_in_orphans() -> None:
    """Adopt processes that a child left behind, so that the app finds and ends them; the rest end with the server."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        atexit.register(_end_children, os.getpid())


def _end_children(server: int) -> None:
    if os.getpid() != server:  # a fork of the server
        return
    with contextlib.suppress(OSError):
        # The children of a killed child become this process's.
        while children := Path(f"/proc/{server}/task/{server}/children").read_text().split():
            for child in children:
                os.kill(int(child), signal.SIGKILL)
            os.waitpid(-1, 0)


# A closing terminal sends a hang-up to all its processes. The app handles it; the server and its children end with it.
signal.signal(signal.SIGHUP, signal.SIG_IGN)
_redirect_output()
_take_in_orphans()
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
