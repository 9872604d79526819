"""The blocks that backward computes again together: groups of blocks, or groups within halves of halves (nested)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cs336_tui.config.axes import Choices
from cs336_tui.config.values import Nesting


class Segment(NamedTuple):
    """Consecutive blocks of which only the input is kept. With `parts` the recomputation keeps the input of each part,
    which is a segment itself; without, it keeps all activations of the blocks."""

    blocks: range
    parts: tuple[Segment, ...] = ()


def segments(num_blocks: int, every: int, nesting: Nesting = "off") -> tuple[Segment, ...]:
    """The outermost segments of a model: its groups of `every` blocks, or with ``halves`` two, each of halves down to
    the groups."""
    groups = [Segment(range(first, min(first + every, num_blocks))) for first in range(0, num_blocks, every)]
    return tuple(groups) if nesting == "off" else _halves(groups)


def _halves(groups: Sequence[Segment]) -> tuple[Segment, ...]:
    middle = (len(groups) + 1) // 2
    return tuple(_joined(half) for half in (groups[:middle], groups[middle:]) if half)


def _joined(groups: Sequence[Segment]) -> Segment:
    if len(groups) == 1:
        return groups[0]
    return Segment(range(groups[0].blocks.start, groups[-1].blocks.stop), _halves(groups))


def recomputed_blocks(cell: Choices) -> int:
    """Forwards of single blocks that one backward computes again: 0 without checkpointing, N for groups of N blocks,
    N (1 + log2(N / k)) / 2 for halves down to groups of k, where N / k is a power of two from 2 on."""
    return sum(map(_recomputed, _segments_of(cell)))


def _recomputed(segment: Segment) -> int:
    """Those of a segment's backward: it runs its parts up to the input of the last one, then the backward of each."""
    if not segment.parts:
        return len(segment.blocks)
    return sum(map(_recomputed, segment.parts)) + sum(len(part.blocks) for part in segment.parts[:-1])


def inputs_at_once(cell: Choices) -> int:
    """The most inputs of segments that are kept at once: N / k for groups, about log2(N / k) + 1 for halves."""
    return _most_inputs(_segments_of(cell))


def _most_inputs(parts: Sequence[Segment]) -> int:
    """The inputs kept at once in the backward of these segments, from the last to the first; a first part has its
    segment's own input."""
    return max((place + max(_most_inputs(part.parts), 1) for place, part in enumerate(parts)), default=0)


def _segments_of(cell: Choices) -> tuple[Segment, ...]:
    return segments(cell.num_layers, cell.checkpoint, cell.nesting) if cell.checkpoint else ()
