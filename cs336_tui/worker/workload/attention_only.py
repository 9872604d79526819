"""The attention workload: queries, keys and values without a head dimension, (B, T, K) each, with gradients. Letters in
shapes: B sequences of T tokens, K the width of a query, a key and a value."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import is_imported
from cs336_tui.worker.workload.attention import AttentionCore
from cs336_tui.worker.workload.precision import RECIPES
from cs336_tui.worker.workload.random_data import Batch
from cs336_tui.worker.workload.transformer import Attention, causal_mask


class AttentionOnly(nn.Module):
    """Holds q, k and v as its parameters; ignores its input and returns the output, (B, T, K). Parameters are created
    uninitialised on `device` in `dtype`. `core` computes attention; None materialises scores."""

    mask: Tensor | None
    """Added to naive scores, (T, T); None where every token sees all, and where something else computes attention."""

    def __init__(self, spec: CellSpec, core: AttentionCore | None, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        shape = (spec.batch_size, spec.context_length, spec.d_model)
        self.q, self.k, self.v = (nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) for _ in range(3))
        self._core = core
        self._wants_heads = not is_imported(spec.attention)
        """True adds a dimension of one head, without which torch's kernels are not fused."""
        masked = self._core is None and spec.causal
        mask = causal_mask(spec.context_length, device=device, dtype=dtype) if masked else None
        self.register_buffer("mask", mask, persistent=False)
        self.register_buffer("core_mask", core.mask if core is not None else None, persistent=False)

    def initialise(self, seed: int) -> None:
        """Draw q, k and v from a standard normal."""
        generator = torch.Generator(self.q.device).manual_seed(seed)
        with torch.no_grad():
            for parameter in (self.q, self.k, self.v):
                parameter.normal_(generator=generator)

    def forward(self, _: Tensor) -> Tensor:
        if self._core is None:
            return self.mix(self.weigh(self.score(self.q, self.k)), self.v)
        return self.attend(self.q, self.k, self.v)

    # Separate methods with the names of the Transformer's attention, so that profilers can name each.

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention by the core: (B, T, K) three times -> (B, T, K)."""
        assert self._core is not None
        if not self._wants_heads:  # a user's function takes the course's shapes
            return self._core(q, k, v)
        return self._core(*(x.unsqueeze(1) for x in (q, k, v))).squeeze(1)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        """Scaled scores, masked if causal: (B, T, K) twice -> (B, T, T)."""
        scores = (q * q.shape[-1] ** -0.5) @ k.mT
        return scores if self.mask is None else scores + self.mask

    def weigh(self, scores: Tensor) -> Tensor:
        """Softmax of the scores: (B, T, T) -> (B, T, T)."""
        return scores.softmax(dim=-1)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        """Weighted sum of the values: (B, T, T), (B, T, K) -> (B, T, K)."""
        return weights.type_as(v) @ v

    @property
    def attention_method(self) -> str:
        """The attention method in words."""
        return Attention.METHOD if self._core is None else self._core.description()


def attention_batch(spec: CellSpec, device: torch.device) -> Batch:
    """A batch without tokens; its targets are the gradient of the output, (B, T, K)."""
    shape = (spec.batch_size, spec.context_length, spec.d_model)
    gradient = torch.empty(shape, device=device, dtype=RECIPES[spec.precision].parameters)
    if device.type != "meta":
        # Not the model's seed, whose first numbers are the queries.
        gradient.normal_(generator=torch.Generator(device).manual_seed(spec.seed + 1))
    return Batch(torch.empty(0, dtype=torch.int64, device=device), gradient)


def attention_loss(output: Tensor, gradient: Tensor) -> Tensor:
    """The sum of the output times its gradient."""
    return (output * gradient).sum()
