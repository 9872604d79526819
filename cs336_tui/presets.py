"""Named sweeps of each handout edition, as data."""

from __future__ import annotations

import msgspec

from cs336_tui.spec import SpecError
from cs336_tui.sweep import Sweep


class Preset(msgspec.Struct, frozen=True):
    """A named sweep and what it is for."""

    name: str
    about: str
    sweep: Sweep


_COURSE = ("small", "medium", "large", "xl")

PRESETS: tuple[Preset, ...] = (
    Preset("quick", "the tiny size on this machine's best device, under half a minute", Sweep()),
    Preset(
        "2026/benchmarking_script",
        "all five sizes; forward, forward+backward, train-step",
        Sweep(sizes=(*_COURSE, "10B"), contexts=(512,)),
    ),
    Preset(
        "2026/warmup",
        "the benchmarking script with 0, 1 and 2 warm-up steps",
        Sweep(sizes=(*_COURSE, "10B"), contexts=(512,), warmups=(0, 1, 2)),
    ),
    Preset(
        "2026/mixed_precision",
        "the benchmarking script in fp32 and bf16-mixed",
        Sweep(sizes=(*_COURSE, "10B"), contexts=(512,), precisions=("fp32", "bf16-mixed")),
    ),
    Preset(
        "2025/end_to_end",
        "small to 2.7B; forward and forward+backward; warm-up 0, 2, 5",
        Sweep(
            edition="2025",
            sizes=(*_COURSE, "2.7B"),
            contexts=(256,),
            passes=("forward", "forward+backward"),
            warmups=(0, 2, 5),
        ),
    ),
    Preset(
        "2024/timeit",
        "small and medium of the 2024 handout, GELU and learned positions",
        Sweep(
            edition="2024",
            arch="gelu-learned",
            sizes=("small", "medium"),
            batches=(16,),
            contexts=(128,),
            passes=("forward", "backward", "forward+backward"),
            precisions=("fp32", "fp16-mixed"),
            warmups=(0, 1),
            steps=5,
        ),
    ),
)


def preset(name: str) -> Preset:
    """The preset of that name. Raises `SpecError` naming the known ones."""
    for candidate in PRESETS:
        if candidate.name == name:
            return candidate
    raise SpecError("preset", name, f"expected one of {', '.join(p.name for p in PRESETS)}")
