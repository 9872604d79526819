"""One cell (`CellSpec`), and model dimensions.

No invalid `CellSpec` can exist: building one checks every field and every rule and raises `SpecError`, which names the
field, the value and what is allowed.
"""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from cs336_tui.config import axes
from cs336_tui.config.axes import Choices
from cs336_tui.config.axis import MAX_COUNT, SpecError
from cs336_tui.config.counts import least_s, steps_in
from cs336_tui.config.rules import ARGUMENTS, AXES, RULES
from cs336_tui.config.values import (
    ARCHES,
    EDITIONS,
    LANGUAGE_MODEL,
    PASSES,
    PRECISIONS,
    SYNCS,
    Arch,
    Edition,
    Pass,
    Precision,
    Sync,
    canonical_device,
    message_bytes,
    sharing_of,
)
from cs336_tui.config.variants import Pairs, did_you_mean, expected, is_imported, short

__all__ = [
    "ARCHES", "ARGUMENTS", "AXES", "EDITIONS", "MAX_COUNT", "PASSES", "PRECISIONS", "SYNCS", "Arch", "CellSpec",
    "Edition", "ModelDims", "Pass", "Precision", "SpecError", "Sync", "canonical_device", "dims_of", "known_choices",
    "recorded_spec", "size_names",
]  # fmt: skip

RAW_DIMS = ("d_model", "d_ff", "num_layers", "num_heads")
CUSTOM_SIZE = "custom"
"""The size name of a cell whose dimensions were given raw."""


class ModelDims(msgspec.Struct, frozen=True, kw_only=True):
    """Dimensions of a Transformer language model, in elements."""

    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int
    vocab_size: int = 10_000

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            AXES[field].validate(getattr(self, field))
        _check_heads(self)


def _check_heads(dims: ModelDims | Choices) -> None:
    if dims.d_model % dims.num_heads:
        allowed = f"expected a multiple of num_heads ({dims.num_heads}), so heads are equal"
        raise SpecError("d_model", dims.d_model, allowed)


# d_model, d_ff, layers, heads
_TINY = (256, 1024, 4, 4)
_SHARED = {"tiny": _TINY, "small": (768, 3072, 12, 12), "medium": (1024, 4096, 24, 16), "large": (1280, 5120, 36, 20)}
_UNTIL_2025 = _SHARED | {"xl": (1600, 6400, 48, 25), "2.7B": (2560, 10240, 32, 32)}
_SIZES: dict[str, dict[str, tuple[int, int, int, int]]] = {
    "2024": _UNTIL_2025,
    "2025": _UNTIL_2025,
    "2026": _SHARED | {"xl": (2560, 10240, 32, 32), "10B": (4608, 12288, 50, 36)},
}


def size_names(edition: str) -> tuple[str, ...]:
    """Names of the edition's size table, smallest first; `tiny` is ours, for CPUs."""
    if edition not in _SIZES:
        raise SpecError("edition", edition, expected(edition, EDITIONS))
    return tuple(_SIZES[edition])


def dims_of(size: str, edition: str, vocab_size: int = 10_000) -> ModelDims:
    """Dimensions of a named size. Raises `SpecError` for a name that the edition does not have."""
    names = size_names(edition)
    if size not in names:
        raise SpecError("size", size, f"edition {edition} has {', '.join(names)}{did_you_mean(size, names, '; ')}")
    d_model, d_ff, num_layers, num_heads = _SIZES[edition][size]
    return ModelDims(d_model=d_model, d_ff=d_ff, num_layers=num_layers, num_heads=num_heads, vocab_size=vocab_size)


class CellSpec(axes.Choices, frozen=True, kw_only=True):
    """One cell: choices that go together."""

    def __post_init__(self) -> None:
        for field, accepted, validate in _CHECKS:
            if (value := getattr(self, field)) not in accepted:
                validate(value)
                accepted.add(value)
        _check_heads(self)
        for rule in RULES:
            for refusal in () if rule.in_logs else rule.refusals(self):
                raise refusal

    @property
    def own_code(self) -> tuple[str, ...]:
        """Names of the user's own code in it, without sizes of buckets."""
        named = (getattr(self, field) for field, axis in AXES.items() if axis.own)
        return tuple(sharing_of(name).name for name in named if is_imported(name))

    @property
    def brings_own_code(self) -> bool:
        """True if it runs code of the user's."""
        return bool(self.own_code)

    @property
    def checked_by(self) -> str:
        """The user's model that results are compared with; empty for none."""
        return "" if self.check in AXES["check"].values else self.check

    @property
    def is_alone(self) -> bool:
        """True if it is one operation, with no model around it."""
        return self.workload != LANGUAGE_MODEL

    @property
    def is_collective(self) -> bool:
        """True if it is one operation of several ranks, which computes nothing."""
        return self.workload == "collective"

    @property
    def backend_in_use(self) -> str:
        """Its backend of communication, with ``auto`` resolved."""
        return self.backend if self.backend != "auto" else "nccl" if self.device.startswith("cuda") else "gloo"

    @property
    def method(self) -> str:
        """The way in which an operation alone is computed, such as ``naive`` or ``rmsnorm``; empty of a model."""
        return getattr(self, self.workload) if self.is_alone else ""

    def arguments_given(self, field: str) -> Pairs:
        """Arguments of a user's own model, attention or optimizer; empty where it is not the user's own."""
        given: Pairs = getattr(self, field)
        return given if is_imported(getattr(self, ARGUMENTS[field])) else ()

    @property
    def variants(self) -> tuple[str, ...]:
        """Choices other than the defaults in a few words each, such as ``sdpa`` and ``compiled``."""
        found: dict[str, tuple[str, ...]] = {self.workload: (short(self.method),)} if self.is_alone else {}
        for field, axis in AXES.items():
            if axis.said and (value := getattr(self, field)) != axis.default and axis.counts_in(self):
                found[field] = axis.said(value)
        return tuple(itertools.chain.from_iterable(found.values()))

    @property
    def head_dim(self) -> int:
        """Width of a query, a key and a value; of a norm alone that of a row."""
        return self.d_model // self.num_heads

    @property
    def message_bytes(self) -> int:
        """Bytes of a collective's whole array; 0 of other workloads."""
        return message_bytes((self.d_model, self.d_ff), self.precision, self.ranks) if self.is_collective else 0

    @property
    def dims(self) -> ModelDims:
        return ModelDims(**{field: getattr(self, field) for field in ModelDims.__struct_fields__})

    @property
    def size_label(self) -> str:
        """The size's name; of a custom size with its dimensions, ``custom d_model/d_ff/layers/heads``."""
        if self.size != CUSTOM_SIZE:
            return self.size
        return f"{self.size} {self.d_model}/{self.d_ff}/{self.num_layers}/{self.num_heads}"

    @property
    def rank_batch_size(self) -> int:
        """Sequences of each rank in a step."""
        return self.batch_size // self.ranks if self.batch_is == "global" else self.batch_size

    @property
    def tokens_per_step(self) -> int:
        """Tokens of each rank in a step; a collective has none."""
        return 0 if self.is_collective else self.rank_batch_size * self.context_length

    @property
    def is_window(self) -> bool:
        """True if its measured steps are enqueued back to back and timed by the device's clock."""
        return self.sync == "pipelined" or self.timer == "do_bench"

    @property
    def synchronised(self) -> str:
        """Its mode of synchronisation; timer ``do_bench`` has its own, ``once`` after all steps."""
        return "once" if self.timer == "do_bench" else self.sync

    @property
    def warmup_is_open(self) -> bool:
        """True if the steps themselves decide how many warm-up steps there are, `warmup_steps` at most."""
        return self.warmup_auto or self.warmup_for is not None

    @property
    def steps_are_open(self) -> bool:
        """The same of measured steps."""
        return self.steps_auto is not None or self.steps_for is not None

    def warmup_steps_of(self, step_s: float) -> int:
        """Warm-up steps if a step takes so many seconds, at most."""
        return self.warmup_steps if self.warmup_for is None else steps_in(self.warmup_for, step_s, self.warmup_steps)

    def measure_steps_of(self, step_s: float) -> int:
        """Measured steps if a step takes so many seconds, at most."""
        return self.measure_steps if self.steps_for is None else steps_in(self.steps_for, step_s, self.measure_steps)

    def steps_s(self, step_s: float | None) -> float | None:
        """Seconds of all its steps if one takes so many; by time at least, if that is unknown. None is unknown."""
        warmup_s = least_s(self.warmup_steps, self.warmup_for, step_s)
        measured_s = least_s(self.measure_steps, self.steps_for, step_s)
        return None if warmup_s is None or measured_s is None else warmup_s + measured_s

    @property
    def total_steps(self) -> int:
        """Warm-up and measured steps together, at most."""
        return self.warmup_steps + self.measure_steps

    @property
    def heading(self) -> str:
        """The title with the batch size, if that is known."""
        if self.recording or self.is_collective:
            return self.title
        whose = f" {self.batch_is}" if self.ranks > 1 else ""
        return f"{self.title} · batch {self.batch_size}{whose}"

    @property
    def title(self) -> str:
        """A heading that tells this cell from its neighbours."""
        if self.recording:
            return f"{self.recording} · {self.device}"
        if self.is_collective:
            return " · ".join((*self.variants[:1], self.size, self.precision, self.device, *self.variants[1:]))
        kind = (self.workload,) if self.is_alone else ()
        usual = (self.size_label, f"ctx {self.context_length}", self.pass_, self.precision, self.device)
        return " · ".join((*kind, *usual, *self.variants))


def recorded_spec(recording: str, device: str) -> CellSpec:
    """The cell of what others recorded: its name and its device; every other choice stands in for what is unknown."""
    stand_ins: dict[str, Any] = dict.fromkeys((*RAW_DIMS, "vocab_size", "context_length", "batch_size"), 1)
    stand_ins |= {"d_model": 2, "size": CUSTOM_SIZE, "edition": "2026", "arch": "swiglu-rope", "pass_": "forward"}
    stand_ins |= {"precision": "fp32", "warmup_steps": 0, "measure_steps": 1}
    return CellSpec(**stand_ins, device=device, recording=recording)


def known_choices(spec: CellSpec) -> dict[str, Any]:
    """The choices of a cell as plain data, None for those that `has_choice` denies."""
    found: dict[str, Any] = msgspec.to_builtins(spec)
    if not has_stand_ins(spec):
        return found
    known = {axis.name for field, axis in AXES.items() if has_choice(spec, field)}
    return {name: value if name in known else None for name, value in found.items()}


def has_stand_ins(spec: CellSpec) -> bool:
    """True of a recording and of a collective: choices stand in for those that the cell does not have."""
    return bool(spec.recording) or spec.is_collective


def has_choice(spec: CellSpec, field: str) -> bool:
    """True if a cell's choice or dimension is its own, and no stand-in."""
    axis = AXES[field]
    if spec.recording:
        return axis.recorded
    return not spec.is_collective or (axis.is_in(spec.workload) and field not in RAW_DIMS)


_CHECKS = tuple(
    (field, set[Any](), axis.validate)
    for field, axis in AXES.items()
    if axis.is_number or (axis.kind is str and axis.values) or axis.check
)
"""Fields to check, each with the values that were checked before: a session has thousands of cells with the same."""
