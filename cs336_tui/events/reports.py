"""The kinds of reports on cells, with their commands and tabs, the request of one, and the contents of two kinds.

A child process of its own makes each, never while a cell is timed; `cs336_tui.analysis` derives tables.
"""

from collections.abc import Mapping
from typing import Literal, cast

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.sweep import AskedReport
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.events.memory_report import MemoryReport, OomReport, RankMemoryReport


class Sketch(msgspec.Struct, frozen=True):
    """The norm of a tensor and its buckets, float32 in little-endian order; both are of its finite elements."""

    norm: float
    buckets: bytes
    not_finite: int = 0
    """Elements that are infinite or no number."""


class PositionsSketch(msgspec.Struct, frozen=True):
    """The logits of the token positions from `first` on, up to `end`, of all sequences."""

    first: int
    end: int
    sketch: Sketch


class ParameterSketch(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter, by its name in the model as written."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    value: Sketch
    """Of its first elements, before the pass."""
    gradient: Sketch | None = None
    """None without a backward, and of a parameter that gets none."""


class AgreementReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One forward, and one backward if the pass has it, of a cell's model on its own tokens."""

    spec: CellSpec
    device_name: str
    torch: str
    shape: tuple[int, ...]
    """Of the logits."""
    dtype: str
    """Of the logits."""
    logits: tuple[PositionsSketch, ...]
    parameters: tuple[ParameterSketch, ...]
    loss: float | None = None
    """None without a loss, or if it is not finite."""
    draws: bool = False
    """True if the pass drew random numbers, which fall differently in another implementation."""
    loss_scale: float = 1.0
    """The gradients are those of the loss times this, divided by it afterwards."""


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


ReportKind = AskedReport | Literal["rank-memory", "oom", "agreement"]
Report = KernelReport | MemoryReport | RankMemoryReport | PrecisionReport | OomReport | AgreementReport


class ReportType(msgspec.Struct, frozen=True):
    """A kind of report, for commands, tabs and exports."""

    title: str
    """Of its tables in a session's summary."""
    tab: str
    """The tab that shows it."""
    content: type[Report] | None = None
    """Made by a child process (`worker.measure.report`). None: worked out from the cells (`export.reports`)."""
    command: str = ""
    """One line about the command that makes it. Empty: no command and no key does."""
    passes: tuple[str, ...] = ("train-step",)
    """That the command looks at if no pass is named."""


REPORTS: Mapping[str, ReportType] = {
    "race": ReportType("Race", "race"),
    "ab": ReportType("Two cells in turns", "compare"),
    "predictions": ReportType("Predictions", "estimate"),
    "kernels": ReportType(
        "Kernels", "kernels", KernelReport, "Profile one step: kernels by time, kind, phase and part of the model."
    ),
    "kernels-over-cells": ReportType("Kernels over cells", "kernels"),
    "memory": ReportType(
        "Memory",
        "memory",
        MemoryReport,
        "Record one step: memory by category, and the lines that allocated it.",
        ("forward", "train-step"),
    ),
    "rank-memory": ReportType(
        "Memory of each rank",
        "memory",
        RankMemoryReport,
    ),
    "precision": ReportType(
        "Precision",
        "precision",
        PrecisionReport,
        "dtypes in the model (by hooks) and in a toy model, and accumulation error.",
    ),
    "mixed-precision": ReportType("Mixed precision", "precision"),
    "roofline": ReportType("How close to the limit", "roofline"),
    "oom": ReportType("Out of memory", "memory", OomReport),
    "agreement": ReportType("Same logits and gradients", "race", AgreementReport),
}
"""Every report, by the key that `export --report` takes, in the order in which a summary has them."""
ASKED_FOR: tuple[ReportKind, ...] = tuple(cast(ReportKind, key) for key, type_ in REPORTS.items() if type_.command)
"""The reports that a command and a key of their tab make."""


class ReportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a report. `folder` is for its files; None: it leaves none."""

    kind: ReportKind
    spec: CellSpec
    cell: int | None = None
    """The session's cell that it is about, if there is one."""
    folder: str | None = None
    capacity_bytes: int | None = None
    failed_phase: str | None = None
    failed_request_bytes: int | None = None
    """As the cell reported it, for `oom`, with the device's capacity."""
