"""The kinds of reports on cells, with their commands and tabs, the request of one, and the contents of all kinds but
that of kernels. Sizes are bytes.

A child process of its own makes each, never while a cell is timed; `cs336_tui.analysis` derives tables.
"""

from collections.abc import Mapping
from typing import Literal, cast

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.sweep import AskedReport
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.events.prediction import MemoryBlock, PhaseSpan, Prediction, Site, TensorForm


class SavedTensor(msgspec.Struct, frozen=True):
    """Tensors that one autograd node (``MulBackward0``) keeps within one Transformer block, counted once a storage."""

    node: str
    range: str
    dtype: str
    shape: tuple[int, ...]
    count: int
    bytes: int


class SavedBlock(msgspec.Struct, frozen=True):
    """Memory that a module (``layers.0``) keeps for its backward, without parameters: all, the largest first."""

    module: str
    bytes: int
    contributors: tuple[SavedTensor, ...]


class BlockMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Live bytes round the backward of a Transformer block (``layers.0``), or of blocks that are recomputed together.
    It begins when the gradient of the block's output is known and ends when that of its input is."""

    module: str
    forward_bytes: int
    """Change of live bytes over its forward, its output included."""
    before_bytes: int
    after_bytes: int
    peak_bytes: int
    """The most that was live in between."""
    gradient_bytes: int
    """Of the gradients of its parameters, as many bytes as these that are trained."""


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Every allocation of one recorded step, after warm-up, in order of birth. The timeline counts events: block `i`
    lives at events ``born[i] <= event < died[i]``, from 0 if before the step, to the end when `died` is -1."""

    spec: CellSpec
    recorder: Literal["CUDA allocator history", "CPU profiler", "tensors"]
    """The source of the events. ``tensors`` sees only what operations return, no workspaces."""
    device_name: str
    torch: str
    events: int
    bytes: tuple[int, ...]
    born: tuple[int, ...]
    died: tuple[int, ...]
    categories: tuple[int, ...]
    site_of: tuple[int, ...]
    """Places in `sites`, as `categories` in `ALL_CATEGORIES`."""
    sites: tuple[Site, ...]
    phases: tuple[PhaseSpan, ...]
    peak_bytes: int
    peak_event: int
    forward_end_bytes: int
    allocator_peak_bytes: int | None = None
    """The allocator's own peak over the same step; None if it does not count."""
    activation_peak_bytes: int | None = None
    """As in `Prediction`; None in old logs."""
    saved: tuple[SavedBlock, ...] = ()
    """Per Transformer block; empty when the pass has no backward."""
    blocks: tuple[BlockMemory, ...] = ()
    """In the model's order; empty without a backward or a list of blocks, and in old logs."""
    prediction: Prediction | None = None
    snapshot: str | None = None
    """File with CUDA's memory snapshot, for pytorch.org/memory_viz."""
    note: str = ""
    form_of: tuple[int, ...] = ()
    """Of each block, its place in `forms`; -1 if only its size is known. Empty: of all."""
    forms: tuple[TensorForm, ...] = ()

    @property
    def subject(self) -> str:
        """The word for all of it together: ``step`` or ``recording``."""
        return "recording" if self.spec.recording else "step"


class OomReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The memory of a cell that did not fit, from a second attempt after its end."""

    spec: CellSpec
    phase: str | None
    """``building``, or the phase of the step in which memory ran out."""
    request_bytes: int | None
    live_bytes: int
    by_category: dict[str, int]
    largest: tuple[MemoryBlock, ...]
    """At the moment of failure, largest first; at most 20."""
    observed: bool
    """True if the second attempt ran out of memory too, so that the blocks were seen; else they are predicted."""
    capacity_bytes: int | None
    prediction: Prediction | None
    note: str = ""


class RankMoment(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one rank at one moment, in bytes."""

    rank: int
    step: int
    """Of those with an optimizer step, from 1; 0 before the first."""
    moment: str
    """``initialised``, ``after forward`` (with the loss), ``before optimizer``, ``after optimizer``."""
    by_category: dict[str, int]
    """``parameters``, ``gradients``, ``optimizer_state``, ``buffers`` (with the batch), ``activations`` (with logits
    and loss) and ``communication`` of this rank: of shards its own. Old logs lack the last two."""
    live_bytes: int | None = None
    """All that the allocator has handed out; None if it does not tell."""
    peak_bytes: int | None = None
    """The most since the moment before."""

    @property
    def rest_bytes(self) -> int | None:
        """Bytes live beside the categories: what no tensor has that Python knows, such as rounding and workspaces."""
        return None if self.live_bytes is None else self.live_bytes - sum(self.by_category.values())


class RankMemoryReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The memory of each rank of a cell at the moments of its first and a later step, rank by rank."""

    spec: CellSpec
    device_name: str
    torch: str
    recorder: Literal["CUDA allocator", "CPU profiler", "tensors"]
    """The source of `live_bytes` and `peak_bytes`; ``tensors``: there are none."""
    moments: tuple[RankMoment, ...]
    prediction: Prediction | None = None
    note: str = ""


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
    "rank-memory": ReportType("Memory of each rank", "memory", RankMemoryReport),
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
