"""Contents of reports on a cell: kernels, memory, dtypes, out of memory; and its prediction. A child process of its own
makes each, never while a cell is timed; `cs336_tui.analysis` derives tables. Sizes are bytes, ``*_ns`` nanoseconds."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, cast, get_args

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.sweep import AskedReport
from cs336_tui.config.variants import RANGES as RANGES
from cs336_tui.config.variants import Range as Range
from cs336_tui.events.precision_report import PrecisionReport

ReportKind = AskedReport | Literal["rank-memory", "oom"]

Category = Literal["parameters", "gradients", "optimizer_state", "activations", "temporary", "buffers", "unknown"]
UNKNOWN_USE: Category = "unknown"
ALL_CATEGORIES: tuple[Category, ...] = get_args(Category)
CATEGORIES: tuple[str, ...] = ALL_CATEGORIES[:-1]
"""Uses of memory. Activations are kept by forward and loss for backward; buffers are the causal mask, rotary tables and
the batch; temporary is freed within its phase, gradients of activations included. What others recorded does not tell
the use of all: `UNKNOWN_USE`, last of `ALL_CATEGORIES`, is shown where it occurs."""

OF_ACTIVATIONS: tuple[str, ...] = ("activations", "temporary")
"""Categories of the activation peak: what forward and backward compute, apart from parameters, gradients, optimizer
state and buffers. Recomputed activations and gradients of activations are temporary."""
ACTIVE_PHASES: tuple[str, ...] = ("forward", "loss", "backward")
"""Phases of the activation peak; the optimizer's temporary memory is none of it."""

NO_RANGE = ""
"""The range of everything outside of named ranges."""
FUSED = "fused"
"""The range of kernels that torch.compile fused from several parts."""

KernelKind = Literal["matrix multiply", "softmax", "elementwise", "reduction", "copy", "optimizer", "other"]
KINDS: tuple[str, ...] = get_args(KernelKind)
"""``softmax`` is its fused kernel; ``copy`` moves or fills memory; ``optimizer`` are kernels over lists of tensors."""


WORKSPACE_OP = "cuBLAS workspace"
"""The operation of cuBLAS's own blocks."""


class Site(msgspec.Struct, frozen=True):
    """The place of an allocation: the operation, the first frame of the model's code, the named range, the phase."""

    op: str
    frame: str = ""
    """As ``transformer.py:124 scores``; for a backward operation the frame of its forward one. Empty if unknown."""
    range: str = NO_RANGE
    phase: str = ""
    backward: bool = False


class MemoryBlock(msgspec.Struct, frozen=True):
    """One live allocation."""

    bytes: int
    category: Category
    site: Site
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one collective operation of a rank, such as ``all-gather``; `bytes` are those of the whole arrays."""

    op: str
    calls: int
    bytes: int


class Prediction(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Memory and FLOPs of a cell after warm-up, with the optimizer's state, computed on tensors without data. Memory is
    that of a caching allocator: each allocation rounded up to its unit, without the device's own context."""

    spec: CellSpec
    num_params: int
    num_params_without_head: int
    flops: dict[str, int]
    """Per phase: multiplications and additions of matrix products (2 m n k)."""
    flops_by_range: dict[str, tuple[int, int]]
    """Forward and backward FLOPs of the matrix products of each named range."""
    softmax_flops: tuple[int, int] | None
    """Of attention's softmax, forward and backward: 5 and 4 an element; None for a user's model of its own shape."""
    min_bytes_moved: int
    """Bytes that a step must read and write: parameters, gradients, optimizer state once each way, as its pass asks."""
    peak_bytes: int
    peak_phase: str
    by_category: dict[str, int]
    """At the peak; keys are `CATEGORIES`, the sum is `peak_bytes`."""
    forward_peak_bytes: int
    forward_end_bytes: int
    forward_end_by_category: dict[str, int]
    residual_stream_bytes: int
    """One tensor of the residual stream: batch x context x d_model in the blocks' output dtype."""
    largest: tuple[MemoryBlock, ...]
    """The largest live allocations at the peak, largest first; at most 20."""
    note: str = ""
    """Such as that this pass has no gradients."""
    workspaces: int = 0
    """Number of cuBLAS workspaces, which are temporary all the time."""
    workspace_bytes: int = 0
    """Of one; it depends on the GPU and torch's version."""
    torch: str = ""
    """Version of torch; empty in old logs."""
    recomputed_flops: int = 0
    """The part of `flops` that backward computes again, as forward did not keep its activations."""
    activation_peak_bytes: int | None = None
    """The most bytes of `OF_ACTIVATIONS` that the step itself allocated and that live at once in `ACTIVE_PHASES`,
    without parameters, gradients, optimizer state, buffers and workspaces; None in old logs."""
    activation_peak_phase: str = ""
    communication: tuple[Collective, ...] = ()
    """Of one step of several ranks, an entry for each operation; empty where there is none, and in old logs."""


class KernelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All that a recording without single launches tells of a kernel; None for what it leaves out."""

    instances: int
    total_ns: int
    avg_ns: float | None = None
    med_ns: float | None = None
    min_ns: int | None = None
    max_ns: int | None = None
    std_ns: float | None = None


class KernelGroup(msgspec.Struct, frozen=True):
    """All launches of one kernel, by its full name (on a CPU: calls of one operator, by self time), from one place."""

    name: str
    kind: KernelKind
    phase: str
    range: str
    backward: bool
    durations_ns: tuple[int, ...]
    op: str = ""
    """The operator that launched it; empty if unknown."""
    path: tuple[str, ...] = ()
    """Every range that encloses it, the outermost first; empty if `phase` and `range` are all."""

    summary: KernelSummary | None = None
    """In place of `durations_ns`, where a recording has no single launches."""

    @property
    def instances(self) -> int:
        return len(self.durations_ns) if self.summary is None else self.summary.instances

    @property
    def total_ns(self) -> int:
        return sum(self.durations_ns) if self.summary is None else self.summary.total_ns

    @property
    def ranges(self) -> tuple[str, ...]:
        """Its phase and every range that encloses it, by name."""
        return tuple(filter(None, (self.phase, *self.path, self.range)))


class Gap(msgspec.Struct, frozen=True):
    """Time in which the device ran nothing, and the kernels, copies or fills round it."""

    ns: int
    after: str
    before: str


class Gaps(msgspec.Struct, frozen=True, kw_only=True):
    """The times in which the device ran nothing, between the first begin and the last end of what it ran."""

    count: int
    total_ns: int
    median_ns: float
    """0.0 without a gap."""
    largest: tuple[Gap, ...]
    """The longest first; at most 10."""


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """Communication between GPUs, by NCCL's and other kernels, and the part of its time in which another kernel ran."""

    communication_ns: int
    overlapped_ns: int


class RankTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Communication beside compute on one rank of a profiled step."""

    rank: int
    span_ns: int
    """Of the step on this rank."""
    compute_ns: int
    communication_ns: int
    """Time with at least one operation of communication under way."""
    overlapped_ns: int
    """The part of it in which compute ran."""
    operations: dict[str, int]
    """Number of operations by name."""
    compute_over_time: tuple[float, ...]
    communication_over_time: tuple[float, ...]
    """The share of each of equal parts of the step."""
    trace: str | None = None

    @property
    def overlapped_share(self) -> float | None:
        return self.overlapped_ns / self.communication_ns if self.communication_ns else None

    @property
    def uncovered_ns(self) -> int:
        """Communication beside which nothing was computed."""
        return self.communication_ns - self.overlapped_ns


class KernelReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One profiled step, or what others recorded on one device (``spec.recording``). Every launch is in exactly one
    group; their sum is `total_ns`."""

    spec: CellSpec
    activity: Literal["kernels", "operators"]
    """Counted are kernels of a GPU, or operators of the host by self time if no kernels can be seen."""
    device_name: str
    torch: str
    groups: tuple[KernelGroup, ...]
    total_ns: int
    """The profiler's own sum of the step."""
    span_ns: int
    """From the first launch's begin to the last one's end; of a recording its `copies` count as launches here. 0 if it
    is not known."""
    phase_spans_ns: dict[str, int]
    busy_ns: int
    """Time with at least one of them running; of a recording or one of its `copies`."""
    launches: int
    host_ns: int | None = None
    """The host's time to enqueue the step; None on a CPU."""
    prediction: Prediction | None = None
    """For the FLOPs beside the times."""
    trace: str | None = None
    """File with the Chrome trace, to be opened in Perfetto; of a recording its file, whatever its format."""
    note: str = ""
    """Such as why no kernels could be seen and what is shown instead."""
    copies: tuple[KernelGroup, ...] = ()
    """Copies and fills of a recording, which are no kernels; those of a profiled step are among its `groups`."""
    gaps: Gaps | None = None
    """None if the device's own times are not known."""
    overlap: Overlap | None = None
    """None without communication."""
    steps_ns: dict[str, int] = {}
    """Host times of the steps that a recording names, such as ``step 3``."""
    ranks: tuple[RankTraffic, ...] = ()
    """Of several ranks; all other fields are of the first."""

    @property
    def file_line(self) -> str:
        """The path of `trace`, with what opens it; empty without one."""
        if not self.trace:
            return ""
        is_chrome = self.trace.endswith((".json", ".json.gz"))
        return f"{'Chrome trace, for ui.perfetto.dev' if is_chrome else 'recorded in'}: {self.trace}"


class PhaseSpan(msgspec.Struct, frozen=True):
    """A phase of a memory report: its events from `first` up to, not including, `end`."""

    phase: str
    first: int
    end: int
    peak_bytes: int


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

    @property
    def change_bytes(self) -> int:
        """Change of live bytes over its backward: gradients come, saved tensors go."""
        return self.after_bytes - self.before_bytes


class TensorForm(msgspec.Struct, frozen=True):
    """Shape and dtype with which an allocation was first seen."""

    shape: tuple[int, ...]
    dtype: str


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
    """``parameters``, ``gradients``, ``optimizer_state`` and ``buffers`` (with the batch) of this rank: of shards its
    own."""
    live_bytes: int | None = None
    """All that the allocator has handed out; None if it does not tell."""
    peak_bytes: int | None = None
    """The most since the moment before."""

    @property
    def rest_bytes(self) -> int | None:
        """Bytes live beside the categories: activations, after forward; buckets and gathered weights, at any time."""
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


Report = KernelReport | MemoryReport | RankMemoryReport | PrecisionReport | OomReport


class ReportType(NamedTuple):
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
        "Record one step: what memory is held for, and where it was asked for.",
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
        "dtypes of the model by hooks, of a toy model, and rounding when adding up.",
    ),
    "mixed-precision": ReportType("Mixed precision", "precision"),
    "roofline": ReportType("How close to the limit", "roofline"),
    "oom": ReportType("Out of memory", "memory", OomReport),
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
