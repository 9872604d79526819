"""Choices of cells of several ranks: sizes in bytes, and ways in which ranks share a step."""

from __future__ import annotations

import re
from typing import NamedTuple

from cs336_tui.config.axis import MAX_COUNT, SpecError
from cs336_tui.config.variants import is_imported, is_well_formed, likely_meant

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
        named = ", ".join(PARALLELS)
        expected = f"expected one of {named}, ddp:25MB, or package.module:get_ddp"
        raise SpecError("parallel", choice, "; ".join(filter(None, (expected, likely_meant(name)))))
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
