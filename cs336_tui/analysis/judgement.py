"""A judgement of a cell: the verdicts that were looked for, each with its evidence. No numpy is loaded to read one."""

from __future__ import annotations

from typing import Literal

import msgspec

from cs336_tui.stats.intervals import MeanInterval

VerdictName = Literal[
    "steady", "still-warming", "drifting", "two-levels", "periodic", "quantised", "outliers", "too-few-steps",
    "throttled", "contended", "launch-bound", "allocator-retry", "slowed-by-settings",
    "work-outside-steps", "impossible", "less-work", "differs", "remembers-inputs", "other-precision", "more-work",
    "checked", "unchecked", "differs-elsewhere", "autotuned-differently",
]  # fmt: skip
"""Names of verdicts. Those of `DESCRIBING` describe it; all others are reasons to doubt it."""

SHAPES: tuple[VerdictName, ...] = (
    "still-warming", "drifting", "two-levels", "periodic", "quantised", "outliers", "too-few-steps",
)  # fmt: skip
"""Those of the shape of the steps, which may have one of the other doubts as their cause."""

DESCRIBING: tuple[VerdictName, ...] = ("steady", "launch-bound", "more-work", "checked", "unchecked")


class Finding(msgspec.Struct, frozen=True):
    """True if it is so, None where that cannot be observed; `evidence`, one clause with its figures, then says why.
    `advice` says what to do about it."""

    holds: bool | None
    evidence: str
    advice: str = ""
    unknown_because: str = ""
    """In a few words, where it cannot be observed for another reason than the device."""


class Check(Finding, frozen=True, kw_only=True):
    """One verdict that was looked for."""

    name: VerdictName

    @property
    def describes(self) -> bool:
        """True if it is no reason to doubt the number."""
        return self.name in DESCRIBING

    @property
    def explained(self) -> str:
        """The evidence, and what to do in brackets."""
        return f"{self.evidence} ({self.advice})" if self.advice else self.evidence


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """All that was looked for in one cell."""

    checks: tuple[Check, ...]
    """In the order of `VerdictName`; of the referee's all, if the cell was checked."""
    notes: tuple[str, ...]
    """Remarks that raise no doubt, such as a power cap, or that spikes were limited for the analysis alone."""
    warmup_advice: str
    """On the number of warm-up steps, in a few words."""
    interval: MeanInterval | None
    """Of the mean step time; None below 10 steps."""
    limited: int = 0
    """The number of spikes that were limited for the analysis alone; if there are any, one of `notes` says so."""

    @property
    def holding(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.holds)

    @property
    def names(self) -> tuple[VerdictName, ...]:
        """The verdicts that hold."""
        return tuple(check.name for check in self.holding)

    @property
    def doubts(self) -> tuple[Check, ...]:
        """The verdicts that hold and are reasons to doubt the number, causes before the shapes that come of them."""
        doubts = (check for check in self.holding if not check.describes)
        return tuple(sorted(doubts, key=lambda check: check.name in SHAPES))

    @property
    def not_observable(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.holds is None)

    @property
    def is_doubted(self) -> bool:
        """True if there is a reason to doubt the number."""
        return bool(self.doubts)

    @property
    def label(self) -> str:
        """The verdicts that hold, for a column, doubts before what describes: ``contended, still-warming``."""
        return ", ".join(check.name for check in self.doubts_first)

    @property
    def sentence(self) -> str:
        """The verdicts that hold, each with its evidence and advice, doubts first; beside one, no ``steady``."""
        told = [check for check in self.doubts_first if not (self.is_doubted and check.name == "steady")]
        return "; ".join(f"{check.name}: {check.explained}" for check in told) + "."

    @property
    def doubts_first(self) -> tuple[Check, ...]:
        """The verdicts that hold, doubts before what describes."""
        return (*self.doubts, *(check for check in self.holding if check.describes))


def limited_note(spikes: int, cells: str = "") -> str:
    """That spikes were limited; of several `cells`, named so, in which there are this many at most."""
    if cells:
        what = "1 spike per cell was" if spikes == 1 else f"up to {spikes} spikes per cell were"
        return f"{what} clipped for this analysis only, in {cells}; mean and std include them"
    what, them = ("1 spike was", "it") if spikes == 1 else (f"{spikes} spikes were", "them")
    return f"{what} clipped for this analysis only; mean and std include {them}"
