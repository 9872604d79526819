"""What the fork server imports once, so that every child starts with torch loaded. Importing this module does it.

The server keeps no terminal: what it prints goes to the file named by ``CS336_TUI_SERVER_OUTPUT``, or nowhere. It runs
no torch operation, whose threads would not survive the fork, and asks nothing of CUDA, which could not be used in a
child after that.
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
from collections.abc import Iterator
from pathlib import Path

from cs336_tui.config import environment_variables
from cs336_tui.worker.measure.process import driver_initialised

OUTPUT_VARIABLE = "CS336_TUI_SERVER_OUTPUT"
_PR_SET_CHILD_SUBREAPER = 36

_OPTIONAL = (
    "numpy",
    # torch imports these at the first use of an optimizer; in a child that would make a first step look slow.
    "torch._dynamo",
    "torch.profiler._cupti_monitor",
    # What predictions and reports need.
    "torch._subclasses.fake_tensor",
    "cs336_tui.worker.estimate.predict",
    "cs336_tui.worker.measure.report",
)
_NEEDED = (
    "cs336_tui.worker.measure.cell",
    "cs336_tui.worker.measure.process",
    "cs336_tui.worker.measure.probe",
)

_WHILE_IMPORTING = {
    # numpy's OpenBLAS starts its threads on import, unless told that one is enough.
    "OPENBLAS_NUM_THREADS": "1",
    # Should an import ask whether there is a GPU, torch then asks NVML and leaves the CUDA driver asleep.
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


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables that are not set yet, and unset them again."""
    missing = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]


class _FailsAgain:
    """Has every later import of torch fail as the first did: from 2.15 on torch says of the second one only that it is
    the second."""

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
    with _environment(_WHILE_IMPORTING):
        _import_torch()
        for name in _OPTIONAL:  # some releases of torch lack some of them, and none is worth losing the others
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        for name in _NEEDED:
            importlib.import_module(name)
    environment_variables.restore_cache_folder()  # a child is to find what the user set, and nothing that torch set


def _take_in_orphans() -> None:
    """Have what a child started and left become this process's, where the app finds and ends it.

    What is still there when the server ends, as after the app was killed, ends with it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        atexit.register(_end_children, os.getpid())


def _end_children(server: int) -> None:
    if os.getpid() != server:  # a copy of the server, or of a copy
        return
    with contextlib.suppress(OSError):
        # One that is ended leaves its own to this process; what cannot be waited for is not there.
        while children := Path(f"/proc/{server}/task/{server}/children").read_text().split():
            for child in children:
                os.kill(int(child), signal.SIGKILL)
            os.waitpid(-1, 0)


# A terminal that closes sends a hang-up to all its processes at once. It is for the app, which ends what runs in an
# orderly way; the server and its children, which inherit this, end with the app.
signal.signal(signal.SIGHUP, signal.SIG_IGN)
_redirect_output()
_take_in_orphans()
try:
    _import_everything()
except Exception:
    # The server lives on: a child meets the same error and reports it as its own.
    traceback.print_exc()
DRIVER_INITIALISED = driver_initialised()
"""Whether the imports woke the CUDA driver. To be asked here: a child forked after that is told that it sleeps."""
# Spare every child the collection of what the server made, and the copying of pages that goes with it.
gc.collect()
gc.freeze()
