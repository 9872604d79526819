"""What to run: model dimensions and one cell (`RunSpec`).

No invalid `RunSpec` can exist: building one checks every field and raises `SpecError`,
which names the field, the value and what is allowed.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

import msgspec

Pass = Literal["inference", "forward", "backward", "forward+backward", "train-step"]
Precision = Literal["fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16"]
Arch = Literal["swiglu-rope", "gelu-learned"]
Sync = Literal["each-step", "pipelined"]
Edition = Literal["2024", "2025", "2026"]

PASSES: tuple[str, ...] = get_args(Pass)
PRECISIONS: tuple[str, ...] = get_args(Precision)
ARCHES: tuple[str, ...] = get_args(Arch)
SYNCS: tuple[str, ...] = get_args(Sync)
EDITIONS: tuple[str, ...] = get_args(Edition)

CUSTOM_SIZE = "custom"
"""The size name of a cell whose dimensions were given raw."""

MAX_COUNT = 2**31 - 1


class SpecError(ValueError):
    """A value that cannot be run: names the field, the value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        super().__init__(f"{field.replace('_', ' ')} {value!s}: {allowed}")


def _one_of(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SpecError(field, value, f"expected one of {', '.join(allowed)}")


def _count(field: str, value: int, minimum: int = 1) -> None:
    if not minimum <= value <= MAX_COUNT:
        bound = f"at most {MAX_COUNT}" if value > MAX_COUNT else f"at least {minimum}"
        raise SpecError(field, value, f"expected a whole number, {bound}")


class ModelDims(msgspec.Struct, frozen=True, kw_only=True):
    """Dimensions of a Transformer language model, in elements."""

    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int
    vocab_size: int = 10_000

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            _count(field, getattr(self, field))
        if self.d_model % self.num_heads:
            raise SpecError(
                "d_model",
                self.d_model,
                f"expected a multiple of num_heads ({self.num_heads}), so heads are equal",
            )


def canonical_device(name: str) -> str:
    """``cpu``, ``mps`` or ``cuda:N`` for any accepted spelling (``cuda`` is ``cuda:0``).

    Raises `SpecError` for anything else, ``auto`` included: that is resolved before a cell exists.
    """
    if name in ("cpu", "mps"):
        return name
    if match := re.fullmatch(r"cuda(?::(\d{1,3}))?", name):
        return f"cuda:{int(match[1] or 0)}"
    raise SpecError("device", name, "expected auto, cpu, mps, cuda or cuda:N")


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, rename={"pass_": "pass"}):
    """One cell: a model, a pass, a precision and a device, timed for a number of steps.

    `seed` fixes parameters and tokens. `threads` is torch's intra-op thread count, None for torch's own default.
    With `warmup_auto` warm-up goes on until steps are steady, and `warmup_steps` is the most. With `steps_auto`, a
    share, measuring goes on until the confidence interval of the mean is narrower than that share of the mean, and
    `measure_steps` is the most.
    """

    size: str
    edition: Edition
    arch: Arch
    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int
    vocab_size: int
    context_length: int
    batch_size: int
    pass_: Pass
    precision: Precision
    device: str
    sync: Sync = "each-step"
    warmup_steps: int = 5
    measure_steps: int = 10
    seed: int = 0
    threads: int | None = None
    warmup_auto: bool = False
    steps_auto: float | None = None

    def __post_init__(self) -> None:
        _one_of("edition", self.edition, EDITIONS)
        _one_of("arch", self.arch, ARCHES)
        _one_of("pass", self.pass_, PASSES)
        _one_of("precision", self.precision, PRECISIONS)
        _one_of("sync", self.sync, SYNCS)
        dims = self.dims
        if self.arch == "swiglu-rope" and dims.d_model // dims.num_heads % 2:
            raise SpecError(
                "num_heads",
                self.num_heads,
                f"gives heads of odd width {dims.d_model // dims.num_heads}; rotary embeddings need an even width",
            )
        _count("context_length", self.context_length)
        _count("batch_size", self.batch_size)
        _count("warmup_steps", self.warmup_steps, 0)
        _count("measure_steps", self.measure_steps)
        _count("seed", self.seed, 0)
        if self.threads is not None:
            _count("threads", self.threads)
        if self.steps_auto is not None:
            if not 0 < self.steps_auto < 1:
                raise SpecError("steps_auto", self.steps_auto, "expected a share of the mean between 0 and 1")
            if self.sync != "each-step":
                raise SpecError("sync", self.sync, "a number of steps that is not fixed needs each-step")
        if canonical_device(self.device) != self.device:
            raise SpecError("device", self.device, f"expected {canonical_device(self.device)}")

    @property
    def dims(self) -> ModelDims:
        return ModelDims(
            d_model=self.d_model,
            d_ff=self.d_ff,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            vocab_size=self.vocab_size,
        )

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.context_length

    @property
    def total_steps(self) -> int:
        """Warm-up and measured steps together, at most."""
        return self.warmup_steps + self.measure_steps

    @property
    def title(self) -> str:
        """What tells this cell from its neighbours, for a heading."""
        return f"{self.size} · ctx {self.context_length} · {self.pass_} · {self.precision} · {self.device}"
