"""Contents of an agreement report: sketches of a cell's logits and gradients, small enough to be kept in a log.

A sketch is a count sketch (Charikar, Chen and Farach-Colton 2002, "Finding frequent items in data streams"): each
element is added, with a random sign, to one of m buckets. Signs and buckets are functions of the tensor's name and size
alone, so that two sketches of one name and size can be subtracted: the squared norm of the difference estimates that of
the tensors' difference, without bias and with a relative standard error of at most sqrt(2 / m).
"""

import msgspec

from cs336_tui.config.spec import CellSpec


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
