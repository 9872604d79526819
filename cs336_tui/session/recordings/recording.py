"""Types that all readers of others' recordings share: the result, its progress, its error. Names of ranges: the phases
that they tell, and in NVTX those of torch's ``emit_nvtx``, of libraries and of users."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from cs336_tui.config.axis import UserError
from cs336_tui.config.spec import recorded_spec
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.events.reports import MemoryReport

INFLATED = 1 << 28
"""Bytes that any gzipped file may hold."""


class RecordingError(UserError):
    """A file that cannot be read as a recording: damaged, cut, too large or none at all; one line says so."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")


def most_inflated(size: int, most: int) -> int:
    """The most bytes, `most` at any rate, to which a gzipped file of `size` bytes is decompressed: traces shrink to a
    tenth or so, and what shrinks to less than a 300th is made to fill memory."""
    return min(max(300 * size, INFLATED), most)


def check_time(path: Path, total_ns: float) -> None:
    """Raises `RecordingError` if all times together are so long that a sum of them could overflow."""
    if total_ns > 2**61:
        raise RecordingError(path, "damaged: its times together are longer than a century")


class OpeningCancelled(Exception):
    """Reading was stopped by the person who asked for it."""


class Watch(Protocol):
    """Told of progress in bytes of the file, whose `total` is 0 if unknown; raises `OpeningCancelled` to stop."""

    def __call__(self, done: int, total: int) -> None: ...


def unwatched(done: int, total: int) -> None:
    """A `Watch` for nobody."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of a recording: what one device of one process did."""

    name: str
    """The file's name, with the rank if there is one, such as ``trace.json.gz, rank 1``."""
    device: str
    """As ``cuda:0``."""
    report: KernelReport | MemoryReport
    device_label: str = ""
    """Such as ``NVIDIA H100 80GB HBM3``; empty if unknown."""
    memory_bytes: int | None = None
    """All memory of the device."""
    capability: str | None = None
    """CUDA compute capability of the device, such as ``9.0``."""
    torch: str = ""
    host: str = ""


class Opening(NamedTuple):
    """Options for reading a file."""

    watch: Watch = unwatched
    phases: Mapping[str, tuple[str, ...]] = {}
    """Names of ranges, beside the usual ones, that are a phase, by the phase."""


def header(name: str, device: str, label: str, torch: str) -> dict[str, object]:
    """The fields that begin every report: its spec, its device, torch's version."""
    return {"spec": recorded_spec(name, device), "device_name": label or device, "torch": torch or "unknown"}


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
