"""Settings of all tests."""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from tests import quick_compiler

try:
    from hypothesis import settings
except ModuleNotFoundError:  # the tests of a GPU do without
    settings = None

# Where Python may not keep bytecode, each worker and each process that tests start compiles the same files again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Predictions are kept in the user's cache folder, recent models in the state folder, settings in the config
# folder; those of tests are not the user's.
_CACHE = tempfile.mkdtemp(prefix="cs336-tests-")
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = os.environ["XDG_CONFIG_HOME"] = _CACHE

# A shared machine may pause for longer than any deadline; slowness is not what these tests are about.
# The same examples each time, so that a change is judged by what it changes; `HYPOTHESIS_EXPLORE=1` tries new ones.
if settings is not None:
    settings.register_profile("here", deadline=None, derandomize="HYPOTHESIS_EXPLORE" not in os.environ)
    settings.load_profile("here")

# torch.compile from empty caches takes a third as long with a quick compiler, whose header the workers of a run share,
# without headers that each cache precompiles for itself, and without trying vector instructions.
os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
if "quick-g++" not in os.environ.get("CXX", "") and (quick := quick_compiler.make(Path(_CACHE))):
    os.environ["CXX"] = quick

# Under nohup a hang-up is ignored, in the background Ctrl+C; commands that tests start and signal would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which need not be installed
def pytest_xdist_auto_num_workers() -> int:
    """Two workers more than cores (``-n auto``): tests of whole processes wait for most of their time."""
    return (os.cpu_count() or 1) + 2


LONG = (
    "tests/cluster/",
    "tests/referee/test_corpus.py",
    "tests/runner/test_kills.py",
    "tests/runner/test_nodes.py",
    "tests/runner/test_fork_server.py",
    "tests/runner/test_ranks.py",
    "tests/runner/test_orphans.py",
    "tests/runner/test_compiling.py",
    "tests/runner/test_launcher.py",
    "tests/cli/test_lost_outputs.py",
    "tests/cli/test_whole_runs.py",
    "tests/cli/test_selftest.py",
    "tests/endtoend/",
    "tests/worker/measure/test_compiling.py",
    "tests/worker/measure/test_reports_of_variants.py",
)
"""Tests that take seconds each, for processes and compilers; those that wait most of the time first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests come first: one worker waits while the others compute, and none is alone with them at the end."""

    def place(item: pytest.Item) -> int:
        return next((place for place, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG))

    items.sort(key=place)


gc.disable()  # while tests are imported: collections then find nothing and take a fifth of the time


def pytest_collection_finish() -> None:
    """Exempt what is loaded now from garbage collections for good: torch and 5,000 tests make each take 0.2 s, and
    every cell that is measured in this process asks for one."""
    gc.collect()
    gc.freeze()
    gc.unfreeze = lambda: None
    gc.enable()
