"""What a cell changes around itself, for as long as it runs: torch's global settings and Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from cs336_tui.measure.settings import read_settings, restore


@contextmanager
def restored_settings() -> Iterator[None]:
    """Put back torch's settings for the whole process (`cs336_tui.measure.settings`), threads and CUDA device too."""
    before = read_settings()
    try:
        yield
    finally:
        restore(before)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect once, then keep Python's collector away from everything: one collection can outlast a step."""
    enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()
