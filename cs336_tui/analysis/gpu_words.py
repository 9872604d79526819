"""Words on the GPUs of a machine, the same in the app and in `doctor`: numbers, figures, and why one is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cs336_tui.events.environment import GpuSample
from cs336_tui.stats import quantities
from cs336_tui.stats.quantities import UNKNOWN

_MIG = "MIG-"
"""The beginning of the UUID of a MIG instance."""
_UNIFIED = ("orin", "xavier", "thor", "jetson", "tegra", "gb10")
"""Words of names of NVIDIA's GPUs that share the host's memory."""
_COHERENT = ("gh200", "gb200", "gb300")
"""Words of names of those with memory of their own that reach the host's as well."""
APPLE = "unified memory: GPU and CPU share the host's memory; macOS tells no utilisation, power, temperature or clocks"


class Figure(NamedTuple):
    """One thing that a GPU tells; `is_doubt` if it makes a timing suspect."""

    label: str
    text: str
    is_doubt: bool = False


class Numbered(NamedTuple):
    """A GPU with its number: ``0``, or ``0/1`` for the second MIG instance of the first; `title`: ``GPU 0 of 4``."""

    number: str
    title: str
    gpu: GpuSample


def is_mig(gpu: GpuSample) -> bool:
    return (gpu.uuid or "").startswith(_MIG)


def numbered(gpus: Sequence[GpuSample]) -> tuple[Numbered, ...]:
    """The GPUs of a machine, each followed by its MIG instances, with the numbers that nvidia-smi gives them."""
    count = sum(not is_mig(gpu) for gpu in gpus)
    found: list[Numbered] = []
    index, part = -1, 0
    for at, gpu in enumerate(gpus):
        if not is_mig(gpu):
            index, part = index + 1, 0
            found.append(Numbered(str(index), f"GPU {index} of {count}", gpu))
            continue
        parts = next((n for n, each in enumerate(gpus[at:]) if not is_mig(each)), len(gpus) - at) + part
        whole = max(index, 0)
        found.append(Numbered(f"{whole}/{part}", f"GPU {whole} of {max(count, 1)}, MIG {part} of {parts}", gpu))
        part += 1
    return tuple(found)


def doubtful_reasons(gpu: GpuSample) -> tuple[str, ...]:
    """Reasons for lower clocks that make a timing suspect: heat, or a power supply that fails. A power cap is none."""
    if not gpu.clock_reasons:
        return ()
    from cs336_tui.events.gpus import ORDINARY_REASONS  # late: the first frame has no GPU

    return tuple(reason for reason in gpu.clock_reasons if reason not in ORDINARY_REASONS)


def figures(gpu: GpuSample) -> list[Figure]:
    """Readings of a GPU; n/a for those it does not give."""
    power = UNKNOWN
    if gpu.power_w is not None:
        limit = "" if gpu.power_limit_w is None else f"/{gpu.power_limit_w:.0f}"
        power = f"{gpu.power_w:.0f}{limit} W"
    clocks = (gpu.sm_clock_mhz, gpu.memory_clock_mhz)
    told = "/".join(UNKNOWN if clock is None else str(clock) for clock in clocks)
    reasons = UNKNOWN if gpu.clock_reasons is None else ", ".join(gpu.clock_reasons) or "no"
    others = UNKNOWN if gpu.other_processes is None else "none"
    if gpu.other_processes:
        others = f"! {quantities.counted(len(gpu.other_processes), 'process')}"
        memory = [process.memory_bytes for process in gpu.other_processes if process.memory_bytes is not None]
        if memory:
            others += f", {quantities.gigabytes(sum(memory))} GB"
    return [
        Figure("memory", quantities.used_of(gpu.memory_used_bytes, gpu.memory_total_bytes)),
        Figure("util", quantities.whole_percent(gpu.utilisation)),
        Figure("power", power),
        Figure("temp", UNKNOWN if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C"),
        Figure("clocks", UNKNOWN if clocks == (None, None) else f"{told} MHz"),
        Figure("limited", reasons, bool(doubtful_reasons(gpu))),
        Figure("others", others, bool(gpu.other_processes)),
    ]


def notes(gpu: GpuSample) -> list[str]:
    """Why figures are missing or mean something else, a sentence each; none of a GPU that tells nothing at all."""
    missing = [figure.label for figure in figures(gpu) if figure.text == UNKNOWN]
    if gpu.memory_used_bytes is None and len(missing) == len(figures(gpu)):
        return []
    words, found = (gpu.name or "").lower(), []
    if is_mig(gpu):
        found.append("MIG instance: NVML tells utilisation, power, temperature and clocks of the whole GPU only")
        missing = [label for label in missing if label in ("memory", "others")]
    elif any(word in words for word in _UNIFIED):
        found.append("unified memory: GPU and CPU share the host's memory, which the host's figures tell")
        missing = [label for label in missing if label != "memory"]
    elif any(word in words for word in _COHERENT):
        found.append("coherent memory: the GPU reaches the host's memory as well; the figure is its own HBM")
    if "others" in missing:
        missing.remove("others")
        found.append("others n/a: in a container processes cannot be told apart, or the driver lists none")
    if missing:
        found.append(f"{', '.join(missing)} n/a: this GPU or its driver does not tell")
    return found
