"""Work that would hold up the screen, on a thread, and its result back on the screen's own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from textual.message_pump import MessagePump

_T = TypeVar("_T")


def in_background(pump: MessagePump, work: Callable[[], _T], then: Callable[[_T], object]) -> None:
    """Call `work` on a thread of its own and then ``then(result)`` among the messages of `pump`, if that still runs.

    `work` must not raise.
    """

    def whole() -> None:
        result = work()
        pump.call_later(then, result)

    # A daemon, so that slow disks cannot keep the app from ending.
    threading.Thread(target=whole, name="cs336-background", daemon=True).start()
