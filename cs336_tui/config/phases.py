"""The timed phases of each pass, in the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping

from cs336_tui.config.values import Pass

PHASES: Mapping[Pass, tuple[str, ...]] = {
    "inference": ("forward",),
    "forward": ("forward",),
    "forward+loss": ("forward", "loss"),
    "backward": ("backward",),
    "forward+backward": ("forward", "loss", "backward"),
    "train-step": ("zero_grad", "forward", "loss", "backward", "optimizer"),
}


ACCUMULATION = "accumulation"
"""The phase of all micro-batches but the last: their forward, loss and backward."""


def phases_of(pass_: Pass, accumulate: int = 1) -> tuple[str, ...]:
    """The timed phases of a pass; forward, loss and backward are those of the last of its micro-batches."""
    phases = PHASES[pass_]
    return (*phases[:1], ACCUMULATION, *phases[1:]) if accumulate > 1 else phases


def prepared_phases(pass_: Pass, accumulate: int = 1) -> tuple[str, ...]:
    """The phases of a pass, with the untimed forward and loss of `backward`."""
    return phases_of("forward+backward" if pass_ == "backward" else pass_, accumulate)
