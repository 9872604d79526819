"""Contents of reports on memory: of a step, of each rank, of a cell that did not fit. Sizes are bytes."""

from typing import Literal

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.prediction import MemoryBlock, Prediction, Site


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
