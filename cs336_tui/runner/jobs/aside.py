"""Calls that may take long, one after the other on a thread of their own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Aside:
    """A thread that makes calls in order. It does not hold up the end of the program."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, what: Callable[[], T]) -> Future[T]:
        """Make the call when those before it are done."""
        future: Future[T] = Future()
        self._calls.put((future, what))
        return future

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, what = call
            try:
                future.set_result(what())
            except BaseException as error:
                future.set_exception(error)

    def close(self, within_s: float) -> None:
        """End the thread after the calls that wait; a call that takes longer goes on by itself."""
        self._calls.put(None)
        self._thread.join(within_s)
