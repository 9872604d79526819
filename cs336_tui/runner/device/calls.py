"""Calls that may never return, made on a thread of their own and waited for a limited time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Unanswered(Exception):
    """A call has not returned in time. `waited` is False where it was not made, because an earlier one has not
    returned yet; `name` is that one's."""

    def __init__(self, name: str, *, waited: bool) -> None:
        super().__init__(f"no answer to {name}")
        self.name, self.waited = name, waited


class _Call:
    """A call and what came of it; `over` is set once it has returned or raised."""

    def __init__(self, name: str, function: Callable[[], Any]) -> None:
        self.name, self._function = name, function
        self.over = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def make(self) -> None:
        try:
            self.value = self._function()
        except BaseException as error:  # whoever waits must hear of it
            self.error = error
        self.over.set()


class Calls:
    """Makes calls one after another on a daemon thread, for which the end of the process does not wait.

    While a call does not return, every other one is refused at once, so an instance never has more than one thread
    that is stuck. Use it from one thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: SimpleQueue[_Call | None] | None = None
        self._last: _Call | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether a call has not returned yet."""
        return self._last is not None and not self._last.over.is_set()

    def call(self, name: str, function: Callable[[], T], limit_s: float) -> T:
        """What `function` returns or raises. Raises `Unanswered` when that takes longer than `limit_s` seconds."""
        if self._last is not None and self.is_stuck:
            raise Unanswered(self._last.name, waited=False)
        call = self._begin(name, function)
        if not call.over.wait(max(limit_s, 0.0)):
            raise Unanswered(name, waited=True)
        if call.error is not None:
            raise call.error
        answer: T = call.value
        return answer

    def end(self, name: str, last: Callable[[], object], limit_s: float) -> None:
        """Have `last` called and the thread end; waits `limit_s` seconds at most, not at all while a call is stuck.

        Whatever `last` raises is ignored. A later `call` starts another thread.
        """
        limit_s = 0.0 if self.is_stuck else limit_s
        call = self._begin(name, last)
        if self._waiting is not None:
            self._waiting.put(None)
        self._waiting = None
        call.over.wait(max(limit_s, 0.0))

    def _begin(self, name: str, function: Callable[[], Any]) -> _Call:
        if self._waiting is None:
            self._waiting = SimpleQueue()
            threading.Thread(target=_serve, args=(self._waiting,), name=self._name, daemon=True).start()
        self._last = _Call(name, function)
        self._waiting.put(self._last)
        return self._last


def _serve(waiting: SimpleQueue[_Call | None]) -> None:
    while (call := waiting.get()) is not None:
        call.make()
