"""Each test needs a GPU and begins with an empty allocator; a worker of pytest has simulated GPUs of its own."""

import atexit
import gc
import os
import shutil
import tempfile

import pytest
import torch

if "SIMGPU_DEVICES" in os.environ and "PYTEST_XDIST_WORKER" in os.environ:
    _FOLDER = tempfile.mkdtemp(prefix="simgpu-")
    atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
    os.environ["SIMGPU_BOARD"] = f"{_FOLDER}/board"


@pytest.fixture(autouse=True)
def _empty_allocator() -> None:
    """What an earlier test left in torch's cache is not split as new memory is, which changes what is counted."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()
