"""The reference with the operations of the course's own model in place of its own.

The mathematics is the same. The course contracts with einsum, whose backward leaves the gradient of each weight
transposed, so that it is copied; it looks tokens up by indexing, and writes softmax, mask and SiLU out.
"""

from __future__ import annotations

from functools import partial
from types import MethodType

import torch
from cs336_basics.model import scaled_dot_product_attention, silu
from einops import einsum
from torch import Tensor

from cs336_tui.config.spec import ModelDims
from cs336_tui.worker.workload.transformer import AttentionCore, Embedding, Linear, SwiGLU, Transformer


def attention(mask: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The course's, under a causal mask: (B, H, T, K) three times -> (B, H, T, K)."""
    length = q.shape[-2]
    mixed: Tensor = scaled_dot_product_attention(q, k, v, mask[:length, :length])
    return mixed


def linear(self: Linear, x: Tensor) -> Tensor:
    product: Tensor = einsum(x, self.weight, "... d_in, d_out d_in -> ... d_out")
    return product


def embedding(self: Embedding, indices: Tensor) -> Tensor:
    return self.weight[indices, :]


def swiglu(self: SwiGLU, x: Tensor) -> Tensor:
    down: Tensor = self.down(silu(self.gate(x)) * self.up(x))
    return down


def reference(
    vocab_size: int, context_length: int, d_model: int, num_layers: int, num_heads: int, d_ff: int
) -> Transformer:
    """Tokens (B, T) to logits (B, T, V), on the CPU."""
    dims = ModelDims(d_model=d_model, d_ff=d_ff, num_layers=num_layers, num_heads=num_heads, vocab_size=vocab_size)
    mask = torch.ones(context_length, context_length, dtype=torch.bool).tril()
    core = AttentionCore(partial(attention, mask), "the course's", mask)
    model = Transformer(dims, arch="swiglu-rope", context_length=context_length, core=core, device="cpu")
    model.initialise(0)
    for module in model.modules():
        for kind, forward in ((Linear, linear), (Embedding, embedding), (SwiGLU, swiglu)):
            if isinstance(module, kind):
                module.forward = MethodType(forward, module)  # type: ignore[method-assign]
    return model
