"""The workload of attention alone, over random queries, keys and values.

Letters in shapes: B sequences, T tokens each, H heads of width K.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import is_imported
from cs336_tui.worker.workload.norms import OperationAlone
from cs336_tui.worker.workload.transformer import AttentionCore, AttentionSteps, causal_mask


def attention_shape(spec: CellSpec) -> tuple[int, ...]:
    """Of queries, keys, values and output of attention alone: (B, T, K), or (B, H, T, K) of several heads."""
    heads = (spec.num_heads,) if spec.num_heads > 1 else ()
    return (spec.batch_size, *heads, spec.context_length, spec.head_dim)


class AttentionOnly(AttentionSteps, OperationAlone):
    """Holds q, k and v on `device` in `dtype`; returns the output, of `attention_shape`. `core` computes attention;
    None materialises scores."""

    mask: Tensor | None  # Added to naive scores, (T, T); None without such, or if every token sees all

    def __init__(self, spec: CellSpec, core: AttentionCore | None, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        shape = attention_shape(spec)
        self.q, self.k, self.v = (nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) for _ in range(3))
        self.core = core
        # torch's kernels are not fused without a head.
        self._wants_head = not is_imported(spec.attention) and spec.num_heads == 1
        masked = self.core is None and spec.causal
        mask = causal_mask(spec.context_length, device=device, dtype=dtype) if masked else None
        self.register_buffer("mask", mask, persistent=False)
        self.register_buffer("core_mask", core.mask if core is not None else None, persistent=False)

    def forward(self, _: Tensor) -> Tensor:
        if self.core is None:
            return self.mix(self.weigh(self.score(self.q, self.k)), self.v)
        return self.attend(self.q, self.k, self.v)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention by the core: `attention_shape` three times -> the same."""
        assert self.core is not None
        if not self._wants_head:  # a user's function takes the course's shapes
            return self.core.run(q, k, v)
        return self.core.run(*(x.unsqueeze(1) for x in (q, k, v))).squeeze(1)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        """Scaled scores, masked if causal: (B, T, K) twice -> (B, T, T), or the same of each head."""
        scores = (q * q.shape[-1] ** -0.5) @ k.mT
        return scores if self.mask is None else scores + self.mask


def attention_loss(output: Tensor, gradient: Tensor) -> Tensor:
    """The sum of the output times its gradient."""
    return (output * gradient).sum()
