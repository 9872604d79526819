"""An honest language model, as a user writes one: of the reference model's architecture, with a learned head."""

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self.weight


class Attention(nn.Module):
    """Causal attention with rotary embeddings: (B, T, D) -> (B, T, D)."""

    def __init__(self, d_model, num_heads, context_length):
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value, self.output = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        width = d_model // num_heads
        angle = torch.outer(torch.arange(context_length), 10_000.0 ** (-torch.arange(0, width, 2) / width))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        mask = torch.ones(context_length, context_length, dtype=torch.bool).tril()
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        q, k, v = (self.heads(project(x)) for project in (self.query, self.key, self.value))
        return self.output(self.attend(self.turned(q), self.turned(k), v).transpose(1, 2).flatten(2))

    def attend(self, q, k, v):
        """(B, H, T, K) three times -> (B, H, T, K)."""
        length = q.shape[-2]
        scores = (q * q.shape[-1] ** -0.5) @ k.mT
        return scores.masked_fill(~self.mask[:length, :length], float("-inf")).softmax(-1) @ v

    def heads(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def turned(self, x):
        length = x.shape[-2]
        cos, sin = self.cos[:length].to(x.dtype), self.sin[:length].to(x.dtype)
        even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.gate, self.up = (nn.Linear(d_model, d_ff, bias=False) for _ in range(2))
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, context_length):
        super().__init__()
        self.attention_norm, self.ffn_norm = RMSNorm(d_model), RMSNorm(d_model)
        self.attention = Attention(d_model, num_heads, context_length)
        self.ffn = FeedForward(d_model, d_ff)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class LM(nn.Module):
    """Tokens (B, T) -> logits (B, T, V)."""

    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.layers = nn.ModuleList(Block(d_model, num_heads, d_ff, context_length) for _ in range(num_layers))
        self.norm = RMSNorm(d_model)
        self.head = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, tokens):
        return self.head(self.hidden(tokens))

    def hidden(self, tokens):
        """The input of the head: (B, T) -> (B, T, D)."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)
