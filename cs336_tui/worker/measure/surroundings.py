"""What a cell changes around itself, for as long as it runs: torch's global settings and Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from cs336_tui.worker.measure.settings import read_settings, restore


@contextmanager
def restored_settings() -> Iterator[None]:
    """Put back torch's settings for the whole process (`worker.measure.settings`), threads and CUDA device too."""
    before = read_settings()
    try:
        yield
    finally:
        restore(before)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect once, then keep Python's collector away from everything: one collection can outlast a step. What a step
    leaves is collected by `collect_what_steps_leave`."""
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


def set_aside_what_is_there() -> None:
    """Before the first step: collect, and keep later collections away from all that was built."""
    gc.collect()
    gc.freeze()


def collect_what_steps_leave() -> None:
    """Between two steps, never within a timed region: free what only reference cycles keep alive, as a function that
    calls itself inside a model does, with the activations that it refers to. A training loop's collector would, too.

    Takes some microseconds where there is little. Not a full collection, which empties Python's free lists as well, so
    that the next step would have to fill them.
    """
    gc.collect(1)
