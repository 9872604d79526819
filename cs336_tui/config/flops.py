"""FLOPs and bytes that a step of the reference model, or of an operation alone, needs at least, from its dimensions.

Of a model with naive attention the same numbers as a prediction's, which runs the step shape-only (meta tensors); this
needs neither torch nor time. The accounting is of the memory that attention alone keeps from forward to backward, term
by term. Segments are the blocks that backward computes again together: groups of blocks, or groups within halves of
halves (nested).

Letters in formulas: B sequences of T tokens, K the width of a query, a key and a value; with heads H their number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from cs336_tui.config.axes import Choices
from cs336_tui.config.spec import CellSpec, Pass
from cs336_tui.config.values import WITHOUT_BACKWARD, Nesting
from cs336_tui.config.variants import REFERENCE, is_imported

_FORWARDS_TIMED: dict[Pass, int] = {
    "inference": 1, "forward": 1, "forward+loss": 1, "backward": 2, "forward+backward": 3, "train-step": 3,
}  # fmt: skip
"""The work of the timed phases in forwards: a backward multiplies twice for each product of the forward, once for the
gradient of either factor."""
_STEP_COUNT_BYTES = 4
"""AdamW keeps a float32 count of its steps for each parameter tensor; beside the parameters only where these are the
host's."""
_SCORES_ALL_PAIRS = ("naive", "math")
"""Kinds of attention that score every pair of tokens, the masked ones too; a fused kernel can leave those out."""
_ATTENTION_MOVES: dict[Pass, int] = {
    "inference": 4, "forward": 4, "forward+loss": 5, "backward": 7, "forward+backward": 8,
}  # fmt: skip
"""Of attention alone, tensors of the queries' shape: a forward reads q, k and v and writes the output; its loss reads
the output's gradient, too; a backward reads the three and the output's gradient and writes three gradients; both
together read the three once."""

NORM_MOVES: dict[Pass, int] = {"inference": 2, "forward": 2, "forward+loss": 2, "backward": 3, "forward+backward": 4}
"""Of a norm alone, tensors of its rows' shape: a forward reads the rows and writes the output; a backward reads the
rows and the output's gradient and writes the rows' gradient, as triton's tutorial on layer norm counts (2 and 3); both
together read the rows once. Its loss moves nothing. The vectors of weights, a row beside many, are left out."""


class Parameters(NamedTuple):
    """Of the whole model: how many numbers, in how many tensors, and how many of them are factors of products."""

    numbers: int
    tensors: int
    factors: int


def step_flops(spec: CellSpec, all_pairs: bool | None = None) -> int:
    """FLOPs of the matrix products (2 m n k) in the timed phases of a step.

    A forward has 2 for each weight of a linear layer and token, and 4 d_model for each pair of tokens of a sequence
    and layer: the attention's scores and its weighted values. Under a causal mask those are all T^2 pairs where torch
    or the reference materialises scores, and else, a user's own function included, the T (T + 1) / 2 that are not
    masked. `all_pairs` says which where the kernel that ran is known; None goes by the spec's attention. What a fused
    backward computes again does not count. Embeddings, norms, softmax and the optimizer have no matrix products.
    """
    if spec.workload == "norm":
        return 0
    if all_pairs is None:
        all_pairs = spec.attention in _SCORES_ALL_PAIRS
    weights = 0 if spec.workload == "attention" else 2 * spec.tokens_per_step * parameters(spec).factors
    length = spec.context_length
    pairs = length**2 if all_pairs or not spec.causal else length * (length + 1) // 2
    attention = 4 * spec.rank_batch_size * pairs * spec.d_model * spec.num_layers
    return _FORWARDS_TIMED[spec.pass_] * (weights + attention)


def least_bytes(spec: CellSpec) -> int:
    """The least that a step must read and write: everything that outlives it, once each way.

    Parameters are read, of an embedding no more rows than there are tokens; a backward writes as many gradients as
    there are parameters; AdamW reads these, reads and writes its two moments and writes the parameters. Activations,
    which a machine might keep in its caches, are left out. Of attention alone it is what a kernel that keeps its scores
    to itself must move: q, k, v, the output and their gradients; of a norm alone the rows, the output and theirs.
    """
    width = 2 if spec.precision == "bf16" else 4
    if spec.is_alone:
        moves = NORM_MOVES if spec.workload == "norm" else _ATTENTION_MOVES
        return moves[spec.pass_] * spec.tokens_per_step * spec.d_model * width
    found = parameters(spec)
    size = found.numbers * width
    counts = found.tensors * _STEP_COUNT_BYTES if spec.device == "cpu" else 0
    return moved_bytes(spec, size, size, 2 * size + counts)


def surely_moved(spec: CellSpec) -> int:
    """`least_bytes` of a cell that may be of a user's own parts: an optimizer of one's own may keep no state, and ranks
    may share it. 0 where nothing is known."""
    if spec.ranks > 1 or spec.is_collective:
        return 0
    own = is_imported(spec.optimizer) and spec.pass_ == "train-step"
    return least_bytes(msgspec.structs.replace(spec, pass_="forward+backward") if own else spec)


def moved_bytes(spec: CellSpec, size: int, trained: int, state: int) -> int:
    """The same of a model whose parameters, the trained ones of them and their optimizer state have so many bytes. The
    reference's head reads all rows of the token embedding, if it is the same; of another model all count as read."""
    moved = size
    if spec.model == REFERENCE and spec.weight_tying == "off":
        width = 2 if spec.precision == "bf16" else 4
        moved -= max(spec.vocab_size - spec.tokens_per_step, 0) * spec.d_model * width
    if spec.pass_ not in WITHOUT_BACKWARD:
        moved += trained
    if spec.pass_ == "train-step":
        moved += 2 * trained + 2 * state
    return moved


def parameters(spec: CellSpec) -> Parameters:
    """Of the reference Transformer: embeddings, in each layer four attention matrices, three (SwiGLU) or two (GELU)
    feed-forward ones, with a bias each if it has biases, and two norms, the final norm and the head, unless that is the
    token embedding; a layer norm has a bias."""
    d_model, layers, vocabulary = spec.d_model, spec.num_layers, spec.vocab_size * spec.d_model
    learned_positions = spec.arch == "gelu-learned"
    matrices = 2 if learned_positions else 3
    factors = layers * (4 * d_model**2 + matrices * d_model * spec.d_ff) + vocabulary
    of_norm = 1 + (spec.norm == "layernorm")
    norms = of_norm * (2 * layers + 1) * d_model
    positions = spec.context_length * d_model if learned_positions else 0
    has_bias, is_tied = spec.bias == "on", spec.weight_tying == "on"
    biases = layers * (5 * d_model + (matrices - 1) * spec.d_ff) if has_bias else 0
    return Parameters(
        numbers=vocabulary * (not is_tied) + positions + factors + norms + biases,
        tensors=1
        + learned_positions
        + layers * ((4 + matrices) * (1 + has_bias) + 2 * of_norm)
        + 1
        + of_norm
        - is_tied,
        factors=factors,
    )


Shape = Literal["B T K", "B T T", "T T", "B T", "B H T K", "B H T T", "B H T"]
_WITH_HEADS: dict[Shape, Shape] = {"B T K": "B H T K", "B T T": "B H T T", "B T": "B H T"}

FUSED = ("sdpa", "flash", "memory-efficient", "cudnn")
"""Kinds of attention that keep the logarithm of each token's sum of exponentials; the weights are never in memory."""
_LOGSUMEXP_BYTES = 4
_Tensors = tuple[str, int, Shape, int]
"""Tensors: their name, number, shape and bytes an element."""


class Term(msgspec.Struct, frozen=True):
    """Some tensors of one shape and width: `number` of them, `element_bytes` an element."""

    what: str
    number: int
    shape: Shape
    element_bytes: int
    bytes: int

    @property
    def formula(self) -> str:
        """Such as ``3 B T K x 4 bytes``."""
        number = "" if self.number == 1 else f"{self.number} "
        return f"{number}{self.shape} x {self.element_bytes} bytes"


class Accounting(msgspec.Struct, frozen=True):
    """`terms` are in the order of their allocation."""

    terms: tuple[Term, ...]

    @property
    def bytes(self) -> int:
        """Sum over all terms."""
        return sum(term.bytes for term in self.terms)

    @property
    def in_words(self) -> str:
        """Such as ``3 B T K x 4 bytes (q, k, v) + B T T x 4 bytes (weights)``."""
        return " + ".join(f"{term.formula} ({term.what})" for term in self.terms)


def accounting_of(spec: CellSpec) -> Accounting | None:
    """Memory that a cell of workload ``attention`` holds before backward, by its operations.

    That is its tensors, q, k, v and the output's gradient; a naive causal mask; the output; and what autograd keeps for
    the backward: of each product its factors, of the softmax its result. A fused kernel keeps the logarithm of the sum
    of exponentials in float32 (Dao et al. 2022, section 3.1) and computes the weights again. Under autocast the factors
    are copies in half precision. Scalars, and what an allocator adds to a tensor, are left out; a compiler may keep
    less.

    None of a norm alone, and of a user's own function, of which nobody knows.
    """
    kept = {"naive": _naive, "math": _math, **dict.fromkeys(FUSED, _fused)}.get(spec.attention)
    if kept is None or spec.workload != "attention":
        return None
    # Bytes of an element as it is made and as a factor of a product.
    made, factor = {"bf16": (2, 2), "bf16-mixed": (4, 2), "fp16-mixed": (4, 2)}.get(spec.precision, (4, 4))
    tensors: list[_Tensors] = [("q, k, v", 3, "B T K", made), ("gradient of the output", 1, "B T K", made)]
    letters = {"B": spec.batch_size, "H": spec.num_heads, "T": spec.context_length, "K": spec.head_dim}
    named = _WITH_HEADS if spec.num_heads > 1 else {}
    terms: list[Term] = []
    for what, number, plain, width in (*tensors, *kept(spec, made, factor)):
        shape = named.get(plain, plain)
        size = number * width * math.prod(map(letters.__getitem__, shape.split()))
        terms.append(Term(what, number, shape, width, size))
    return Accounting(tuple(terms))


def _naive(spec: CellSpec, made: int, factor: int) -> Iterator[_Tensors]:
    if spec.causal:
        yield "mask", 1, "T T", made
    if factor == made:
        yield "scaled q", 1, "B T K", made
        yield "weights", 1, "B T T", made
    else:
        softmax_stays = spec.device == "cpu"  # in half precision; on a GPU autocast computes it in float32
        yield "scaled q, k, v in half precision", 3, "B T K", factor
        yield "weights", 1, "B T T", factor if softmax_stays and not spec.causal else made
        yield "weights in half precision", 1, "B T T", factor
    yield "output", 1, "B T K", factor


def _fused(_: CellSpec, made: int, factor: int) -> Iterator[_Tensors]:
    if factor != made:
        yield "q, k, v in half precision", 3, "B T K", factor
    yield "output", 1, "B T K", factor
    yield "logsumexp", 1, "B T", _LOGSUMEXP_BYTES


def _math(_: CellSpec, _made: int, factor: int) -> Iterator[_Tensors]:
    """torch's math backend: it scales q and k by a root each, and computes in float32 whatever it is given."""
    yield "scaled q and k", 2, "B T K", 4
    yield "weights", 1, "B T T", 4
    if factor != 4:
        yield "v in float32", 1, "B T K", 4
    yield "output", 1, "B T K", factor


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


def bus_factor(operation: str, ranks: int) -> float:
    """Bytes that pass the busiest link at least, as a multiple of the whole array's, as nccl-tests defines it (its
    PERFORMANCE.md)."""
    match operation:
        case "all-reduce":
            return 2 * (ranks - 1) / ranks
        case "broadcast":
            return 1.0
    return (ranks - 1) / ranks


def algbw(spec: CellSpec, step_s: float) -> float:
    """Bytes of a collective's whole array over the time of a step, bytes/s."""
    return spec.message_bytes / step_s


def busbw(spec: CellSpec, step_s: float) -> float:
    """The same by the operation's `bus_factor`: to be compared with a link's bandwidth, whatever the ranks."""
    return algbw(spec, step_s) * bus_factor(spec.collective, spec.ranks)
