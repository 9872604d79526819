"""This process as its C libraries and the operating system know it: malloc, the CUDA driver, waits for a core.

Imports no torch.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path, PurePath
from typing import NamedTuple

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


def effective_malloc() -> str | None:
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


_TASKS = Path("/proc/self/task")


class RunQueueDelay(NamedTuple):
    """How long threads of this process waited for a core, in seconds: all added up, and the one that waited longest."""

    sum_s: float
    longest_s: float


class RunQueueMeter:
    """Counts from when it is made; reading takes tens of microseconds a thread, so not within a timed region."""

    def __init__(self) -> None:
        self._before = _run_delays()

    def read(self) -> RunQueueDelay | None:
        """How long threads waited since; None where the system does not tell. One that has ended since is not counted,
        one that was begun since is."""
        after = _run_delays()
        if not self._before or not after:
            return None
        waits_s = [max(delay - self._before.get(thread, 0), 0) / 1e9 for thread, delay in after.items()]
        return RunQueueDelay(sum(waits_s), max(waits_s))


def usable_cores() -> int | None:
    """Cores that threads of this process may run on, all threads together, as a threading library may tie each to its
    own; None where the system does not tell."""
    if sys.platform != "linux":
        return None
    cores: set[int] = set()
    with suppress(OSError):
        for task in _TASKS.iterdir():
            with suppress(OSError, ValueError):
                cores |= os.sched_getaffinity(int(task.name))
    return len(cores) or None


def _run_delays() -> dict[str, int]:
    """Nanoseconds on a run queue by thread id: the second field of ``schedstat`` (Linux, sched-stats.rst)."""
    found: dict[str, int] = {}
    with suppress(OSError):
        for task in _TASKS.iterdir():
            # A thread may end before we come to it.
            with suppress(OSError, ValueError):
                ran, waited, _ = map(int, (task / "schedstat").read_text().split())
                if ran:  # a kernel that does not count gives zeros
                    found[task.name] = waited
    return found


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
