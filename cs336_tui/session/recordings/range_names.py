"""Names of ranges: the phases that they tell, and in NVTX those of torch's ``emit_nvtx``, of libraries and of users."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

from cs336_tui.config.axis import UserError

USUAL_PHASES: Mapping[str, tuple[str, ...]] = {
    "forward": ("forward", "fwd", "forward pass", "forward_pass", "forward step", "forward_step"),
    "loss": ("loss", "compute loss", "compute_loss"),
    "backward": ("backward", "bwd", "backward pass", "backward_pass", "backward step", "backward_step"),
    "zero_grad": ("zero_grad", "zero grad", "optimizer.zero_grad#*"),
    "optimizer": ("optimizer", "optim", "optimizer step", "optimizer_step", "optimizer.step", "optimizer.step#*"),
}  # fmt: skip
"""Names of ranges that are a phase, in the order of a step; capitals, ``#`` and ``phase/`` round them do not matter."""
OF_LIBRARIES = frozenset((
    "nccl", "cublas", "cublaslt", "cudnn", "cusolver", "cusparse", "cufft", "cccl", "cub", "thrust", "nvshmem", "dali",
))  # fmt: skip
"""Domains, in small letters, in which libraries name their own calls."""
_ADDED = (", op_id = ", ", seq = ", ", sizes = ", ", input_op_ids = ")
"""The addition of torch's ``emit_nvtx`` to a name."""
_SEQUENCE = re.compile(r", seq = (\d{1,18})\b")
_NODE = re.compile(r"autograd::engine::evaluate_function: .+|\w+Backward\d*")
_KNOWN_OPERATOR = re.compile(r"(?:aten|prims?|c10d?|torch|quantized|nccl)::\S+")


class PhaseError(UserError, ValueError):
    """A range that should be a phase, not written as PHASE=RANGE."""


def phases_of(given: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The ranges of each phase, from ``PHASE=RANGE``. Raises `PhaseError`."""
    found: dict[str, tuple[str, ...]] = {}
    for text in given:
        phase, _, range_ = text.partition("=")
        if not phase or not range_:
            raise PhaseError(f"--phase {text}: expected PHASE=RANGE, such as forward=model_fwd")
        found[phase] = (*found.get(phase, ()), range_)
    return found


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


class RangeNames:
    """Tells operators and autograd's nodes of torch by the names of their ranges."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[bool, bool]] = {}

    def read(self, text: str) -> tuple[str, bool, int, bool]:
        """The name without what torch adds, True for one of torch, autograd's sequence or -1, True for a node."""
        at = text.find(", ")
        while at >= 0 and not text.startswith(_ADDED, at):
            at = text.find(", ", at + 1)
        bare = text if at < 0 else text[:at]
        kinds = self._kinds.get(bare)
        if kinds is None:
            node = _NODE.fullmatch(bare) is not None
            kinds = self._kinds[bare] = node or _KNOWN_OPERATOR.fullmatch(bare) is not None, node
        of_torch, node = kinds
        sequence = _SEQUENCE.search(text, at) if of_torch and at >= 0 else None
        return bare, of_torch, int(sequence[1]) if sequence else -1, node
