"""Which span encloses a moment: spans of one thread, sorted by begin, the longer first; all moments at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

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
