"""Phases that the names of ranges and annotations tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

USUAL_PHASES: Mapping[str, tuple[str, ...]] = {
    "forward": ("forward", "fwd", "forward pass", "forward_pass", "forward step", "forward_step"),
    "loss": ("loss", "compute loss", "compute_loss"),
    "backward": ("backward", "bwd", "backward pass", "backward_pass", "backward step", "backward_step"),
    "zero_grad": ("zero_grad", "zero grad", "optimizer.zero_grad#*"),
    "optimizer": ("optimizer", "optim", "optimizer step", "optimizer_step", "optimizer.step", "optimizer.step#*"),
}  # fmt: skip
"""Names of ranges that are a phase, in the order of a step; capitals, ``#`` and ``phase/`` round them do not matter."""


def phase_finder(more: Mapping[str, tuple[str, ...]]) -> Callable[[str], str]:
    """Tells the phase that a range's name says, empty if none."""
    patterns = [
        (phase, pattern.casefold())
        for phase in dict.fromkeys((*more, *USUAL_PHASES))
        for pattern in (*more.get(phase, ()), *USUAL_PHASES.get(phase, ()))
    ]
    known: dict[str, str] = {}

    def phase_of(name: str) -> str:
        if name not in known:
            bare = name.casefold().removeprefix("phase/")
            texts = (bare, bare.strip("# :-=<>[]"))
            known[name] = next((p for p, pattern in patterns if any(fnmatchcase(t, pattern) for t in texts)), "")
        return known[name]

    return phase_of
