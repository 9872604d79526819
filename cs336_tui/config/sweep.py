"""Choices whose product is run: what the panes, the flags and a preset hold."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from cs336_tui.config.sizes import dims_of
from cs336_tui.config.spec import CUSTOM_SIZE, CellSpec, ModelDims, SpecError, canonical_device
from cs336_tui.config.variants import CROSS_ENTROPY, REFERENCE, arguments_for, is_imported, short

UNRESOLVED = ("auto", "every")
"""Names that only a machine can turn into devices: its best one, and all of them."""

MOST_CELLS = 10_000
"""Of one sweep."""

Counted = Literal["warmup_steps", "measure_steps"]
USUAL_MOST: dict[Counted, int] = {"warmup_steps": 100, "measure_steps": 1000}
"""The most steps of an automatic count when nobody says how many."""
FEWEST: dict[Counted, int] = {"warmup_steps": 10, "measure_steps": 20}
"""Steps after which an automatic count is looked at first, so that no ceiling makes sense below."""
INTERVAL = 0.01
"""How narrow the interval of the mean is to be, as a share of the mean, when nobody says."""


class Auto(NamedTuple):
    """A number of steps that the steps themselves decide, `most` at most."""

    most: int


def auto_of(field: Counted, text: str) -> Auto | None:
    """What ``auto`` or ``auto:MAX`` means, in any case; None for a text that does not begin so. Raises `SpecError`."""
    word, colon, most = text.strip().partition(":")
    if word.strip().lower() != "auto":
        return None
    if not colon:
        return Auto(USUAL_MOST[field])
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*", most, re.ASCII) or int(most) < FEWEST[field]:
        raise SpecError(field, " ".join(text.split()), _AUTO_ALLOWED.format(FEWEST[field]))
    return Auto(int(most))


def auto_words(field: Counted, most: int) -> str:
    """Inverse of `auto_of`: ``auto``, or ``auto:50`` where the most is not the usual one."""
    return "auto" if most == USUAL_MOST[field] else f"auto:{most}"


def warmup_words(warmup_steps: int, warmup_auto: bool) -> str:
    """A warm-up setting in a word: ``5``, ``auto``, ``auto:50``."""
    return auto_words("warmup_steps", warmup_steps) if warmup_auto else str(warmup_steps)


def steps_words(measure_steps: int, steps_auto: float | None) -> str:
    """A number of measured steps in words, the interval's share where it is not the usual one: ``10``, ``auto 2%``."""
    if steps_auto is None:
        return str(measure_steps)
    words = auto_words("measure_steps", measure_steps)
    return words if steps_auto == INTERVAL else f"{words} {share_words(steps_auto)}"


def share_of(text: str, field: str = "interval") -> float:
    """``1%`` or ``0.01`` as a share. Raises `SpecError` on `field`."""
    share = _number(text)
    if not 0 < share < 1:
        raise SpecError(field, " ".join(text.split()) or "(empty)", "expected a share of the mean such as 1% or 0.01")
    return share


def share_words(share: float) -> str:
    """Inverse of `share_of`: ``1%``, or the share itself where a short percentage is not exact."""
    percent = f"{share * 100:g}%"
    return percent if _number(percent) == share else str(share)


def _number(text: str) -> float:
    """A number, a hundredth of it before a percent sign; not a number where the text is none."""
    match = re.fullmatch(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)(e-[0-9]+|\s*%)?\s*", text, re.ASCII)
    if match is None:
        return math.nan
    number, end = match[1], match[2] or ""
    return float(f"{number}e-2" if end.endswith("%") else f"{number}{end}")


_SHARED = (
    "edition", "arch", "sync", "seed", "threads", "warmup_auto", "steps_auto",
    "workload", "causal", "loss",
)  # fmt: skip
"""Fields that every cell of a sweep has alike, named so by both."""
_AUTO_ALLOWED = "expected auto, or auto:MAX with the most steps, at least {}"


class Sweep(msgspec.Struct, frozen=True, kw_only=True, rename={"passes": "pass"}):
    """Choices whose product is run, smallest models first.

    `sizes` are names of the edition's table; `dims`, when given, replaces them by one custom size.
    `devices` may hold ``auto`` and ``every``; they must be resolved (`with_devices`) before `cells`.
    With `warmup_auto` the one value of `warmups` is the most warm-up steps; with `steps_auto`, the share of the mean to
    which its interval is to narrow, `steps` is the most measured ones (see `CellSpec`).

    With workload ``attention`` the widths of `head_dims` take the place of sizes. `model_args` are for every model of a
    user's own, or named ``Class.name`` for one of several.
    """

    sizes: tuple[str, ...] = ("tiny",)
    dims: ModelDims | None = None
    vocab_size: int = 10_000
    contexts: tuple[int, ...] = (128,)
    batches: tuple[int, ...] = (4,)
    passes: tuple[str, ...] = ("forward", "forward+backward", "train-step")
    precisions: tuple[str, ...] = ("fp32",)
    devices: tuple[str, ...] = ("auto",)
    warmups: tuple[int, ...] = (5,)
    steps: int = 10
    edition: str = "2026"
    arch: str = "swiglu-rope"
    sync: str = "each-step"
    seed: int = 0
    threads: int | None = None
    warmup_auto: bool = False
    steps_auto: float | None = None
    workload: str = "language-model"
    head_dims: tuple[int, ...] = (64,)
    causal: bool = True
    models: tuple[str, ...] = (REFERENCE,)
    model_args: tuple[tuple[str, str], ...] = ()
    model_path: tuple[str, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    attentions: tuple[str, ...] = ("naive",)
    optimizers: tuple[str, ...] = ("adamw",)
    loss: str = CROSS_ENTROPY
    compiles: tuple[str, ...] = ("off",)
    checkpoints: tuple[int, ...] = (0,)
    cuda_graphs: tuple[str, ...] = ("off",)

    def with_devices(self, devices: tuple[str, ...]) -> Sweep:
        return msgspec.structs.replace(self, devices=devices)

    @property
    def own_code(self) -> tuple[str, ...]:
        """Names of what a user brings."""
        return tuple(filter(is_imported, (*self.models, *self.attentions, *self.optimizers, self.loss)))

    def __len__(self) -> int:
        return math.prod(map(len, self._axes().values()))

    def cells(self) -> tuple[CellSpec, ...]:
        """The product, smallest models first. Raises the first `SpecError` of `problems`."""
        cells: list[CellSpec] = []
        for cell in self._each():
            if isinstance(cell, SpecError):
                raise cell
            cells.append(cell)
        return tuple(cells)

    def problems(self) -> tuple[SpecError, ...]:
        """Everything wrong with the choices, each said once; empty when `cells` will succeed."""
        found = {str(cell): cell for cell in self._each() if isinstance(cell, SpecError)}
        return tuple(found.values())

    @property
    def _sizes(self) -> tuple[str | int, ...]:
        if self.workload == "attention":
            return self.head_dims
        return (CUSTOM_SIZE,) if self.dims else self.sizes

    def _axes(self) -> dict[str, tuple[Any, ...]]:
        """The choices whose product is run, by the field of `CellSpec` that each gives."""
        return {
            "device": tuple(map(_one_spelling, self.devices)),
            "precision": self.precisions,
            "size": self._sizes,
            "context_length": self.contexts,
            "batch_size": self.batches,
            "model": self.models,
            "attention": self.attentions,
            "checkpoint": self.checkpoints,
            "optimizer": self.optimizers,
            "compile": self.compiles,
            "cuda_graph": self.cuda_graphs,
            "warmup_steps": self.warmups,
            "pass_": self.passes,
        }

    def _each(self) -> Iterator[CellSpec | SpecError]:
        axes = self._axes()
        for field, values in axes.items():
            if not values:
                yield SpecError(field.rstrip("_"), "(none)", "choose at least one")
            if len(set(values)) != len(values):
                yield SpecError(field.rstrip("_"), ",".join(map(str, values)), "names the same value twice")
        if len(self) > MOST_CELLS:  # which would take long to look at one by one
            yield SpecError("cells", len(self), f"these choices make too many; expected at most {MOST_CELLS}")
            return
        yield from self._ceilings()
        yield from self._arguments_of_nobody()
        own = {field: getattr(self, field) for field in ("model_path", "annotations") if self.own_code}
        for values in itertools.product(*axes.values()):
            cell = dict(zip(axes, values, strict=True))
            try:
                size, dims = self._dims_of(cell.pop("size"))
                yield CellSpec(
                    size=size,
                    d_model=dims.d_model,
                    d_ff=dims.d_ff,
                    num_layers=dims.num_layers,
                    num_heads=dims.num_heads,
                    vocab_size=dims.vocab_size,
                    measure_steps=self.steps,
                    device=canonical_device(cell.pop("device")),
                    model_args=arguments_for(cell["model"], self.model_args),
                    **own,
                    **{field: getattr(self, field) for field in _SHARED},
                    **cell,
                )
            except SpecError as error:
                yield error

    def _dims_of(self, size: str | int) -> tuple[str, ModelDims]:
        """A size's name and dimensions; of attention alone those of one head, which has neither layers nor tokens."""
        if self.workload == "attention":
            width = int(size)
            dims = ModelDims(d_model=width, d_ff=1, num_layers=1, num_heads=1, vocab_size=1)
            return f"d{width}", dims
        return str(size), self.dims or dims_of(str(size), self.edition, self.vocab_size)

    def _arguments_of_nobody(self) -> Iterator[SpecError]:
        """Arguments for one of several models that is not here."""
        models = [short(model) for model in self.models if is_imported(model)]
        for name, value in self.model_args if models else ():
            if "." in name and not any(name.startswith(f"{model}.") for model in models):
                allowed = f"before the dot goes one of {', '.join(models)}, for that model alone"
                yield SpecError("model_args", f"{name}={value}", allowed)

    def _ceilings(self) -> Iterator[SpecError]:
        """What is wrong with the most steps of automatic counts."""
        if self.warmup_auto and len(self.warmups) > 1:
            values = ",".join(map(str, self.warmups))
            yield SpecError("warmup_steps", f"auto:{values}", "auto stands alone, with one most")
        automatic: list[tuple[Counted, int]] = [("warmup_steps", most) for most in self.warmups if self.warmup_auto]
        automatic += [("measure_steps", self.steps)] if self.steps_auto is not None else []
        for field, most in automatic:
            if most < FEWEST[field]:
                yield SpecError(field, auto_words(field, most), _AUTO_ALLOWED.format(FEWEST[field]))

    @property
    def warmup_words(self) -> tuple[str, ...]:
        """Each warm-up setting as it is entered."""
        return tuple(warmup_words(warmup, self.warmup_auto) for warmup in self.warmups)

    def command(self, ddof: int = 1) -> str:
        """The headless command line that runs this sweep again; `ddof` is named when it is not the default."""

        def comma(values: tuple[object, ...]) -> str:
            return ",".join(map(str, values))

        words = ["cs336-tui", "bench"]
        if self.workload == "attention":
            words += ["--workload", self.workload, "--head-dim", comma(self.head_dims)]
            words += [] if self.causal else ["--no-causal"]
        elif dims := self.dims:
            for field in ("d_model", "d_ff", "num_layers", "num_heads", "vocab_size"):
                words += [f"--{field.replace('_', '-')}", str(getattr(dims, field))]
        else:
            words += ["--size", comma(self.sizes)]
            if self.vocab_size != Sweep().vocab_size:
                words += ["--vocab-size", str(self.vocab_size)]
        words += ["--context", comma(self.contexts), "--batch", comma(self.batches)]
        words += ["--pass", comma(self.passes), "--precision", comma(self.precisions)]
        words += ["--warmup", ",".join(self.warmup_words)]
        if self.steps_auto is None:
            words += ["--steps", str(self.steps)]
        else:
            words += ["--steps", auto_words("measure_steps", self.steps), "--interval", share_words(self.steps_auto)]
        words += ["--device", comma(self.devices), *self._variant_words()]
        words += ["--edition", self.edition, "--arch", self.arch, "--sync", self.sync, "--seed", str(self.seed)]
        if self.threads is not None:
            words += ["--threads", str(self.threads)]
        if ddof != 1:
            words += ["--ddof", str(ddof)]
        return shlex.join(words)

    def _variant_words(self) -> Iterator[str]:
        """The options of everything about the model that is not as usual."""
        plain = Sweep()
        for option, field in VARIANT_OPTIONS.items():
            if (value := getattr(self, field)) != getattr(plain, field):
                yield from (option, ",".join(map(str, value)) if isinstance(value, tuple) else str(value))
        if not self.own_code:  # what is only for that does nothing
            return
        model_args = self.model_args if any(map(is_imported, self.models)) else ()
        for option, pairs in (("--model-arg", model_args), ("--annotate", self.annotations)):
            for name, value in pairs:
                yield from (option, f"{name}={value}")
        for path in self.model_path:
            yield from ("--model-path", path)


VARIANT_OPTIONS = {
    "--model": "models",
    "--attention": "attentions",
    "--checkpoint": "checkpoints",
    "--optimizer": "optimizers",
    "--loss": "loss",
    "--compile": "compiles",
    "--cuda-graph": "cuda_graphs",
}
"""Options that choose how a model is run, each with its field of `Sweep`."""


def _one_spelling(device: str) -> str:
    """The canonical name, so that no device is run twice; an unknown name is kept for `CellSpec` to refuse."""
    try:
        return canonical_device(device)
    except SpecError:
        return device
