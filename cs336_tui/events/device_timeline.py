"""Spans of time on one line: the time with any of them, the gaps between them, the overlap of two kinds; and those of
the kernels, copies and fills that a device ran. Integers of one unit; spans may overlap and come in any order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from cs336_tui.events.kernel_report import COMMUNICATION, Gap, Gaps, Overlap

MOST_GAPS = 10
_COMMUNICATION = re.compile(COMMUNICATION, re.IGNORECASE)
Times = npt.NDArray[np.int64]
AnyTimes = Sequence[int] | npt.NDArray[Any]


def _sorted(begins: AnyTimes, ends: AnyTimes) -> tuple[Times, Times, Times]:
    """Begins in order, for each the latest end until then, and the places of the spans."""
    begin, end = np.asarray(begins, np.int64), np.asarray(ends, np.int64)
    order = np.argsort(begin, kind="stable")
    return begin[order], np.maximum.accumulate(end[order]) if len(order) else end, order


def busy(begins: AnyTimes, ends: AnyTimes) -> int:
    """The time in which at least one of the spans runs."""
    begin, reached, _ = _sorted(begins, ends)
    idle = np.maximum(begin[1:] - reached[:-1], 0).sum()
    return int(reached[-1] - begin[0] - idle) if len(begin) else 0


def shares_over_time(begins: AnyTimes, ends: AnyTimes, parts: int, *, first: int, last: int) -> tuple[float, ...]:
    """The share of each of equal parts of the time from `first` to `last` in which at least one of the spans runs."""
    begin, end = np.asarray(begins, np.int64), np.asarray(ends, np.int64)
    edges = np.linspace(first, last, parts + 1).astype(np.int64)
    found = []
    for low, high in pairwise(edges):
        inside = (begin < high) & (end > low)
        found.append(busy(np.clip(begin[inside], low, high), np.clip(end[inside], low, high)) / max(int(high - low), 1))
    return tuple(found)


def extent(begins: AnyTimes, ends: AnyTimes) -> int:
    """From the first begin to the last end; 0 without a span."""
    return int(np.max(ends) - np.min(begins)) if len(begins) else 0


def overlap(begins: AnyTimes, ends: AnyTimes, other_begins: AnyTimes, other_ends: AnyTimes) -> int:
    """The time in which spans of both kinds run."""
    both = busy(np.concatenate([begins, other_begins]), np.concatenate([ends, other_ends]))
    return busy(begins, ends) + busy(other_begins, other_ends) - both


def is_communication(name: str) -> bool:
    """True for a kernel that moves data between GPUs."""
    return _COMMUNICATION.search(name) is not None


def gaps_of(names: Sequence[str], begins: AnyTimes, ends: AnyTimes) -> Gaps:
    """The gaps between these, times in ns, each with the names of what ends last before it and begins first after."""
    begin, reached, order = _sorted(begins, ends)
    between = begin[1:] - reached[:-1]
    places = np.flatnonzero(between > 0)
    lengths = between[places]
    # At each place in the order of begins the place of the span that reaches furthest until then.
    furthest = np.where(np.asarray(ends, np.int64)[order] == reached, np.arange(len(order)), 0)
    after, before = order[np.maximum.accumulate(furthest)[places]], order[places + 1]
    largest = np.argsort(-lengths, kind="stable")[:MOST_GAPS]
    return Gaps(
        count=len(lengths),
        total_ns=int(lengths.sum()),
        median_ns=float(np.median(lengths)) if len(lengths) else 0.0,
        largest=tuple(Gap(int(lengths[i]), names[int(after[i])], names[int(before[i])]) for i in largest),
    )


def overlap_of(names: Sequence[str], begins: AnyTimes, ends: AnyTimes) -> Overlap | None:
    """Communication and what of its time other kernels ran, from kernels alone; None without communication."""
    told = {name: is_communication(name) for name in set(names)}
    if not any(told.values()):
        return None
    moves = np.fromiter((told[name] for name in names), bool, len(names))
    begin, end = np.asarray(begins, np.int64), np.asarray(ends, np.int64)
    own = begin[moves], end[moves]
    return Overlap(communication_ns=busy(*own), overlapped_ns=overlap(*own, begin[~moves], end[~moves]))
