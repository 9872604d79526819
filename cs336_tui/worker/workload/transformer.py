"""The reference Transformer language model and its random batch.

``swiglu-rope`` (see `CellSpec.arch`) has rotary embeddings and a SwiGLU of three matrices; ``gelu-learned`` has learned
positions and a GELU between two matrices. Both are pre-norm. Unless `ModelOptions` say so they have RMSNorm, no biases,
an untied head and no dropout. Attention materialises its scores unless a core replaces it.

Letters in shapes: B sequences, T tokens each, D ``d_model``, F ``d_ff``, H heads of width K = D / H, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_tui.config.spec import Arch, CellSpec, ModelDims
from cs336_tui.worker.workload.norms import Factory, MakeNorm, RMSNorm

ROPE_THETA = 10_000.0

_PART = 1 << 15
"""Elements drawn at a time on a CPU: few enough for its cache, and for torch not to start its threads, which may cost
many times the work on a busy machine."""


def truncated_normal_(tensor: Tensor, std: float, generator: torch.Generator, *, cut: float = 3.0) -> Tensor:
    """Fill a contiguous tensor from a normal of mean 0 and `std`, cut at ``cut * std`` on both sides. Redraws values
    outside: exact, and on a CPU many times faster than `torch.nn.init.trunc_normal_`. Draws in fp32 and rounds, so that
    a seed gives the same values in every dtype."""
    flat = tensor.detach().view(-1)
    parts = flat.split(_PART) if flat.device.type == "cpu" else (flat,)
    if flat.dtype != torch.float32:
        for part in parts:
            part.copy_(truncated_normal_(torch.empty_like(part, dtype=torch.float32), std, generator, cut=cut))
        return tensor
    for part in parts:
        part.normal_(0.0, std, generator=generator)
        outside = (part.abs() > cut * std).nonzero().squeeze(1)
        if outside.numel():
            part[outside] = truncated_normal_(part.new_empty(outside.numel()), std, generator, cut=cut)
    return tensor


Loss = Callable[[Tensor, Tensor], Tensor]  # Output, as logits (B, T, V), and targets, (B, T), to a number


class Batch(NamedTuple):
    """Token ids, (B, T) each; a target is the token that follows its input."""

    inputs: Tensor
    targets: Tensor


def random_batch(
    batch_size: int, context_length: int, vocab_size: int, *, device: torch.device | str, seed: int
) -> Batch:
    """Uniform tokens; the same seed gives the same batch on the same kind of device."""
    generator = torch.Generator(device).manual_seed(seed)
    tokens = torch.randint(vocab_size, (batch_size, context_length + 1), device=device, generator=generator)
    return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


class FreshTokens:
    """Puts other uniform tokens into a batch, in place, at each call. Once it `repeats`, every `EVERY`th call leaves
    those of the call before, so that steps on repeated tokens stand beside steps on fresh ones."""

    EVERY = 4

    def __init__(self, batch: Batch, vocab_size: int, seed: int) -> None:
        self._batch, self._vocab_size = batch, vocab_size
        self._generator = torch.Generator(batch.inputs.device).manual_seed(seed)
        self._calls: int | None = None

    def repeat(self) -> None:
        """From the next call on repeat some."""
        self._calls = 0

    @classmethod
    def repeated(cls, steps: int) -> tuple[int, ...]:
        """Of so many calls since `repeat`, those that left the tokens as they were."""
        return tuple(range(cls.EVERY - 1, steps, cls.EVERY))

    def __call__(self) -> None:
        if self._calls is not None:
            self._calls += 1
            if self._calls % self.EVERY == 0:
                return
        self.put()

    def put(self, first: int = 0) -> None:
        """Put other tokens into the sequences from the `first` on."""
        inputs, targets = (part[first:] for part in self._batch)
        shape = (inputs.shape[0], inputs.shape[1] + 1)
        tokens = torch.randint(self._vocab_size, shape, device=inputs.device, generator=self._generator)
        inputs.copy_(tokens[:, :-1])
        targets.copy_(tokens[:, 1:])


class ModelOptions(NamedTuple):
    """Options of the reference model besides its architecture. `dropout` is after the embeddings and each sublayer,
    `attention_dropout` after naive attention's softmax; `bias` is in every linear layer but the head; `tied` makes the
    token embedding the head's matrix; `tanh` approximates the GELU by it; `norm` makes each norm."""

    dropout: float = 0.0
    attention_dropout: float = 0.0
    bias: bool = False
    tied: bool = False
    tanh: bool = False
    norm: MakeNorm = RMSNorm

    @classmethod
    def of(cls, spec: CellSpec, norm: MakeNorm) -> ModelOptions:
        return cls(
            spec.dropout,
            spec.attention_dropout,
            spec.bias == "on",
            spec.weight_tying == "on",
            spec.gelu == "tanh",
            norm,
        )


_PLAIN = ModelOptions()


class Linear(nn.Module):
    """x W^T, plus a bias if it has one: (..., in) -> (..., out)."""

    bias: nn.Parameter | None

    def __init__(self, width_in: int, width_out: int, *, bias: bool = False, **factory: Unpack[Factory]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width_out, width_in, **factory))
        self.register_parameter("bias", nn.Parameter(torch.empty(width_out, **factory)) if bias else None)

    def initialise(self, generator: torch.Generator) -> None:
        """Truncated normal, std sqrt(2 / (in + out)) (Glorot and Bengio 2010), cut at 3 std; biases are 0."""
        truncated_normal_(self.weight, math.sqrt(2 / sum(self.weight.shape)), generator)
        if self.bias is not None:
            self.bias.detach().zero_()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Embedding(nn.Module):
    """Rows of a table: integers (...) -> (..., D)."""

    def __init__(self, count: int, width: int, **factory: Unpack[Factory]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, width, **factory))

    def initialise(self, generator: torch.Generator) -> None:
        """Truncated normal, std 1, cut at 3."""
        truncated_normal_(self.weight, 1.0, generator)

    def forward(self, indices: Tensor) -> Tensor:
        return F.embedding(indices, self.weight)


class Rotary(nn.Module):
    """Rotary position embedding (Su et al. 2021): pair i of a head at position t turns by t * theta^(-2i/K). Pairs are
    neighbours, (0, 1), (2, 3), ..., as in the paper. (B, H, T, K) -> (B, H, T, K), computed in fp32."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_width: int, context_length: int, *, device: torch.device) -> None:
        super().__init__()
        cos, sin = (torch.empty(context_length, head_width // 2, device=device) for _ in range(2))  # (T, K/2)
        if device.type != "meta":  # a first operation on meta imports torch's shape inference, which takes a second
            exponent = torch.arange(0, head_width, 2, device=device, dtype=torch.float32) / head_width
            position = torch.arange(context_length, device=device, dtype=torch.float32)
            angle = torch.outer(position, ROPE_THETA**-exponent)
            torch.cos(angle, out=cos)
            torch.sin(angle, out=sin)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-2]
        cos, sin = self.cos[:length], self.sin[:length]
        even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)  # (B, H, T, K/2) each
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return turned.flatten(-2).type_as(x)


def causal_mask(length: int, **factory: Unpack[Factory]) -> Tensor:
    """The mask added to scores, (T, T): 0 for a token's past and itself, minus infinity for its future."""
    mask = torch.empty(length, length, **factory)
    if mask.is_meta:
        return mask
    position = torch.arange(length, device=mask.device)
    return mask.zero_().masked_fill_(position > position[:, None], -math.inf)


@dataclass(frozen=True, eq=False)
class AttentionCore:
    """Attention without materialised scores."""

    run: Callable[[Tensor, Tensor, Tensor], Tensor]
    """From queries, keys and values, (B, H, T, K) each (a user's own also (B, T, K)), to an output of that shape."""
    words: str
    """Its name and the kernel that it really runs, such as ``sdpa: flash``."""
    mask: Tensor | None = None
    """Its table, (T, T), held by the model; None without one."""
    tried_s: float = 0.0
    """Seconds of the first call, which may compile it."""


class AttentionSteps(nn.Module):
    """Steps of attention, as methods so that profilers can name each; `core` replaces those that make scores."""

    METHOD = "naive (scores materialised)"  # The method without a core, in words
    core: AttentionCore | None

    def weigh(self, scores: Tensor) -> Tensor:
        """Softmax of the scores: (..., T, T) -> (..., T, T)."""
        return scores.softmax(dim=-1)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        """Weighted sum of the values: (..., T, T), (..., T, K) -> (..., T, K)."""
        return weights.type_as(v) @ v

    @property
    def attention_method(self) -> str:
        """The attention method in words."""
        return self.METHOD if self.core is None else self.core.words


class Attention(AttentionSteps):
    """Causal multi-head self-attention: (B, T, D) -> (B, T, D). `core` replaces what is between the projections."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        rotary: Rotary | None,
        core: AttentionCore | None = None,
        options: ModelOptions = _PLAIN,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.core = core
        self.dropout = options.attention_dropout
        self.query, self.key, self.value, self.output = (
            Linear(width, width, bias=options.bias, **factory) for _ in range(4)
        )
        self.rotary = rotary

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self._heads(self.query(x)), self._heads(self.key(x)), self._heads(self.value(x))  # (B, H, T, K)
        if self.rotary is not None:
            q, k = self.rotary(q), self.rotary(k)
        if mask is None:
            mixed = self.attend(q, k, v)
        else:
            weights = self.weigh(self.score(q, k, mask))
            mixed = self.mix(_dropped(weights, self.dropout, training=self.training), v)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention by the core: (B, H, T, K) three times -> (B, H, T, K)."""
        assert self.core is not None
        return self.core.run(q, k, v)

    def score(self, q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        """Scaled and masked scores: (B, H, T, K) twice -> (B, H, T, T)."""
        return (q * q.shape[-1] ** -0.5) @ k.mT + mask

    def _heads(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, K)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


def _dropped(x: Tensor, share: float, *, training: bool) -> Tensor:
    return F.dropout(x, share) if share and training else x


class SwiGLU(nn.Module):
    """(silu(x gate) * x up) down (Shazeer 2020): (..., D) -> (..., F) -> (..., D)."""

    def __init__(self, width: int, hidden: int, options: ModelOptions = _PLAIN, **factory: Unpack[Factory]) -> None:
        super().__init__()
        self.gate = Linear(width, hidden, bias=options.bias, **factory)
        self.up = Linear(width, hidden, bias=options.bias, **factory)
        self.down = Linear(hidden, width, bias=options.bias, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class GELU(nn.Module):
    """gelu(x up) down, with the GELU (Hendrycks and Gimpel 2016) or its tanh approximation: (..., D) -> (..., F) ->
    (..., D)."""

    def __init__(self, width: int, hidden: int, options: ModelOptions = _PLAIN, **factory: Unpack[Factory]) -> None:
        super().__init__()
        self.up = Linear(width, hidden, bias=options.bias, **factory)
        self.down = Linear(hidden, width, bias=options.bias, **factory)
        self.kind = "tanh" if options.tanh else "none"

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate=self.kind))


class Block(nn.Module):
    """Attention, then the feed-forward network, each on a normed copy added back: (B, T, D) -> (B, T, D)."""

    def __init__(
        self,
        dims: ModelDims,
        arch: Arch,
        rotary: Rotary | None,
        core: AttentionCore | None = None,
        options: ModelOptions = _PLAIN,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__()
        feed_forward = SwiGLU if arch == "swiglu-rope" else GELU
        self.dropout = options.dropout
        self.attention_norm = options.norm(dims.d_model, **factory)
        self.attention = Attention(dims.d_model, dims.num_heads, rotary, core, options, **factory)
        self.ffn_norm = options.norm(dims.d_model, **factory)
        self.ffn = feed_forward(dims.d_model, dims.d_ff, options, **factory)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self._drop(self.attention(self.attention_norm(x), mask))
        return x + self._drop(self.ffn(self.ffn_norm(x)))

    def _drop(self, x: Tensor) -> Tensor:
        return _dropped(x, self.dropout, training=self.training)


class Transformer(nn.Module):
    """A causal language model: tokens (B, T) -> logits (B, T, V), for any T up to `context_length`. Parameters are
    created uninitialised on `device` in `dtype`; `initialise` fills them. Tables (rotary, causal mask) are not saved. A
    core needs no mask: it is causal by itself, or by its own table held here."""

    causal_mask: Tensor | None

    def __init__(
        self,
        dims: ModelDims,
        *,
        arch: Arch,
        options: ModelOptions = _PLAIN,
        context_length: int,
        core: AttentionCore | None = None,
        device: torch.device | str,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        factory = Factory(device=torch.device(device), dtype=dtype)
        d_model, vocab = dims.d_model, dims.vocab_size
        self.options = options
        self.token_embedding = Embedding(vocab, d_model, **factory)
        self.position_embedding: Embedding | None = None
        rotary: Rotary | None = None
        if arch == "swiglu-rope":
            rotary = Rotary(d_model // dims.num_heads, context_length, device=factory["device"])
        else:
            self.position_embedding = Embedding(context_length, d_model, **factory)
        self.layers = nn.ModuleList(Block(dims, arch, rotary, core, options, **factory) for _ in range(dims.num_layers))
        self.final_norm = options.norm(d_model, **factory)
        self.head = Linear(d_model, vocab, **factory)
        if options.tied:
            self.head.weight = self.token_embedding.weight
        mask = causal_mask(context_length, **factory) if core is None else None
        self.register_buffer("causal_mask", mask, persistent=False)
        self.register_buffer("core_mask", core.mask if core is not None else None, persistent=False)

    def initialise(self, seed: int) -> None:
        """Draw every parameter; a seed gives the same parameters on the same kind of device. A tied matrix is drawn as
        the head's, which comes last."""
        generator = torch.Generator(self.head.weight.device).manual_seed(seed)
        for module in self.modules():
            if isinstance(module, Linear | Embedding):
                module.initialise(generator)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[-1]
        x = self.token_embedding(tokens)  # (B, T, D)
        if self.position_embedding is not None:
            x = x + self.position_embedding(torch.arange(length, device=tokens.device))
        x = _dropped(x, self.options.dropout, training=self.training)
        mask = None if self.causal_mask is None else self.causal_mask[:length, :length]
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.final_norm(x))

    @property
    def attention_method(self) -> str:
        """The layers' attention methods in words."""
        parts = (module for module in self.modules() if isinstance(module, Attention))
        return " + ".join(sorted({part.attention_method for part in parts}))

    @property
    def draws(self) -> bool:
        """True if its steps draw random numbers, from torch's default generator; none are drawn in evaluation."""
        return self.training and bool(self.options.dropout or self.options.attention_dropout)

    @property
    def num_params(self) -> int:
        return sum(p.numel() for p in self.parameters())

    @property
    def num_params_without_head(self) -> int:
        """Parameters without the head, as tables of model sizes count them; a tied head has none of its own."""
        return self.num_params - (0 if self.options.tied else self.head.weight.numel())
