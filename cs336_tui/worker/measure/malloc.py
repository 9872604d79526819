"""The C library's malloc, which serves tensors on the CPU: having it keep what is freed, and saying how it is set."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import PurePath

# Of glibc's malloc.h; the last is the largest that it accepts.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_INT_MAX = 2**31 - 1
_MMAP_THRESHOLD_MAX = 32 * 2**20

_VARIABLES = (
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_CONF",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
    "THP_MEM_ALLOC_ENABLE",
)
"""Environment variables that set glibc's malloc (mallopt(3)), jemalloc's, or torch's use of it."""

_keeps_freed_memory = False
"""Whether this process had it so: malloc itself cannot be asked."""


def keep_freed_memory() -> None:
    """Have malloc keep what a step frees, for the next step.

    glibc may otherwise give it back, to be faulted in again page by page, differently in each process: thousands of
    page faults a step were counted. Does nothing with other C libraries.
    """
    global _keeps_freed_memory
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # A malloc that was loaded in place of the C library's does not heed its mallopt.
    if mallopt is not None and _library_of("malloc") == _library_of("mallopt"):
        settings = ((_M_TRIM_THRESHOLD, _INT_MAX), (_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_MAX))
        answers = [mallopt(*setting) for setting in settings]
        _keeps_freed_memory = answers == [1, 1]


def malloc_in_force() -> str | None:
    """Whose malloc this process uses and how it is set, in words; None where that cannot be known.

    That of torch for Linux on Arm: from 2.6 on it may be an allocator of torch's own, mimalloc, which does not show.
    """
    library = _library_of("malloc")
    if library is None or (sys.platform, platform.machine()) == ("linux", "aarch64"):
        return None
    version = " ".join(platform.libc_ver()).strip() if library.startswith("libc.") else ""
    kept = ("keeps freed memory",) if _keeps_freed_memory else ()
    return ", ".join([f"malloc of {version or library}", *(settings_of(_VARIABLES, kept))])


def settings_of(variables: tuple[str, ...], others: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Of these environment variables those that are set, as ``NAME=value``, after `others`; ``default settings``
    where there is nothing to say."""
    found = tuple(f"{name}={os.environ[name]}" for name in variables if os.environ.get(name))
    return (*others, *found) or ("default settings",)


class _DlInfo(ctypes.Structure):
    """``Dl_info`` of dlfcn.h."""

    _fields_ = (
        ("dli_fname", ctypes.c_char_p),
        ("dli_fbase", ctypes.c_void_p),
        ("dli_sname", ctypes.c_char_p),
        ("dli_saddr", ctypes.c_void_p),
    )


def _library_of(symbol: str) -> str | None:
    """File name of the shared library whose function of this name the program uses."""
    try:
        program = ctypes.CDLL(None)
        address, dladdr = ctypes.cast(program[symbol], ctypes.c_void_p), program["dladdr"]
    except (OSError, AttributeError, TypeError):
        return None
    info = _DlInfo()
    found = dladdr(address, ctypes.byref(info)) and info.dli_fname
    return PurePath(os.fsdecode(found)).name if found else None
