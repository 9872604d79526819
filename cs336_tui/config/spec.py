"""What to run: model dimensions and one cell (`CellSpec`).

No invalid `CellSpec` can exist: building one checks every field and raises `SpecError`,
which names the field, the value and what is allowed.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

import msgspec

from cs336_tui.config import variants
from cs336_tui.config.variants import (
    CROSS_ENTROPY,
    REFERENCE,
    Compile,
    CudaGraph,
    Work,
    is_imported,
    is_well_formed,
    likely_meant,
    option_of,
    short,
)

Pass = Literal["inference", "forward", "backward", "forward+backward", "train-step"]
Precision = Literal["fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16", "fp8-mixed"]
Arch = Literal["swiglu-rope", "gelu-learned"]
Sync = Literal["each-step", "pipelined"]
Edition = Literal["2024", "2025", "2026"]

PASSES: tuple[str, ...] = get_args(Pass)
PRECISIONS: tuple[str, ...] = get_args(Precision)
ARCHES: tuple[str, ...] = get_args(Arch)
SYNCS: tuple[str, ...] = get_args(Sync)
EDITIONS: tuple[str, ...] = get_args(Edition)

FLOAT8_MULTIPLE = 16
"""What the hardware's float8 products want every dimension to be a multiple of."""
_USUAL_NAMES = {
    "float32": "fp32", "float": "fp32", "fp32-true": "fp32", "32": "fp32", "tensorfloat32": "tf32",
    "bfloat16": "bf16 or bf16-mixed", "bf16-true": "bf16", "fp16": "fp16-mixed", "float16": "fp16-mixed",
    "half": "fp16-mixed", "fp16-true": "fp16-mixed", "amp": "bf16-mixed or fp16-mixed", "mixed": "bf16-mixed",
    "fp8": "fp8-mixed", "float8": "fp8-mixed", "e4m3": "fp8-mixed", "hybrid": "fp8-mixed", "fp64": "fp32",
    "float64": "fp32", "double": "fp32",
}  # fmt: skip
"""What other tools call a precision, and what it is here, or what comes nearest."""
_NO_TRAINING = ("int8", "int4", "fp4", "nvfp4", "mxfp4", "mxfp6", "mxfp8", "fp6", "nf4")
"""Formats in which torch has no training step."""

CUSTOM_SIZE = "custom"
"""The size name of a cell whose dimensions were given raw."""

MAX_COUNT = 2**31 - 1


_OPTIONS = {"annotations": "annotate"}
"""What fields are called where a person gives them, if otherwise than here."""


class SpecError(ValueError):
    """A value that cannot be run: names the field, the value and what is allowed, in one line."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        name = _OPTIONS.get(field, field.replace("_", " "))
        super().__init__(" ".join(f"{name} {value!s}: {allowed}".splitlines()))


def _one_of(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SpecError(field, value, f"expected one of {', '.join(allowed)}")


def _one_of_or_imported(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed and not is_well_formed(value):
        meant = likely_meant(value)
        named = f"expected one of {', '.join(allowed)}, or package.module:name for one of your own"
        raise SpecError(field, value, meant or named)


def _precision(name: str) -> None:
    named = ", ".join(PRECISIONS)
    if name.lower() in _NO_TRAINING:
        raise SpecError("precision", name, f"not offered: torch has no training step in it; expected one of {named}")
    if name not in PRECISIONS and (near := _USUAL_NAMES.get(name.lower())):
        raise SpecError("precision", name, f"choose {near}; expected one of {named}")
    _one_of("precision", name, PRECISIONS)


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


class CellSpec(msgspec.Struct, frozen=True, kw_only=True, rename={"pass_": "pass"}):
    """One cell: a model, a pass, a precision and a device, timed for a number of steps.

    `seed` fixes parameters and tokens. `threads` is torch's intra-op thread count, None for torch's own default.
    With `warmup_auto` warm-up goes on until steps are steady, and `warmup_steps` is the most. With `steps_auto`, a
    share, measuring goes on until the confidence interval of the mean is narrower than that share of the mean, and
    `measure_steps` is the most.

    `model`, `attention`, `optimizer` and `loss` are names of `config.variants`, or ``package.module:name`` of a
    user's own, looked for in the folders of `model_path` too; `model_args` are arguments that such a model wants beside
    the dimensions. Of such a model, `annotations` say which functions make up which named range, as pairs of the
    range and ``package.module:function``. `checkpoint` recomputes activations in groups of so many blocks, 0 for not at
    all.

    With workload ``attention`` the width of queries, keys and values is `d_model`, and `context_length` the length of
    the sequences; `causal` is whether a token sees its past only, as in a language model it always does.
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
    workload: Work = "language-model"
    causal: bool = True
    model: str = REFERENCE
    model_args: tuple[tuple[str, str], ...] = ()
    model_path: tuple[str, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    attention: str = "naive"
    optimizer: str = "adamw"
    loss: str = CROSS_ENTROPY
    compile: Compile = "off"
    checkpoint: int = 0
    cuda_graph: CudaGraph = "off"

    def __post_init__(self) -> None:
        _one_of("edition", self.edition, EDITIONS)
        _one_of("arch", self.arch, ARCHES)
        _one_of("pass", self.pass_, PASSES)
        _precision(self.precision)
        _one_of("sync", self.sync, SYNCS)
        dims = self.dims
        rotates = self.arch == "swiglu-rope" and self.workload == "language-model" and not is_imported(self.model)
        if rotates and dims.d_model // dims.num_heads % 2:
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
        self._check_variants()

    def _check_variants(self) -> None:
        _one_of("workload", self.workload, variants.WORKLOADS)
        _one_of("compile", self.compile, variants.COMPILES)
        _one_of("cuda_graph", self.cuda_graph, variants.CUDA_GRAPHS)
        _one_of_or_imported("model", self.model, (REFERENCE,))
        _one_of_or_imported("attention", self.attention, variants.ATTENTIONS)
        _one_of_or_imported("optimizer", self.optimizer, variants.OPTIMIZERS)
        _one_of_or_imported("loss", self.loss, (CROSS_ENTROPY,))
        for argument, text in self.model_args:
            if (option := option_of(argument)) and is_imported(self.model):
                why = f"{argument} comes from {option}; leave --model-arg {argument} out"
                raise SpecError("model_args", f"{argument}={text}", why)
        for range_, function in self.annotations:
            _one_of("annotations", range_, variants.RANGES)
            if not is_well_formed(function):
                raise SpecError("annotations", f"{range_}={function}", "expected RANGE=package.module:function")
        _count("checkpoint", self.checkpoint, 0)
        if self.checkpoint > self.num_layers:
            raise SpecError("checkpoint", self.checkpoint, f"expected at most the number of layers, {self.num_layers}")
        if is_imported(self.model) and self.attention != "naive":
            raise SpecError("attention", self.attention, f"{short(self.model)} brings its own attention; leave it out")
        if self.workload == "attention":
            self._check_attention()
        if self.cuda_graph != "off":
            self._check_cuda_graph()
        if self.precision == "fp8-mixed":
            self._check_float8()

    def _check_attention(self) -> None:
        """What attention alone has nothing of."""
        if self.pass_ == "train-step":
            raise SpecError("pass", self.pass_, "attention alone has nothing to train; choose another pass")
        alone = {"model": REFERENCE, "optimizer": "adamw", "loss": CROSS_ENTROPY, "checkpoint": 0}
        for field, usual in alone.items():
            if (value := getattr(self, field)) != usual:
                raise SpecError(field, value, "workload attention has none; leave it out")

    def _check_cuda_graph(self) -> None:
        """What cannot be captured."""
        if self.pass_ == "backward":
            raise SpecError("pass", self.pass_, "cannot be captured without its forward; choose forward+backward")
        if self.pass_ == "train-step" and self.precision == "fp16-mixed":
            raise SpecError("precision", self.precision, "its gradient scaler waits for the device: not to be captured")
        if self.compile in ("reduce-overhead", "max-autotune"):
            raise SpecError("compile", self.compile, "captures CUDA graphs itself; choose default or off")

    def _check_float8(self) -> None:
        """Where there are no linear layers that could run in it; of a model that is imported, building it tells."""
        if self.workload == "attention":
            raise SpecError("precision", self.precision, "attention alone has no linear layers; choose bf16-mixed")
        for field in ("d_model", "d_ff") if not is_imported(self.model) else ():
            if (width := getattr(self, field)) % FLOAT8_MULTIPLE:
                raise SpecError(field, width, f"precision fp8-mixed needs multiples of {FLOAT8_MULTIPLE}")

    @property
    def brings_own_code(self) -> bool:
        """Whether running it imports something of the user's."""
        return any(map(is_imported, (self.model, self.attention, self.optimizer, self.loss)))

    @property
    def args_given(self) -> tuple[str, ...]:
        """What a model of the user's is given beside its dimensions, such as ``dropout=0.1``; else nothing."""
        return tuple(f"{name}={value}" for name, value in self.model_args) if is_imported(self.model) else ()

    @property
    def variants(self) -> tuple[str, ...]:
        """What is not as usual, in a few words each, such as ``sdpa`` and ``compiled``."""
        found = [short(self.model), *self.args_given] if is_imported(self.model) else []
        found += [short(self.attention)] if self.attention != "naive" or self.workload == "attention" else []
        found += ["not causal"] if not self.causal and self.workload == "attention" else []
        if self.compile != "off":
            found.append("compiled" if self.compile == "default" else f"compiled {self.compile}")
        found += [f"checkpoint every {self.checkpoint}"] if self.checkpoint else []
        found += [short(self.optimizer)] if self.optimizer != "adamw" and self.pass_ == "train-step" else []
        found += [short(self.loss)] if self.loss != CROSS_ENTROPY else []
        found += ["CUDA graph"] if self.cuda_graph != "off" else []
        return tuple(found)

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
    def size_label(self) -> str:
        """The size's name; a custom size is told by its dimensions: ``custom d_model/d_ff/layers/heads``."""
        if self.size != CUSTOM_SIZE:
            return self.size
        return f"{self.size} {self.d_model}/{self.d_ff}/{self.num_layers}/{self.num_heads}"

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
        kind = ("attention",) if self.workload == "attention" else ()
        usual = (self.size_label, f"ctx {self.context_length}", self.pass_, self.precision, self.device)
        return " · ".join((*kind, *usual, *self.variants))
