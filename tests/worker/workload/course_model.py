"""A Transformer with the names of the course's assignments and the operations of its own model, as its memory snapshots
show them: contractions by einsum; norm, rotation, softmax, SiLU and loss written out. No installed package has such a
model. Tests put its text into users' folders, too: it imports torch alone."""

import math

import torch
from torch import Tensor, nn


def softmax(x: Tensor) -> Tensor:
    weights = (x - x.max(dim=-1, keepdim=True)[0]).exp()
    return weights / weights.sum(dim=-1, keepdim=True)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    shifted = logits - logits.max(dim=-1, keepdim=True)[0]
    log_probabilities = shifted - shifted.exp().sum(dim=-1, keepdim=True).log()
    return -log_probabilities.gather(-1, targets.unsqueeze(-1)).mean()


def scaled_dot_product_attention(Q: Tensor, K: Tensor, V: Tensor, mask: Tensor) -> Tensor:
    scores = torch.einsum("...qd,...kd->...qk", Q, K) / math.sqrt(Q.shape[-1])
    weights = softmax(torch.where(mask, scores, float("-inf")))
    return torch.einsum("...qk,...kd->...qd", weights, V)


class Linear(nn.Module):
    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in).normal_(0, 0.02))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...i,oi->...o", x, self.weight)


class Embedding(nn.Module):
    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, width).normal_())

    def forward(self, tokens: Tensor) -> Tensor:
        return self.weight[tokens]


class RMSNorm(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
        return (self.weight * (x.float() * scale)).to(x.dtype)


class RotaryEmbedding(nn.Module):
    table: Tensor

    def __init__(self, context_length: int, width: int) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(context_length), 10_000 ** -(torch.arange(0, width, 2) / width))
        self.register_buffer("table", torch.stack((angles.cos(), angles.sin())), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = self.table[:, torch.arange(x.shape[-2], device=x.device)]
        return torch.stack((cos * even - sin * odd, sin * even + cos * odd), dim=-1).flatten(-2)


class SwiGLU(nn.Module):
    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = Linear(d_model, d_ff), Linear(d_ff, d_model), Linear(d_model, d_ff)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.w1(x)
        return self.w2(gate * torch.sigmoid(gate) * self.w3(x))


class CausalMultiHeadSelfAttention(nn.Module):
    def __init__(self, d_model: int, num_heads: int, rotary: RotaryEmbedding) -> None:
        super().__init__()
        self.num_heads, self.positional_encoder = num_heads, rotary
        self.q_proj, self.k_proj, self.v_proj, self.output_proj = (Linear(d_model, d_model) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        projected = (part(x) for part in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (each.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3) for each in projected)
        q, k = self.positional_encoder(q), self.positional_encoder(k)
        at = torch.arange(x.shape[-2], device=x.device)
        mixed = scaled_dot_product_attention(Q=q, K=k, V=v, mask=(at[:, None] >= at)[None, None])
        return self.output_proj(mixed.transpose(-2, -3).flatten(-2).contiguous())


class Block(nn.Module):
    def __init__(self, d_model: int, num_heads: int, d_ff: int, rotary: RotaryEmbedding) -> None:
        super().__init__()
        self.attn, self.ffn = CausalMultiHeadSelfAttention(d_model, num_heads, rotary), SwiGLU(d_model, d_ff)
        self.ln1, self.ln2 = RMSNorm(d_model), RMSNorm(d_model)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.ffn(self.ln2(x))


class LM(nn.Module):
    def __init__(
        self, vocab_size: int, context_length: int, d_model: int, num_layers: int, num_heads: int, d_ff: int
    ) -> None:
        super().__init__()
        self.token_embeddings = Embedding(vocab_size, d_model)
        self.positional_encoder = RotaryEmbedding(context_length, d_model // num_heads)
        self.layers = nn.ModuleList(Block(d_model, num_heads, d_ff, self.positional_encoder) for _ in range(num_layers))
        self.ln_final, self.lm_head = RMSNorm(d_model), Linear(d_model, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.ln_final(x))
