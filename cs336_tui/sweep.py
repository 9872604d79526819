"""Choices whose product is run: what the panes, the flags and a preset hold."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec

from cs336_tui.sizes import dims_of
from cs336_tui.spec import CUSTOM_SIZE, ModelDims, RunSpec, SpecError, canonical_device

UNRESOLVED = ("auto", "every")
"""Names that only a machine can turn into devices: its best one, and all of them."""


class Sweep(msgspec.Struct, frozen=True, kw_only=True, rename={"passes": "pass"}):
    """Choices whose product is run, smallest models first.

    `sizes` are names of the edition's table; `dims`, when given, replaces them by one custom size.
    `devices` may hold ``auto`` and ``every``; they must be resolved (`with_devices`) before `cells`.
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

    def with_devices(self, devices: tuple[str, ...]) -> Sweep:
        return msgspec.structs.replace(self, devices=devices)

    def __len__(self) -> int:
        sizes = 1 if self.dims else len(self.sizes)
        axes = (self.devices, self.precisions, self.contexts, self.batches, self.warmups, self.passes)
        count = sizes
        for axis in axes:
            count *= len(axis)
        return count

    def cells(self) -> tuple[RunSpec, ...]:
        """The product, smallest models first. Raises the first `SpecError` of `problems`."""
        cells: list[RunSpec] = []
        for cell in self._each():
            if isinstance(cell, SpecError):
                raise cell
            cells.append(cell)
        return tuple(cells)

    def problems(self) -> tuple[SpecError, ...]:
        """Everything wrong with the choices, each said once; empty when `cells` will succeed."""
        found = {str(cell): cell for cell in self._each() if isinstance(cell, SpecError)}
        return tuple(found.values())

    def _each(self) -> Iterator[RunSpec | SpecError]:
        axes: dict[str, tuple[Any, ...]] = {
            "device": tuple(map(_one_spelling, self.devices)),
            "precision": self.precisions,
            "size": (CUSTOM_SIZE,) if self.dims else self.sizes,
            "context_length": self.contexts,
            "batch_size": self.batches,
            "warmup_steps": self.warmups,
            "pass": self.passes,
        }
        for field, values in axes.items():
            if not values:
                yield SpecError(field, "(none)", "choose at least one")
            if len(set(values)) != len(values):
                yield SpecError(field, ",".join(map(str, values)), "names the same value twice")
        for device, precision, size, context, batch, warmup, pass_ in itertools.product(*axes.values()):
            try:
                dims = self.dims or dims_of(size, self.edition, self.vocab_size)
                yield RunSpec(
                    size=size,
                    edition=self.edition,  # type: ignore[arg-type]
                    arch=self.arch,  # type: ignore[arg-type]
                    d_model=dims.d_model,
                    d_ff=dims.d_ff,
                    num_layers=dims.num_layers,
                    num_heads=dims.num_heads,
                    vocab_size=dims.vocab_size,
                    context_length=context,
                    batch_size=batch,
                    pass_=pass_,
                    precision=precision,
                    device=canonical_device(device),
                    sync=self.sync,  # type: ignore[arg-type]
                    warmup_steps=warmup,
                    measure_steps=self.steps,
                    seed=self.seed,
                    threads=self.threads,
                )
            except SpecError as error:
                yield error

    def command(self, ddof: int = 1) -> str:
        """The headless command line that runs this sweep again; `ddof` is named when it is not the default."""

        def comma(values: tuple[object, ...]) -> str:
            return ",".join(map(str, values))

        words = ["cs336-tui", "bench"]
        if dims := self.dims:
            for field in ("d_model", "d_ff", "num_layers", "num_heads", "vocab_size"):
                words += [f"--{field.replace('_', '-')}", str(getattr(dims, field))]
        else:
            words += ["--size", comma(self.sizes)]
            if self.vocab_size != Sweep().vocab_size:
                words += ["--vocab-size", str(self.vocab_size)]
        words += ["--context", comma(self.contexts), "--batch", comma(self.batches)]
        words += ["--pass", comma(self.passes), "--precision", comma(self.precisions)]
        words += ["--warmup", comma(self.warmups), "--steps", str(self.steps), "--device", comma(self.devices)]
        words += ["--edition", self.edition, "--arch", self.arch, "--sync", self.sync, "--seed", str(self.seed)]
        if self.threads is not None:
            words += ["--threads", str(self.threads)]
        if ddof != 1:
            words += ["--ddof", str(ddof)]
        return " ".join(words)


def _one_spelling(device: str) -> str:
    """The canonical name, so that the same device is not run twice; an unknown name is kept for `RunSpec` to refuse."""
    try:
        return canonical_device(device)
    except SpecError:
        return device
