"""The place of a process among the ranks of its cell, as the runner gives it. Imports no torch."""

from __future__ import annotations

import signal
from typing import NamedTuple

from cs336_tui.config.spec import CellSpec

STACK_SIGNAL = signal.SIGUSR1
"""Asks a rank for its stack."""
ENDED_THE_ROUND = "which ended the round"
"""In the error of a cell because of the failure of the one in turns with it."""


class Place(NamedTuple):
    """One rank of several. They meet in the file `meeting`; each writes its stack to the file `stacks` when it is
    asked."""

    rank: int = 0
    ranks: int = 1
    meeting: str = ""
    stacks: str = ""

    def device_of(self, spec: CellSpec) -> str:
        """The device of this rank: the spec's for the first, the GPUs that follow it for the others."""
        kind, _, index = spec.device.partition(":")
        return f"{kind}:{int(index) + self.rank}" if index else spec.device


ALONE = Place()
