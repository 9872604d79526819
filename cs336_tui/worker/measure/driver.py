"""Asking the CUDA driver a question without waking it. Imports no torch."""

from __future__ import annotations

import ctypes
import sys

_AWAKE = (0, 100)
"""``CUDA_SUCCESS`` and ``CUDA_ERROR_NO_DEVICE`` of the driver API. A driver that sleeps answers 3,
``CUDA_ERROR_NOT_INITIALIZED``; a stub or a broken one answers other things and cannot be awake."""


def driver_initialised(library: str = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1") -> bool:
    """Whether something in this process has initialised the CUDA driver; a child forked after that cannot use CUDA.

    ``cuDeviceGetCount`` answers "not initialised" while all is well, and initialises nothing itself. It says the same
    in such a child, so this must be asked before the fork. False where there is no driver that works.
    """
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return False
    count = ctypes.c_int()
    return bool(driver.cuDeviceGetCount(ctypes.byref(count)) in _AWAKE)
