"""A Transformer with the operations of the course's own model, as its memory snapshots show them: contractions by
einsum; norm, rotation, softmax, SiLU and loss written out. No installed package has such a model."""

import math

import torch
from torch import Tensor, nn


class Projection(nn.Module):
    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...i,oi->...o", x, self.weight)


class Norm(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_model))

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * (x.float() * scale)


class Rotation(nn.Module):
    table: Tensor

    def __init__(self, context_length: int, width: int) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(context_length), 10_000 ** -(torch.arange(0, width, 2) / width))
        self.register_buffer("table", torch.stack((angles.cos(), angles.sin())), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = self.table[:, torch.arange(x.shape[-2], device=x.device)]
        return torch.stack((cos * even - sin * odd, sin * even + cos * odd), dim=-1).flatten(-2)


def softmax(x: Tensor) -> Tensor:
    weights = (x - x.max(dim=-1, keepdim=True)[0]).exp()
    return weights / weights.sum(dim=-1, keepdim=True)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    shifted = logits - logits.max(dim=-1, keepdim=True)[0]
    log_probabilities = shifted - shifted.exp().sum(dim=-1, keepdim=True).log()
    return -log_probabilities.gather(-1, targets.unsqueeze(-1)).mean()


class Block(nn.Module):
    def __init__(self, d_model: int, num_heads: int, d_ff: int, rotation: Rotation) -> None:
        super().__init__()
        self.num_heads, self.rotation = num_heads, rotation
        self.before_attention, self.before_ffn = Norm(d_model), Norm(d_model)
        self.q, self.k, self.v, self.out = (Projection(d_model, d_model) for _ in range(4))
        self.gate, self.up, self.down = Projection(d_model, d_ff), Projection(d_model, d_ff), Projection(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.before_attention(x))
        y = self.before_ffn(x)
        gate = self.gate(y)
        return x + self.down(gate * torch.sigmoid(gate) * self.up(y))

    def attend(self, x: Tensor) -> Tensor:
        length = x.shape[-2]
        q, k, v = (part(x).unflatten(-1, (self.num_heads, -1)).transpose(-2, -3) for part in (self.q, self.k, self.v))
        q, k = self.rotation(q), self.rotation(k)
        place = torch.arange(length, device=x.device)
        allowed = (place[:, None] >= place)[None, None]
        scores = torch.einsum("...qd,...kd->...qk", q, k) / math.sqrt(q.shape[-1])
        weights = softmax(torch.where(allowed, scores, float("-inf")))
        mixed = torch.einsum("...qk,...kd->...qd", weights, v)
        return self.out(mixed.transpose(-2, -3).flatten(-2).contiguous())


class CourseLike(nn.Module):
    def __init__(
        self, vocab_size: int, context_length: int, d_model: int, num_layers: int, num_heads: int, d_ff: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(vocab_size, d_model))
        rotation = Rotation(context_length, d_model // num_heads)
        self.layers = nn.ModuleList(Block(d_model, num_heads, d_ff, rotation) for _ in range(num_layers))
        self.norm, self.head = Norm(d_model), Projection(d_model, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding[tokens]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))
