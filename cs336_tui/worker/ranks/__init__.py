"""Several processes that run one cell together. Here the place of each among them, as the runner gives it; imports no
torch."""

from __future__ import annotations

import signal
from typing import NamedTuple

from cs336_tui.config.spec import CellSpec

STACK_SIGNAL = signal.SIGUSR1
"""Asks a rank for its stack."""
ENDED_THE_ROUND = "which ended the round"
"""In the error of a cell because of the failure of the one in turns with it."""


class Place(NamedTuple):
    """One rank of several. They meet in the file `meeting`, or over nodes in torch's store at `address` and `port`;
    each writes its stack to the file `stacks` when it is asked."""

    rank: int = 0
    ranks: int = 1
    meeting: str = ""
    stacks: str = ""
    device: str = ""
    """Its device, if it was given one."""
    address: str = ""
    """Of the machine that has the store; empty: all ranks are on one machine, and meet in a file."""
    port: int = 0
    first: int = 0
    """The first rank on this machine."""
    here: int = 0
    """Ranks on this machine; 0: all."""
    node: int = 0
    """The number of this machine among those of the ranks."""
    nodes: int = 1

    @property
    def local_rank(self) -> int:
        return self.rank - self.first

    @property
    def local_ranks(self) -> int:
        return self.here or self.ranks

    def device_of(self, spec: CellSpec) -> str:
        """The device of this rank: its own, else the spec's for the first of its machine, the GPUs that follow it for
        the others."""
        if self.device:
            return self.device
        kind, _, index = spec.device.partition(":")
        return f"{kind}:{int(index) + self.local_rank}" if index else spec.device


ALONE = Place()
