"""The facts that a cell's process finds out about its own measurement, for the verdicts of `analysis.referee`: the use
of the measured window, the work of a step, its dtypes, and whether its results are right."""

from typing import Literal

import msgspec

Quantity = Literal["logits", "gradients", "loss", "moves", "moments"]


class Books(msgspec.Struct, frozen=True, kw_only=True):
    """The accounts of the measured window, seconds. `window_s` is its length on the host's clock; `steps_s` what the
    steps come to; `known_s` the tool's own work between them, and the forward and loss that a timed backward needs."""

    window_s: float
    steps_s: float
    known_s: float
    between_s: float = 0.0
    """Median of the time between two steps that is neither."""
    step_s: float = 0.0
    """Median of the steps."""
    threads_s: float = 0.0
    """Processor time of Python threads that the workload started."""
    after_s: float = 0.0
    """The same within `AFTER_S` after the last step."""
    replaced: tuple[str, ...] = ()
    """Functions of the clock, of synchronisation and of events that were replaced since the timer bound them."""
    parent_s: float | None = None
    """The window on the clock of the process that runs the cell."""


AFTER_S = 0.02


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The matrix products of one step, counted as they were dispatched: FLOPs."""

    forward: int
    backward: int
    least_forward: int
    """As the dimensions ask for; of attention the pairs that a causal mask leaves."""
    least_backward: int
    parts: dict[str, tuple[int, int]] = {}
    """Of the forward, by part (``head``, ``attention``, ``blocks``): counted, and asked for at least."""
    dtypes: dict[str, int] = {}
    """FLOPs by the dtype of the factors."""
    uncounted: tuple[str, ...] = ()
    """Functions and kernels whose products cannot be seen."""


class Difference(msgspec.Struct, frozen=True, kw_only=True, rename={"quantity": "of"}):
    """The norm of a difference from the reference over the reference's own: of the whole and of its worst part."""

    quantity: Quantity
    whole: float
    worst: str
    worst_error: float


class Results(msgspec.Struct, frozen=True, kw_only=True, rename={"left_out": "partly"}):
    """A step after the measured ones, compared with a reference of the same weights and tokens."""

    reference: str = ""
    """Such as ``naive attention``, in words."""
    differences: tuple[Difference, ...] = ()
    unmoved: tuple[str, ...] = ()
    """Parameters that have a gradient and that the optimizer left as they were."""
    unequal: tuple[str, ...] = ()
    """Parameters that are not equal on all ranks after the step, where each has them whole."""
    unchecked: str = ""
    """Why nothing, or not all, could be compared."""
    left_out: str = ""
    """The part that was left out of a comparison."""
    again_s: float | None = None
    """Time of the step that was compared, the shortest of some if it was `SLOWER` than the measured ones."""


SLOWER = 1.7
"""The time of a step that was compared, of those measured: from here on it may be another one."""


FASTER = 1.5
"""The rate of a step, of the device's in the same process and of the reference's, that cannot be."""


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of the device in the cell's process after its steps: FLOP/s of a matrix product in the cell's precision and
    bytes/s of a copy, read and written, the fastest of as many as show that a step can be as fast; 0 where there was
    nothing to show."""

    flops_per_s: float = 0.0
    bytes_per_s: float = 0.0
    reference_s: float | None = None
    """Seconds of the reference's forward and backward."""
    sheet_flops_per_s: float | None = None
    sheet_bytes_per_s: float | None = None
    """Peaks of the GPU's data sheet, if one is known."""


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of the measured steps: `fresh` if they changed between two steps; `repeated` are the steps that had
    those of the step before."""

    fresh: bool
    repeated: tuple[int, ...] = ()
    why_fixed: str = ""


class AttentionCheck(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A user's own attention against naive attention, in a form such as ``causal, 129 tokens``: the differences of the
    output and of the gradients, or the error without a result."""

    form: str
    differences: tuple[Difference, ...] = ()
    error: str = ""


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """All of it; a part that could not be found out is None."""

    books: Books | None = None
    work: Work | None = None
    results: Results | None = None
    speed: Speed | None = None
    inputs: Inputs | None = None
    attention: tuple[AttentionCheck, ...] = ()
    """Of a user's own attention, apart from the cell's model."""
    took_s: float = 0.0
    """Of the checks, after the measurement."""
