"""A process that may map little more memory than it has, as on a machine that is nearly full."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def at_most(more_bytes: int) -> Iterator[None]:
    """Let this process map `more_bytes` more than it has, as a machine with little memory left would."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + more_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's address-space limit")
