"""This process, asked of C libraries and the system: malloc, CUDA driver, run-queue delay. Imports no torch."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path, PurePath
from typing import NamedTuple

# From glibc's malloc.h; the last is the largest threshold that it accepts.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_INT_MAX = 2**31 - 1
_MMAP_THRESHOLD_MAX = 32 * 2**20

_VARIABLES = (  # Environment variables of glibc's malloc (mallopt(3)), of jemalloc, and of torch's use of them
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_CONF",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
    "THP_MEM_ALLOC_ENABLE",
)

_keeps_freed_memory = False  # True once `keep_freed_memory` has worked: malloc itself cannot be asked


def keep_freed_memory() -> None:
    """Make malloc keep memory that a step frees, for the next step. Does nothing with other C libraries. glibc may else
    return it to the system, to be faulted in again page by page: thousands of page faults a step."""
    global _keeps_freed_memory
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # A malloc that replaces the C library's ignores its mallopt.
    if mallopt is not None and _library_of("malloc") == _library_of("mallopt"):
        settings = ((_M_TRIM_THRESHOLD, _INT_MAX), (_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_MAX))
        answers = [mallopt(*setting) for setting in settings]
        _keeps_freed_memory = answers == [1, 1]


def effective_malloc() -> str | None:
    """The malloc of this process and its settings, in words; None if unknown, as of torch's own on Linux on Arm."""
    library = _library_of("malloc")
    if library is None or (sys.platform, platform.machine()) == ("linux", "aarch64"):
        return None
    version = " ".join(platform.libc_ver()).strip() if library.startswith("libc.") else ""
    kept = ("keeps freed memory",) if _keeps_freed_memory else ()
    return ", ".join([f"malloc of {version or library}", *(settings_of(_VARIABLES, kept))])


def settings_of(variables: tuple[str, ...], others: tuple[str, ...] = ()) -> tuple[str, ...]:
    """`others` and these environment variables if set, as ``NAME=value``; ``default settings`` if there are none."""
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
    """File name of the shared library that provides this function."""
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
    """Seconds for which threads of this process waited for a core: their sum, and the longest wait of one."""

    sum_s: float
    longest_s: float


class RunQueueMeter:
    """Measures the delay from its creation on. Reading takes tens of microseconds a thread: not in a timed region."""

    def __init__(self) -> None:
        self._before = _run_delays()

    def read(self) -> RunQueueDelay | None:
        """The delay so far; None if the system does not count it. Threads that have ended since are left out."""
        after = _run_delays()
        if not self._before or not after:
            return None
        waits_s = [max(delay - self._before.get(thread, 0), 0) / 1e9 for thread, delay in after.items()]
        return RunQueueDelay(sum(waits_s), max(waits_s))


def usable_cores() -> int | None:
    """Number of cores that the threads of this process together may run on; None if unknown."""
    if sys.platform != "linux":
        return None
    cores: set[int] = set()
    with suppress(OSError):
        for task in _TASKS.iterdir():
            with suppress(OSError, ValueError):
                cores |= os.sched_getaffinity(int(task.name))
    return len(cores) or None


def _run_delays() -> dict[str, int]:
    """Nanoseconds on a run queue by thread id."""
    return {thread: waited for thread, (_, waited) in _schedstats().items()}


def threads_ran_ns() -> dict[str, int]:
    """Nanoseconds on a processor by thread id, of threads that have not ended; empty where the system does not tell."""
    return {thread: ran for thread, (ran, _) in _schedstats().items()}


def _schedstats() -> dict[str, tuple[int, int]]:
    """Of each thread the first two fields of ``schedstat`` (Linux, sched-stats.rst)."""
    found: dict[str, tuple[int, int]] = {}
    with suppress(OSError):
        for task in _TASKS.iterdir():
            with suppress(OSError, ValueError):
                ran, waited, _ = map(int, (task / "schedstat").read_text().split())
                if ran:  # zero in a kernel that does not count
                    found[task.name] = ran, waited
    return found


_INITIALISED = (0, 100)
"""``CUDA_SUCCESS`` and ``CUDA_ERROR_NO_DEVICE``: answers of an initialised driver. An uninitialised one answers 3,
``CUDA_ERROR_NOT_INITIALIZED``; a stub or a broken driver answers something else."""


def driver_initialised(library: str = "libcuda.so.1") -> bool:
    """True if this process has initialised the CUDA driver; a child forked after that cannot use CUDA, and says "not
    initialised" too, so ask before. ``cuDeviceGetCount`` initialises nothing itself. False without a driver."""
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return False
    count = ctypes.c_int()
    return bool(driver.cuDeviceGetCount(ctypes.byref(count)) in _INITIALISED)
