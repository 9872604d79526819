"""The prediction of a cell, and its words: uses of memory, places of allocations, collectives. Sizes are bytes.

The keys are of cells that share a prediction, a measurement or a report: one spec that stands for all that are alike.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Literal, Self, get_args

import msgspec

from cs336_tui.config.spec import AXES, CellSpec
from cs336_tui.config.values import sharing_of
from cs336_tui.config.variants import is_imported, short

Category = Literal["parameters", "gradients", "optimizer_state", "activations", "temporary", "buffers", "unknown"]
UNKNOWN_USE: Category = "unknown"
ALL_CATEGORIES: tuple[Category, ...] = get_args(Category)
CATEGORIES: tuple[str, ...] = ALL_CATEGORIES[:-1]
"""Uses of memory. Activations are kept by forward and loss for backward; buffers are the causal mask, rotary tables and
the batch; temporary is freed within its phase, gradients of activations included. What others recorded does not tell
the use of all: `UNKNOWN_USE`, last of `ALL_CATEGORIES`, is shown where it occurs."""
COMMUNICATION = "communication"
"""The use of memory that only ranks have: buckets of gradients, gathered weights and their gradients, buffers."""
OF_RANKS: tuple[str, ...] = (*CATEGORIES, COMMUNICATION)
"""Uses of memory of one of several ranks."""
OF_ACTIVATIONS: tuple[str, ...] = ("activations", "temporary")
"""Categories of the activation peak: what forward and backward compute, apart from parameters, gradients, optimizer
state and buffers. Recomputed activations and gradients of activations are temporary."""
ACTIVE_PHASES: tuple[str, ...] = ("forward", "loss", "backward")
"""Phases of the activation peak; the optimizer's temporary memory is none of it."""
NO_RANGE = ""
"""The range of everything outside of named ranges."""
WORKSPACE_OP = "cuBLAS workspace"
LT_WORKSPACE_OP = "cuBLASLt workspace"
"""The operations of cuBLAS's own blocks."""


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


class TensorForm(msgspec.Struct, frozen=True):
    """Shape and dtype with which an allocation was first seen."""

    shape: tuple[int, ...]
    dtype: str


TOP = 20  # Number of the largest allocations


class PhaseSpan(msgspec.Struct, frozen=True):
    """A phase of a memory report: its events from `first` up to, not including, `end`."""

    phase: str
    first: int
    end: int
    peak_bytes: int


class Allocation(msgspec.Struct):
    """Memory that is live at events ``born <= event < died``, to the end if `died` is None. `bytes` may be 0."""

    bytes: int
    site: Site
    born: int = 0
    died: int | None = None
    category: Category = "temporary"
    form: TensorForm | None = None  # Of the tensor that it was allocated for, if an operation returned one
    address: int = 0  # Of the memory; 0 for a tensor without data

    @property
    def block(self) -> MemoryBlock:
        form = msgspec.structs.astuple(self.form) if self.form else ()
        return MemoryBlock(self.bytes, self.category, self.site, *form)


class TrackedTimeline:
    """Allocations in order of birth. Event 0 is the state before the first phase; each further event is a birth or a
    death. `begins` are the phases, in order, by their first events; a phase's peak includes what lives at its begin."""

    def __init__(self, allocations: Iterable[Allocation], events: int, begins: Sequence[tuple[str, int]]) -> None:
        self.allocations = tuple(allocations)
        self.events, self.begins = events, tuple(begins)
        self.totals = self._live(self.allocations)  # Live bytes after each event
        ends = (*(first for _, first in begins), events)[1:]
        self.phases = tuple(
            PhaseSpan(phase, first, end, max(self.totals[first - 1 : end]))
            for (phase, first), end in zip(begins, ends, strict=True)
        )

    def _live(self, allocations: Iterable[Allocation]) -> tuple[int, ...]:
        """Bytes of these that are live after each event."""
        change = [0] * self.events
        for allocation in allocations:
            change[allocation.born] += allocation.bytes
            if allocation.died is not None:
                change[allocation.died] -= allocation.bytes
        return tuple(accumulate(change))

    def phase(self, name: str) -> PhaseSpan | None:
        """The last run of this phase."""
        return next((span for span in reversed(self.phases) if span.phase == name), None)

    def phase_at(self, event: int) -> str:
        """The phase that an event belongs to; of event 0 the first one."""
        return next((span.phase for span in reversed(self.phases) if span.first <= event), self.phases[0].phase)

    def peak_event(self) -> int:
        """The first event with the most live bytes."""
        return self.totals.index(max(self.totals))

    def activation_peak(self) -> tuple[int, str]:
        """The most bytes of activations and temporary memory that live at once in forward, loss or backward, without
        what lives since before the step, such as a workspace; and its phase."""
        live = self._live(each for each in self.allocations if each.category in OF_ACTIVATIONS and each.born)
        spans = [(max(live[span.first - 1 : span.end]), span) for span in self.phases if span.phase in ACTIVE_PHASES]
        most, span = max(spans, key=lambda peak: peak[0])
        return most, span.phase

    def live_at(self, event: int) -> Iterator[Allocation]:
        return (a for a in self.allocations if a.born <= event and (a.died is None or event < a.died))

    def by_category(self, event: int) -> dict[str, int]:
        """Live bytes of every one of `CATEGORIES`; their sum is ``totals[event]``."""
        sums = dict.fromkeys(CATEGORIES, 0)
        for allocation in self.live_at(event):
            sums[allocation.category] += allocation.bytes
        return sums

    def largest(self, event: int) -> tuple[MemoryBlock, ...]:
        """The largest live allocations, largest first, then by birth."""
        by_size = sorted(self.live_at(event), key=lambda allocation: -allocation.bytes)
        return tuple(allocation.block for allocation in by_size[:TOP] if allocation.bytes)

    def fields(self) -> dict[str, Any]:
        """As the fields of a `MemoryReport`: phases, peak, end of forward, and the allocations column by column."""
        peak, forward = self.peak_event(), self.phase("forward")
        made = self.allocations
        sites = {site: place for place, site in enumerate(dict.fromkeys(each.site for each in made))}
        forms = {form: place for place, form in enumerate(dict.fromkeys(each.form for each in made if each.form))}
        return {
            "events": self.events,
            "phases": self.phases,
            "peak_bytes": self.totals[peak],
            "peak_event": peak,
            "forward_end_bytes": self.totals[forward.end - 1] if forward else 0,
            "bytes": tuple(each.bytes for each in made),
            "born": tuple(each.born for each in made),
            "died": tuple(-1 if each.died is None else each.died for each in made),
            "categories": tuple(ALL_CATEGORIES.index(each.category) for each in made),
            "site_of": tuple(sites[each.site] for each in made),
            "sites": tuple(sites),
            "form_of": tuple(forms[each.form] if each.form else -1 for each in made) if forms else (),
            "forms": tuple(forms),
        }


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one collective operation of a rank, such as ``all-gather``; `bytes` are those of the whole arrays."""

    op: str
    calls: int
    bytes: int


class PhaseMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one phase of a step: live at its end, and the most in it."""

    by_category: dict[str, int]
    peak_bytes: int

    @property
    def end_bytes(self) -> int:
        return sum(self.by_category.values())


class Prediction(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Memory and FLOPs of a cell after warm-up, with the optimizer's state, computed shape-only (meta tensors).

    Memory is that of a caching allocator: each allocation rounded up to its unit, without the device's own context."""

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
    """At the peak; keys are `CATEGORIES`, of several ranks `OF_RANKS`; the sum is `peak_bytes`."""
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
    phases: dict[str, PhaseMemory] = {}
    """By phase, in the order in which they run; empty in old logs."""
    reserved_bytes: int | None = None
    """The least that CUDA's allocator takes of the device for the first steps; None elsewhere and in old logs."""
    unfit: tuple[tuple[int, int], ...] = ()
    """Ranges of memory above it, bytes, from the first to below the second: the steps run out in them nevertheless,
    since the allocator gives unused memory back too late."""

    @property
    def device_bytes(self) -> int:
        """The least that it takes of the device, as far as it is known."""
        return self.reserved_bytes or self.peak_bytes

    def needed_of(self, room: int) -> int:
        """The bytes that a device with this much `room` would have to have: at most `room` if the cell fits."""
        return next((end for first, end in self.unfit if first <= room < end), self.device_bytes)

    def with_more(self, category: str, more: int) -> Self:
        """The same with so many bytes more in a category all the time, which is none of the activation peak's; less
        where that is negative."""

        def grown(by_category: dict[str, int]) -> dict[str, int]:
            return by_category | {category: by_category.get(category, 0) + more}

        return msgspec.structs.replace(
            self,
            peak_bytes=self.peak_bytes + more,
            by_category=grown(self.by_category),
            forward_peak_bytes=self.forward_peak_bytes + more,
            forward_end_bytes=self.forward_end_bytes + more,
            forward_end_by_category=grown(self.forward_end_by_category),
            phases={
                name: PhaseMemory(by_category=grown(each.by_category), peak_bytes=each.peak_bytes + more)
                for name, each in self.phases.items()
            },
            reserved_bytes=None if self.reserved_bytes is None else self.reserved_bytes + more,
            unfit=tuple((first + more, end + more) for first, end in self.unfit),
        )

    @property
    def categories(self) -> tuple[str, ...]:
        """Uses of memory that it tells of."""
        return OF_RANKS if COMMUNICATION in self.by_category else CATEGORIES


_OF_PASS: dict[str, str] = {
    "inference": "inference keeps no activations for a backward and has no gradients and no optimizer state",
    "forward": "forward has no gradients and no optimizer state; its activations are kept for a backward",
    "forward+loss": "forward+loss has no gradients and no optimizer state; its activations are kept for a backward",
    "backward": "backward has no optimizer state; its forward and loss run untimed and count to its memory",
    "forward+backward": "forward+backward has no optimizer state",
}


def prediction_note(spec: CellSpec) -> str:
    found = [_OF_PASS.get(spec.pass_, "")]
    found += [axis.unpredicted for axis in AXES.values() if getattr(spec, axis.field) != axis.default]
    if spec.checkpoint:
        found.append("FLOPs of backward include what activation checkpointing computes again")
    if spec.ranks > 1:
        name = sharing_of(spec.parallel).name
        if is_imported(name):
            found.append(f"memory of a rank alone: what {short(name)} keeps and sends is not predicted")
        if name == "fsdp2" and spec.device != "cpu":
            found.append("under fsdp2 tensors count as they are, without an allocator's rounding")
    return "; ".join(filter(None, found))


def predicted_for(spec: CellSpec, found: Prediction) -> Prediction:
    """The prediction of an equal need, as one of this spec."""
    return msgspec.structs.replace(found, spec=spec, note=prediction_note(spec))


_OF_NO_PREDICTION = {field: axis.alike for field, axis in AXES.items() if "prediction" not in axis.kinds}
_OF_A_RUN = tuple(field for field in _OF_NO_PREDICTION if "time" in AXES[field].kinds)


def prediction_key(spec: CellSpec) -> CellSpec:
    """The same spec for all cells that need the same: steps, seed, synchronisation and the like do not matter."""
    device = spec.device.partition(":")[0] + (":0" if spec.device.startswith("cuda") else "")
    return msgspec.structs.replace(spec, **_OF_NO_PREDICTION, device=device)


def run_key(spec: CellSpec) -> CellSpec:
    """The same spec for all cells that need the same and run the same way (compiled or not), so measure alike."""
    return msgspec.structs.replace(prediction_key(spec), **{field: getattr(spec, field) for field in _OF_A_RUN})


def report_key(spec: CellSpec) -> CellSpec:
    """The same spec for all cells of which a report tells the same: as `run_key`, on its device."""
    return msgspec.structs.replace(run_key(spec), device=spec.device)
