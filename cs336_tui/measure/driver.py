"""Asking the CUDA driver a question without waking it. Imports no torch."""

from __future__ import annotations

import ctypes
import sys

_NOT_INITIALISED = 3
"""``CUDA_ERROR_NOT_INITIALIZED`` of the driver API."""


def driver_initialised(library: str = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1") -> bool:
    """Whether something in this process (or the one it was forked from) has initialised the CUDA driver.

    A forked child cannot use CUDA after that. ``cuDeviceGetCount`` answers "not initialised" while all is well, and
    initialises nothing itself. False where there is no driver.
    """
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return False
    count = ctypes.c_int()
    return bool(driver.cuDeviceGetCount(ctypes.byref(count)) != _NOT_INITIALISED)
