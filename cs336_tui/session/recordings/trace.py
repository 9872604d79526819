"""Kernels, launching calls and host spans of one process, in columns; the same for every reader of a trace.

`Spans` finds the span that encloses a moment, of all moments at once.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

from cs336_tui.session.recordings.recording import DeviceFacts, TooLarge

MOST_ROWS = 60_000_000
MOST_TEXT = 1 << 28
"""Characters of all names together."""
MOST_THREADS = 4096
KERNEL, COPY, FILL = 0, 1, 2
"""Kinds of a device's activities."""
OPERATOR, USER_RANGE = 0, 1
"""Kinds of host spans; an operator may be an autograd node."""


class Trace:
    """The activity of one process (rank). Times are ns since any moment, the same for all; names are places in `names`;
    threads, devices and streams are any numbers; a correlation below 0 is unknown."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._ids: dict[str, int] = {}
        self._text = 0
        self.threads: dict[object, int] = {}
        """Numbers of threads by what the file calls them."""

        self.kernel_name, self.kernel_kind, self.kernel_device = array("i"), array("b"), array("i")
        self.kernel_stream, self.kernel_correlation = array("q"), array("q")
        self.kernel_begin, self.kernel_duration = array("q"), array("q")

        self.call_correlation, self.call_begin, self.call_thread = array("q"), array("q"), array("i")
        """Calls of CUDA's runtime or driver that launch something."""

        self.span_name, self.span_kind, self.span_thread = array("i"), array("b"), array("i")
        self.span_begin, self.span_end = array("q"), array("q")
        self.node_span, self.node_sequence, self.node_forward = array("q"), array("q"), array("i")
        """Spans with a sequence number of autograd, and for its nodes the number of the forward thread, else -1."""

        self.devices: dict[int, DeviceFacts] = {}
        self.torch = ""
        self.host = ""
        self.rank: int | None = None
        self.unread = 0
        """Number of events that could not be read."""

    @property
    def rows(self) -> int:
        return len(self.kernel_name) + len(self.call_begin) + len(self.span_name)

    def check_room(self) -> None:
        """Raises `TooLarge`."""
        if self.rows > MOST_ROWS:
            raise TooLarge("events")

    def name_id(self, name: str) -> int:
        """The place of a name. Raises `TooLarge`."""
        found = self._ids.get(name)
        if found is None:
            self._text += len(name)
            if self._text > MOST_TEXT:
                raise TooLarge("names")
            found = self._ids[name] = len(self.names)
            self.names.append(name)
        return found

    def thread_id(self, thread: object) -> int:
        """The number of a thread, by anything hashable that the file calls it. Raises `TooLarge`."""
        found = self.threads.setdefault(thread, len(self.threads))
        if found > MOST_THREADS:
            raise TooLarge("threads")
        return found

    def add_kernel(
        self, name: str, begin_ns: int, duration_ns: int, *, device: int, stream: int, correlation: int, kind: int
    ) -> None:
        """Add a kernel, copy or fill."""
        self.kernel_name.append(self.name_id(name))
        self.kernel_kind.append(kind)
        self.kernel_device.append(device)
        self.kernel_stream.append(stream)
        self.kernel_correlation.append(correlation)
        self.kernel_begin.append(begin_ns)
        self.kernel_duration.append(duration_ns)

    def add_call(self, correlation: int, thread: int, begin_ns: int) -> None:
        """Add a call that launches something."""
        self.call_correlation.append(correlation)
        self.call_thread.append(thread)
        self.call_begin.append(begin_ns)

    def add_span(self, name: str, thread: int, begin_ns: int, end_ns: int, kind: int) -> None:
        """Add an operator or a user's range of the host."""
        self.span_name.append(self.name_id(name))
        self.span_kind.append(kind)
        self.span_thread.append(thread)
        self.span_begin.append(begin_ns)
        self.span_end.append(end_ns)

    def add_node(self, sequence: int, forward_thread: int) -> None:
        """Give the last span a sequence number of autograd."""
        self.node_span.append(len(self.span_name) - 1)
        self.node_sequence.append(sequence)
        self.node_forward.append(forward_thread)


Ints = npt.NDArray[np.int64]


class Spans:
    """Spans of one thread. `place` are their places in the columns that they came from, in the order of begins."""

    def __init__(self, begins: npt.NDArray[Any], ends: npt.NDArray[Any], place: npt.NDArray[Any]) -> None:
        if not _in_order(begins, ends):
            order = np.lexsort((-ends, begins))
            begins, ends, place = begins[order], ends[order], place[order]
            del order
        self.begins: Ints = begins.astype(np.int64, copy=False)
        self.place = place
        self._tops: list[Ints] = [ends.astype(np.int64, copy=False)]
        """The latest ends of blocks of 1, 2, 4, ... spans."""
        while len(self._tops[-1]) > 1:
            tops = self._tops[-1]
            halved = np.maximum(tops[0 : len(tops) // 2 * 2 : 2], tops[1::2])
            self._tops.append(np.append(halved, tops[-1]) if len(tops) % 2 else halved)

    def innermost(self, moments: Ints) -> Ints:
        """Of each moment the last span that has begun and has not ended, else -1."""
        return self._last_open(np.searchsorted(self.begins, moments, side="right"), moments)

    def parents(self) -> Ints:
        """Of each span the one that encloses it, else -1."""
        return self._last_open(np.arange(len(self.begins)), self.begins)

    def _last_open(self, until: Ints, moments: Ints) -> Ints:
        """Of each moment the last span before the place `until` that ends after it, else -1: up the blocks to the last
        that holds one, then down in it."""
        block = np.full(len(moments), -1, np.int64)
        level = np.zeros(len(moments), np.int8)
        left = np.flatnonzero(until > 0)
        at = until[left]
        for height, tops in enumerate(self._tops):
            odd = np.flatnonzero(at & 1)
            hit = odd[tops[at[odd] - 1] > moments[left[odd]]]
            block[left[hit]] = at[hit] - 1
            level[left[hit]] = height
            keep = np.ones(len(left), bool)
            keep[hit] = False
            left, at = left[keep], at[keep] >> 1
            keep_on = at > 0
            left, at = left[keep_on], at[keep_on]
            if not len(left):
                break
        for height in range(len(self._tops) - 1, 0, -1):
            tops = self._tops[height - 1]
            chosen = np.flatnonzero((level == height) & (block >= 0))
            right = block[chosen] * 2 + 1
            there = right < len(tops)
            there[there] = tops[right[there]] > moments[chosen[there]]
            block[chosen] = np.where(there, right, right - 1)
            level[chosen] = height - 1
        return block


def _in_order(begins: npt.NDArray[Any], ends: npt.NDArray[Any]) -> bool:
    """True if no span begins before the one ahead of it, nor encloses it."""
    later, alike = begins[1:] > begins[:-1], begins[1:] == begins[:-1]
    return bool(np.all(later | (alike & (ends[1:] <= ends[:-1]))))
