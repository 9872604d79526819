"""Gaps and overlap on a device's line of time, from the kernels, copies and fills that it ran."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from cs336_tui.events.kernel_kinds import COMMUNICATION
from cs336_tui.events.kernel_report import Gap, Gaps, Overlap
from cs336_tui.stats.timelines import AnyTimes as Times
from cs336_tui.stats.timelines import FoundGaps, busy, overlap

MOST_GAPS = 10
_COMMUNICATION = re.compile(COMMUNICATION, re.IGNORECASE)


def is_communication(name: str) -> bool:
    """True for a kernel that moves data between GPUs."""
    return _COMMUNICATION.search(name) is not None


def gaps_of(names: Sequence[str], begins: Times, ends: Times) -> Gaps:
    """The gaps between these, each with its name, times in ns."""
    found = FoundGaps(begins, ends)
    largest = np.argsort(-found.lengths, kind="stable")[:MOST_GAPS]
    return Gaps(
        count=len(found.lengths),
        total_ns=int(found.lengths.sum()),
        median_ns=float(np.median(found.lengths)) if len(found.lengths) else 0.0,
        largest=tuple(
            Gap(int(found.lengths[i]), names[int(found.after[i])], names[int(found.before[i])]) for i in largest
        ),
    )


def overlap_of(names: Sequence[str], begins: Times, ends: Times) -> Overlap | None:
    """Communication and what of its time other kernels ran, from kernels alone; None without communication."""
    told = {name: is_communication(name) for name in set(names)}
    if not any(told.values()):
        return None
    moves = np.fromiter((told[name] for name in names), bool, len(names))
    begin, end = np.asarray(begins, np.int64), np.asarray(ends, np.int64)
    own = begin[moves], end[moves]
    return Overlap(communication_ns=busy(*own), overlapped_ns=overlap(*own, begin[~moves], end[~moves]))
