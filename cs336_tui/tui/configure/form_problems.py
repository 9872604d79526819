"""What is wrong with a sweep, at the cost of the sum of its choices where its cells are their product."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from cs336_tui.config.spec import MAX_COUNT, ModelDims, SpecError
from cs336_tui.config.sweep import UNRESOLVED, Sweep
from cs336_tui.config.variants import is_imported
from cs336_tui.events.environment import Environment

_PLAIN = Sweep(devices=("cpu",), passes=("forward",))
_DEEP = ModelDims(d_model=2, d_ff=1, num_layers=MAX_COUNT, num_heads=1)


def problems_of(sweep: Sweep, environment: Environment | None) -> Iterator[SpecError]:
    """Everything that is wrong, a problem perhaps more than once. Without an environment every device can do all."""
    for part in _parts(sweep):
        yield from part.problems()
    yield from _device_problems(sweep, environment)


def _parts(sweep: Sweep) -> Iterator[Sweep]:
    """Sweeps that together have the problems of `sweep`, apart from its devices', each with one part of its choices.

    A rule of `CellSpec` that joins two choices is met by a part with both, of which one is cut down to the values that
    the rule is about, so that the product need not be walked.
    """
    plain = msgspec.structs.replace(_PLAIN, workload=sweep.workload)

    def part(*fields: str, **changes: Any) -> Sweep:
        return msgspec.structs.replace(plain, **{field: getattr(sweep, field) for field in fields} | changes)

    for fields in (
        ("sizes", "dims", "vocab_size", "edition", "arch", "head_dims"),
        ("contexts",), ("batches",), ("passes",), ("precisions",), ("warmups", "warmup_auto"),
        ("steps", "steps_auto", "sync"), ("seed",), ("threads",), ("models", "model_args", "annotations"),
        ("attentions",), ("optimizers",),
        ("loss",), ("compiles",), ("cuda_graphs",),
    ):  # fmt: skip
        yield part(*fields)
    if sweep.workload == "language-model":
        yield part("checkpoints", dims=_DEEP)
        yield part("sizes", "dims", "edition", "arch", checkpoints=(max(sweep.checkpoints, default=0),))
    if "fp8-mixed" in sweep.precisions and not all(map(is_imported, sweep.models)):
        yield part("sizes", "dims", "edition", "arch", precisions=("fp8-mixed",))
    if own := next(filter(is_imported, sweep.models), None):
        yield part("attentions", models=(own,))
    if graphs := tuple(choice for choice in sweep.cuda_graphs if choice != "off"):
        yield part("passes", cuda_graphs=graphs)
        yield part("compiles", cuda_graphs=graphs)
        if "train-step" in sweep.passes:
            yield part("precisions", cuda_graphs=graphs, passes=("train-step",))


def _device_problems(sweep: Sweep, environment: Environment | None) -> Iterator[SpecError]:
    """What is wrong with the devices, and with what each of them cannot do where they are known."""
    try:
        devices = environment.resolve(sweep.devices) if environment else _any_as_cpu(sweep.devices)
    except SpecError as error:
        yield error
        return
    unresolved = next((name for name in sweep.devices if name in UNRESOLVED), None)
    if unresolved and len(set(devices)) != len(devices):
        here = ", ".join(environment.resolve((unresolved,)) if environment else ("one of them",))
        yield SpecError("device", ",".join(sweep.devices), f"{unresolved} is {here} here, choose one of the two")
    else:
        yield from _PLAIN.with_devices(devices).problems()
    if environment is None:
        return
    for device in devices:
        for field in ("precisions", "attentions", "compiles", "cuda_graphs"):
            for value in getattr(sweep, field):
                yield from _refusal(environment, device, **{field: (value,)})


def _refusal(environment: Environment, device: str, **choice: tuple[str]) -> Iterator[SpecError]:
    """Why the machine cannot run this choice on the device."""
    try:
        environment.check(msgspec.structs.replace(_PLAIN, devices=(device,), **choice).cells()[0])
    except SpecError as error:
        yield error


def _any_as_cpu(devices: tuple[str, ...]) -> tuple[str, ...]:
    """With one stand-in for all that is not known before the machine is."""
    named = tuple(device for device in devices if device not in UNRESOLVED)
    return named or ("cpu",)
