"""Contents of a precision report: dtypes of a cell's model and of a toy model, and an experiment in adding up."""

import msgspec

from cs336_tui.config.spec import CellSpec


class Accumulation(msgspec.Struct, frozen=True):
    """0.01 added 1,000 times: the dtypes of accumulator and addend, and the result, which should be 10."""

    accumulator: str
    addend: str
    converted: bool
    """True if addends are converted to the accumulator's dtype first."""
    result: float

    @property
    def error(self) -> float:
        return self.result - 10.0


class ToyDtypes(msgspec.Struct, frozen=True, kw_only=True):
    """dtypes inside the course's toy model under autocast, read by hooks."""

    autocast: str
    parameters: str
    first_layer_output: str
    layer_norm_output: str
    logits: str
    loss: str
    gradients: str
    loss_function: str = "cross-entropy"
    gradient_of: dict[str, str] = {}
    """Of each parameter, by its name; empty in old logs."""


class ModuleDtypes(msgspec.Struct, frozen=True, kw_only=True):
    """dtypes of `count` modules of a class, alike in repeated layers (`path` as ``layers.*.attention.query``)."""

    path: str
    module: str
    count: int
    parameters: str
    inputs: str
    output: str
    gradients: str
    """Of its parameters; empty without parameters or backward."""


class PrecisionReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The accumulation experiment, the toy model for each autocast dtype, and the cell's own model. No cell changes the
    first two."""

    spec: CellSpec
    device_name: str
    torch: str
    accumulation: tuple[Accumulation, ...]
    toy: tuple[ToyDtypes, ...]
    """On the cell's device."""
    modules: tuple[ModuleDtypes, ...]
    logits: str
    loss: str
    note: str = ""
    toy_by_rules: tuple[ToyDtypes, ...] = ()
    """By the rules of CUDA's autocast, where the device is no CUDA GPU; empty in old logs."""
    rules: str = ""
    """Source of these rules."""
    toy_note: str = ""
    """Such as that the device lacks an autocast; in old logs a part of `note`."""
