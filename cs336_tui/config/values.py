"""The values of choices that have names, the checks of a value, and why a device lacks one; the timed phases of each
pass, in the order in which they run; sizes in bytes, and ways in which ranks share a step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Literal, NamedTuple, get_args

from cs336_tui.config.axis import MAX_COUNT, Device, SpecError
from cs336_tui.config.counts import check_duration
from cs336_tui.config.variants import RANGES, expected, is_imported, is_well_formed, likely_meant

Pass = Literal["inference", "forward", "forward+loss", "backward", "forward+backward", "train-step"]
Precision = Literal["fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16", "fp8-mixed"]
Arch = Literal["swiglu-rope", "gelu-learned"]
Sync = Literal["each-step", "pipelined"]
Edition = Literal["2024", "2025", "2026"]
Work = Literal["language-model", "attention", "norm", "collective"]
"""``attention`` is attention alone, over random queries, keys and values, without heads or with several; ``norm`` is a
norm alone, over random rows; ``collective`` is one operation of several ranks on a message, without a model. The choice
of how one is computed has its name."""
Compile = Literal["off", "default", "reduce-overhead", "max-autotune"]
"""Modes of torch.compile; ``off`` runs the model as it is written."""
CudaGraph = Literal["off", "step"]
"""``step`` replays one CUDA graph of the whole step."""
Nesting = Literal["off", "halves"]
Timer = Literal["step", "do_bench"]
Inputs = Literal["auto", "fresh", "fixed"]
Switch = Literal["off", "on"]
Gelu = Literal["exact", "tanh"]
Backend = Literal["auto", "gloo", "nccl"]
BatchIs = Literal["per-rank", "global"]
Operation = Literal["all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all"]

CAPTURING: tuple[Compile, ...] = ("reduce-overhead", "max-autotune")
"""Modes in which torch.compile captures CUDA graphs."""
PASSES: tuple[str, ...] = get_args(Pass)
WITHOUT_BACKWARD = ("inference", "forward", "forward+loss")
"""Passes that run no backward, timed or not."""
PRECISIONS: tuple[str, ...] = get_args(Precision)
ARCHES: tuple[str, ...] = get_args(Arch)
SYNCS: tuple[str, ...] = get_args(Sync)
EDITIONS: tuple[str, ...] = get_args(Edition)
LANGUAGE_MODEL: Work = "language-model"
COMPUTING = (LANGUAGE_MODEL, "attention", "norm")
"""Workloads that compute something; a collective only communicates."""
ATTENTIONS = ("naive", "sdpa", "flash", "memory-efficient", "cudnn", "math")
"""Attention of the reference model: ``naive`` materialises its scores; ``sdpa`` is torch's
scaled_dot_product_attention with the backend that torch chooses, the others are its backends by name."""
NORMS = ("rmsnorm", "layernorm", "torch-rmsnorm")
"""Norm of the reference model: ``rmsnorm`` in elementwise operations; the others are torch's own functions,
``layernorm`` with a bias."""
OPTIMIZERS = ("adamw", "adamw-fused", "adamw-foreach", "adamw-for-loop")
"""torch's AdamW: ``adamw`` with the implementation that torch chooses on the device, the others by name."""

FLOAT8 = (8, 9)
"""The first CUDA compute capability whose matrix products take float8."""
_USUAL_NAMES = {
    "float32": "fp32", "float": "fp32", "fp32-true": "fp32", "32": "fp32", "tensorfloat32": "tf32",
    "bfloat16": "bf16 or bf16-mixed", "bf16-true": "bf16", "fp16": "fp16-mixed", "float16": "fp16-mixed",
    "half": "fp16-mixed", "fp16-true": "fp16-mixed", "amp": "bf16-mixed or fp16-mixed", "mixed": "bf16-mixed",
    "fp8": "fp8-mixed", "float8": "fp8-mixed", "e4m3": "fp8-mixed", "hybrid": "fp8-mixed", "fp64": "fp32",
    "float64": "fp32", "double": "fp32",
}  # fmt: skip
"""Other tools' names of precisions, each with ours, or the nearest."""
_NO_TRAINING = ("int8", "int4", "fp4", "nvfp4", "mxfp4", "mxfp6", "mxfp8", "fp6", "nf4")
"""Formats in which torch has no training step."""


def canonical_device(name: str) -> str:
    """``cpu``, ``mps`` or ``cuda:N`` for any accepted spelling (``cuda`` is ``cuda:0``).

    Raises `SpecError` for anything else, ``auto`` included: that is resolved before a cell exists.
    """
    if name in ("cpu", "mps"):
        return name
    if match := re.fullmatch(r"cuda(?::(\d{1,3}))?", name):
        return f"cuda:{int(match[1] or 0)}"
    raise SpecError("device", name, "expected auto, cpu, mps, cuda or cuda:N")


def check_device(name: str) -> None:
    if canonical_device(name) != name:
        raise SpecError("device", name, f"expected {canonical_device(name)}")


def check_precision(name: str) -> None:
    named = expected(name, PRECISIONS)
    if name.lower() in _NO_TRAINING:
        raise SpecError("precision", name, f"not offered: torch has no training step in it; {named}")
    if name not in PRECISIONS:
        near = _USUAL_NAMES.get(name.lower())
        raise SpecError("precision", name, f"choose {near}; {named}" if near else named)


check_warmup_for = partial(check_duration, field="warmup_for")
check_steps_for = partial(check_duration, field="steps_for")


def check_share(share: float | None) -> None:
    if share is not None and not 0 < share < 1:
        raise SpecError("steps_auto", share, "expected a share of the mean between 0 and 1")


def check_dropout(share: float) -> None:
    if not 0 <= share < 1:
        raise SpecError("dropout", share, "expected a share of at least 0 and less than 1, such as 0.1")


def check_annotations(pairs: tuple[tuple[str, str], ...]) -> None:
    for part, function in pairs:
        if part not in RANGES:
            raise SpecError("annotations", part, expected(part, RANGES))
        if not is_well_formed(function):
            raise SpecError("annotations", f"{part}={function}", "expected RANGE=package.module:function")


def lacks_precision(precision: str, device: Device) -> str:
    if precision in device.precisions:
        return ""
    can = f"{device.title} can do {', '.join(device.precisions)}"
    if precision != "fp8-mixed":
        return can
    needed = ".".join(map(str, FLOAT8))
    has = f"{device.name} has {device.capability}" if device.capability else f"{device.name} is none"
    return f"{can}; it needs an NVIDIA GPU of compute capability {needed} or later, {has}"


def lacks_attention(attention: str, device: Device) -> str:
    if attention not in ATTENTIONS or not device.attentions or attention in device.attentions:
        return ""
    return f"{device.title} can do {', '.join(device.attentions)}"


def lacks_graphs(choice: str, device: Device) -> str:
    can = choice == "off" or device.name.startswith("cuda")
    return "" if can else f"{device.title} has none; only cuda has"


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


PARALLELS = ("none", "ddp", "zero1", "fsdp2")
"""Ways to share a step, by torch's own classes: ``none`` lets each rank train alone, without communication; ``ddp`` is
DistributedDataParallel; ``zero1`` adds ZeroRedundancyOptimizer, which shards the optimizer's state; ``fsdp2`` is
fully_shard of each block and of the model."""
WITH_BUCKETS = ("ddp", "zero1")
_SIZE = r"(\d+(?:\.\d+)?)([kKMGT]?)(i?)B"
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


def bytes_of(text: str) -> int:
    """Bytes of a size such as ``10MB``, 10^7, or ``10MiB``, 10 x 2^20. Raises ValueError."""
    found = re.fullmatch(_SIZE, text)
    size = float(found[1]) * (1024 if found[3] else 1000) ** _POWERS[found[2]] if found else 0
    if size < 1:
        raise ValueError("expected a size such as 512KB, 10MB (10^7 bytes) or 10MiB (10 x 2^20)")
    return int(size)


def size_words(size: int) -> str:
    """Inverse of `bytes_of`, in the largest unit of which it is a multiple: ``70GB``, ``512KiB``."""
    for power, prefix in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
        for base, binary in ((1000, ""), (1024, "i")):
            if size % base**power == 0:
                return f"{size // base**power}{prefix}{binary}B"
    return f"{size}B"


BYTES_OF_ELEMENT = {"fp32": 4, "bf16": 2}
"""Precisions of messages."""


_WORD_BYTES = 4
LARGEST_MESSAGE = "1TB"
NO_MODEL = "a collective has no model"


def message_dims(size: str) -> tuple[int, int]:
    """The two dimensions, each at most `MAX_COUNT`, that number a message's size such as ``10MB``. Raises
    `SpecError`."""
    try:
        words = bytes_of(size) // _WORD_BYTES
    except ValueError as error:
        raise SpecError("size", size, str(error)) from None
    if not 0 < words <= bytes_of(LARGEST_MESSAGE) // _WORD_BYTES:
        raise SpecError("size", size, f"expected {_WORD_BYTES}B to {LARGEST_MESSAGE}")
    more, rest = divmod(words - 1, MAX_COUNT)
    return rest + 1, more + 1


def message_bytes(dims: tuple[int, int], precision: str, ranks: int) -> int:
    """Bytes of a collective's whole array, of a size by its `message_dims`, rounded down so that each rank has as many
    elements. Raises KeyError for what is no precision of messages."""
    unit = BYTES_OF_ELEMENT[precision] * ranks
    return ((dims[1] - 1) * MAX_COUNT + dims[0]) * _WORD_BYTES // unit * unit


class Sharing(NamedTuple):
    """One of `PARALLELS`, or a user's own wrapper, and the size of its buckets of gradients, None for its own."""

    name: str
    bucket_bytes: int | None = None


def sharing_of(choice: str) -> Sharing:
    """The parts of ``ddp``, ``ddp:25MB``, ``package.module:get_ddp`` and ``package.module:get_ddp_bucketed:25MB``."""
    name, colon, last = choice.rpartition(":")
    if colon and last[:1].isdigit():
        return Sharing(name, bytes_of(last))
    return Sharing(choice)


def check_parallel(choice: str) -> None:
    """Raise `SpecError` for what is no way to share a step."""
    try:
        name, bucket_bytes = sharing_of(choice)
    except ValueError as error:
        raise SpecError("parallel", choice, f"buckets: {error}") from None
    if is_imported(name) and not is_well_formed(name):
        meant = likely_meant(name) or "write package.module:get_ddp for one of your own"
        raise SpecError("parallel", choice, meant)
    if not is_imported(name) and name not in PARALLELS:
        named = expected(name, (*PARALLELS, "ddp:25MB"), own=", or package.module:get_ddp")
        raise SpecError("parallel", choice, "; ".join(filter(None, (named, likely_meant(name)))))
    if bucket_bytes and name in PARALLELS and name not in WITH_BUCKETS:
        raise SpecError("parallel", choice, f"{name} has no buckets; only {' and '.join(WITH_BUCKETS)} have")


_RATE = r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(B|b|bit)/?(s|ps)"


def bytes_per_s_of(text: str) -> float:
    """Bytes a second of ``450GB/s``, or of ``400Gb/s`` and ``400Gbit/s``, an eighth of that. Raises ValueError."""
    found = re.fullmatch(_RATE, text.strip())
    rate = float(found[1]) * 1000.0 ** _POWERS[found[2]] / (1 if found[3] == "B" else 8) if found else 0.0
    if rate <= 0:
        raise ValueError("expected a bandwidth such as 450GB/s, or 400Gb/s (bits)")
    return rate


_MOST_RANKS = 1_000_000


def rank_counts_of(text: str) -> tuple[int, ...]:
    """Numbers of ranks in order: ``1,2,6``, or ``1..1024``, which doubles from the first to the last. Raises
    ValueError."""
    counts: set[int] = set()
    for word in text.split(","):
        first, dots, last = word.partition("..")
        ends = [
            int(each) if re.fullmatch(r"\s*[0-9]{1,7}\s*", each, re.ASCII) else 0 for each in (first, last or first)
        ]
        if (dots and not last) or not 1 <= ends[0] <= ends[1] <= _MOST_RANKS:
            raise ValueError("expected numbers of ranks such as 1,2,4 or 1..1024 (doubling)")
        count = ends[0]
        while count < ends[1]:
            counts.add(count)
            count *= 2
        counts.add(ends[1])
    return tuple(sorted(counts))


_SPEED = r"(\d+(?:\.\d+)?(?:e\+?\d+)?)\s*([kKMGTP]?)(FLOPS?(/s)?)?"


def flops_per_s_of(text: str) -> float:
    """FLOP/s of ``989.4TFLOP/s``, ``700T`` or ``7e14``. Raises ValueError."""
    found = re.fullmatch(_SPEED, text.strip(), re.IGNORECASE)
    speed = float(found[1]) * 1000.0 ** (_POWERS | {"P": 5})[found[2].upper()] if found else 0.0
    if not 0 < speed < float("inf"):
        raise ValueError("expected FLOP/s such as 700TFLOP/s or 7e14")
    return speed
