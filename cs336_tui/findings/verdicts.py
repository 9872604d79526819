"""Whether a cell's numbers can be trusted: one judgement a cell, several verdicts in it, each with its evidence."""

from __future__ import annotations

from typing import Literal

import msgspec

from cs336_tui.intervals import MeanInterval
from cs336_tui.session.state import CellState

VerdictName = Literal[
    "steady",
    "still-warming",
    "drifting",
    "two-levels",
    "outliers",
    "too-few-steps",
    "throttled",
    "contended",
    "launch-bound",
    "allocator-retry",
]
"""What can be said of a number. `steady` and `launch-bound` describe it; all others are reasons to doubt it."""

DESCRIBING: tuple[VerdictName, ...] = ("steady", "launch-bound")


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One verdict that was looked for. `holds` is None where it cannot be observed; `evidence` then says why.

    `evidence` is one clause with its figures, `advice` what to do about it, both in plain words; advice is there where
    it holds.
    """

    name: VerdictName
    holds: bool | None
    evidence: str
    advice: str = ""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """All that was looked for in one cell."""

    checks: tuple[Check, ...]
    """Every `VerdictName`, in their order."""
    notes: tuple[str, ...]
    """What is noted and not blamed, such as a power cap, or that spikes were limited for the analysis alone."""
    warmup_advice: str
    """On the number of warm-up steps, in a few words."""
    interval: MeanInterval | None
    """Of the mean step time; None below 3 steps."""

    @property
    def holding(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.holds)

    @property
    def names(self) -> tuple[VerdictName, ...]:
        """The verdicts that hold."""
        return tuple(check.name for check in self.holding)

    @property
    def not_observable(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.holds is None)

    @property
    def is_doubted(self) -> bool:
        """Whether there is a reason to doubt the number."""
        return any(name not in DESCRIBING for name in self.names)

    @property
    def label(self) -> str:
        """The verdicts that hold, for a column: ``still-warming, contended``."""
        return ", ".join(self.names)

    @property
    def sentence(self) -> str:
        """One sentence that explains the verdicts that hold, each with its evidence and what to do."""
        parts = [
            f"{check.name}: {check.evidence}" + (f" ({check.advice})" if check.advice else "") for check in self.holding
        ]
        return "; ".join(parts) + "."


def judge(cell: CellState) -> Judgement | None:
    """What can be said of a cell that ended well and has measured steps; None of any other."""
    raise NotImplementedError(cell)
