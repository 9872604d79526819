"""Memory, bandwidth and peak FLOP/s of GPUs by name (`data/gpus.toml`), and names of NVML's clock-event reasons."""

import os
import re
import tomllib
from functools import cache, lru_cache

import msgspec

from cs336_tui.config.axis import UserError
from cs336_tui.config.reading import packaged
from cs336_tui.config.spec import Precision
from cs336_tui.config.values import FLOAT8
from cs336_tui.config.variants import expected
from cs336_tui.events.environment import capability_pair

_MEANT: dict[Precision, str] = {
    "fp32": "fp32", "tf32": "tf32", "bf16-mixed": "bf16", "bf16": "bf16", "fp16-mixed": "fp16", "fp8-mixed": "fp8",
}  # fmt: skip
"""The format of a precision's matrix products; for fp8-mixed of those of the linear layers."""
_FROM_AMPERE: tuple[Precision, ...] = ("fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16")
_BEFORE_AMPERE: tuple[Precision, ...] = ("fp32", "fp16-mixed")
_AMPERE = (8, 0)  # the first compute capability with TF32, and with bf16 in hardware
_TELLS_APART = frozenset(("laptop", "pro"))
"""Words that make another GPU of the same number, so that its name must have them."""
_SAYS_NOTHING = frozenset(("nvidia", "geforce", "tesla", "gpu", "tensor", "core", "generation"))
_CLOCK_REASONS = (
    "idle", "application clocks", "software power cap", "hardware slowdown", "sync boost",
    "software thermal", "hardware thermal", "power brake", "display clocks",
)  # fmt: skip
"""``nvmlClocksEventReasons`` of nvml.h, by bit, the lowest first."""
ORDINARY_REASONS = frozenset({"idle", "application clocks", "software power cap", "sync boost", "display clocks"})
"""Reasons of settings and power management; others mean that heat or power fails, and make a timing suspect."""


class UnknownGpu(UserError, ValueError):
    """No GPU of the table has this name; one line names the known ones."""


HOPPER = (9, 0)
"""Compute capability of an H100."""


class GpuModel(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU's data sheet; `tflops` are dense peaks by format (``fp32`` without tensor cores)."""

    name: str
    words: tuple[str, ...] = ()
    """Words that other names of it may have besides those of `name`."""
    capability: str
    memory_gib: float
    """Its total memory as torch shows it."""
    bandwidth_gb_per_s: float
    tflops: dict[str, float]
    nvlink_gb_per_s: float | None = None
    """Outgoing; None where a machine with it need not have NVLink."""
    source: str

    @property
    def memory_bytes(self) -> int:
        return round(self.memory_gib * 2**30)

    @property
    def bandwidth_bytes_per_s(self) -> float:
        return self.bandwidth_gb_per_s * 1e9

    @property
    def link_bytes_per_s(self) -> float | None:
        """Outgoing bandwidth to other GPUs of its kind in the same machine, None where that is not known."""
        return None if self.nvlink_gb_per_s is None else self.nvlink_gb_per_s * 1e9

    @property
    def precisions(self) -> tuple[Precision, ...]:
        capability = capability_pair(self.capability)
        if capability < _AMPERE:
            return _BEFORE_AMPERE
        return (*_FROM_AMPERE, "fp8-mixed") if capability >= FLOAT8 else _FROM_AMPERE

    def peak_flops(self, precision: Precision) -> float | None:
        """FLOP/s of dense matrix products in this precision, None if no source states them."""
        peak = self.tflops.get(_MEANT[precision])
        return None if peak is None else peak * 1e12


@cache
def known_gpus() -> tuple[GpuModel, ...]:
    """Every GPU of the table; of one kind the most common first."""
    table = tomllib.loads(packaged("gpus.toml"))
    return msgspec.convert(table["gpu"], tuple[GpuModel, ...])


def find_gpu(name: str) -> GpuModel:
    """The GPU of a name such as ``H100`` or ``NVIDIA H100 80GB HBM3``, the most common. Raises `UnknownGpu`."""
    if found := gpu_of_label(name):
        return found
    names = [gpu.name for gpu in known_gpus()]
    raise UnknownGpu(f"GPU {name}: {expected(name, names, see='`cs336-tui estimate --gpu list` lists them')}")


@lru_cache(maxsize=256)
def gpu_of_label(label: str) -> GpuModel | None:
    """The GPU of torch's or NVML's name; None for one that is not in the table, and for a slice (MIG) of one."""
    words = _words(label)
    for gpu in known_gpus():
        own = gpu.name.lower().removeprefix("rtx ").split()
        number = next(word for word in own if word not in _TELLS_APART)
        # The words that every name of it has: ``h100``; ``4070`` and ``laptop``.
        if {number, *_TELLS_APART.intersection(own)} <= words <= _words(gpu.name) | set(gpu.words):
            return gpu
    return None


def _words(name: str) -> set[str]:
    text = re.sub(r"\b(\d+)\s*gi?b\b", r" \1gb ", name.lower())
    text = re.sub(r"\brtx(?=\w)", "rtx ", text)
    return set(re.findall(r"[a-z0-9]+", text)) - _SAYS_NOTHING


_LARGE_WORKSPACES = {9: (0, 0), 10: (2, 12), 11: (2, 14), 12: (2, 12)}
"""By major compute capability, the first torch with 32 MiB for cuBLAS; pytorch/pytorch#175344 and #189312."""


def cublas_workspace_bytes(capability: tuple[int, int], torch: str) -> int:
    """Bytes that this version of torch allocates for cuBLAS per handle, of which each thread that multiplies has one.
    ``parseChosenWorkspaceSize`` in aten/src/ATen/cuda/CublasHandlePool.cpp: 32 MiB on the GPUs of `_LARGE_WORKSPACES`,
    8 MiB and 128 KiB on all others, or by ``CUBLAS_WORKSPACE_CONFIG`` (``:KiB:count``, any number of times). An
    unreadable version counts as the newest."""
    if pairs := re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")):
        return sum(int(size) * 1024 * int(count) for size, count in pairs)
    said = re.match(r"(\d+)\.(\d+)", torch)
    version = (int(said[1]), int(said[2])) if said else (99, 0)
    large = version >= _LARGE_WORKSPACES.get(capability[0], (100, 0))
    return 32 * 2**20 if large else 8 * 2**20 + 128 * 1024


def clock_reasons(mask: int) -> tuple[str, ...]:
    """Names of the reasons in force, in the order of their bits; a bit without a name gives ``reason 0x...``."""
    bits = (bit for bit in range(mask.bit_length()) if mask >> bit & 1)
    return tuple(_CLOCK_REASONS[bit] if bit < len(_CLOCK_REASONS) else f"reason {1 << bit:#x}" for bit in bits)
