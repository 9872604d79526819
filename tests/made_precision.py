"""A precision report, made up but plausible, for tests of its consumers."""

from typing import Any

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.reports import Accumulation, ModuleDtypes, PrecisionReport, ToyDtypes
from tests.samples import a_spec


def a_precision_report(spec: CellSpec | None = None, **changes: Any) -> PrecisionReport:
    """A report on a cell in bf16-mixed on a GPU, with `changes`."""
    fields: dict[str, Any] = {
        "spec": spec or a_spec(precision="bf16-mixed"),
        "device_name": "NVIDIA H100 80GB HBM3",
        "torch": "2.13.0",
        "accumulation": (
            Accumulation("float32", "float32", False, 10.000133514404297),
            Accumulation("float16", "float16", False, 9.953125),
            Accumulation("float32", "float16", False, 10.00213623046875),
            Accumulation("float32", "float16", True, 10.00213623046875),
        ),
        "toy": tuple(map(_toy, ("float16", "bfloat16"))),
        "modules": (
            _module("model", "Transformer", "", "int64", "bfloat16"),
            _module("layers.*", "Block", "", "float32", "float32", count=12),
            _module("layers.*.attention.query", "Linear", "float32", "float32", "bfloat16", count=12),
            _module("layers.*.attention.score", "method", "", "bfloat16+float32", "float32", count=12),
            _module("head", "Linear", "float32", "float32", "bfloat16"),
        ),
        "logits": "bfloat16",
        "loss": "float32",
    }
    return PrecisionReport(**(fields | changes))


def a_cpu_report(spec: CellSpec | None = None, **changes: Any) -> PrecisionReport:
    """A report on a CPU, whose autocast leaves layer norm in half precision, with `changes`."""
    ruled = tuple(map(_toy, ("float16", "bfloat16")))
    fields: dict[str, Any] = {
        "device_name": "CPU (AVX512)",
        "toy": tuple(msgspec.structs.replace(toy, layer_norm_output=toy.autocast) for toy in ruled),
        "toy_by_rules": ruled,
        "rules": "aten/src/ATen/autocast_mode.h of torch 2.13",
    }
    return a_precision_report(spec or a_spec(device="cpu", precision="bf16-mixed"), **(fields | changes))


def _toy(autocast: str) -> ToyDtypes:
    return ToyDtypes(
        autocast=autocast,
        parameters="float32",
        first_layer_output=autocast,
        layer_norm_output="float32",
        logits=autocast,
        loss="float32",
        gradients="float32",
        loss_function="mean squared error",
        gradient_of=dict.fromkeys(("fc1.weight", "ln.weight", "ln.bias", "fc2.weight"), "float32"),
    )


def _module(path: str, module: str, parameters: str, inputs: str, output: str, count: int = 1) -> ModuleDtypes:
    return ModuleDtypes(
        path=path, module=module, count=count, parameters=parameters, inputs=inputs, output=output, gradients=parameters
    )
