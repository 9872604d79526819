"""Simulated GPUs of one worker of pytest are not those of another: each has a board of its own."""

import atexit
import os
import shutil
import tempfile

if "SIMGPU_DEVICES" in os.environ and "PYTEST_XDIST_WORKER" in os.environ:
    _FOLDER = tempfile.mkdtemp(prefix="simgpu-")
    atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
    os.environ["SIMGPU_BOARD"] = f"{_FOLDER}/board"
