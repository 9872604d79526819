"""A user's folder with files of the user's own, and models as users write them, each a file of its own."""

import itertools
from pathlib import Path
from textwrap import dedent

_numbers = itertools.count()


class Folder:
    """A user's folder. Modules get names that no other test has used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.paths = (str(path),)

    def write(self, text: str, stem: str = "own") -> str:
        """A new module of this text; returns its name."""
        name = f"{stem}_{next(_numbers)}"
        (self.path / f"{name}.py").write_text(dedent(text))
        return name


GPT = """
import math
import torch
from torch import nn
import torch.nn.functional as F

class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.n_head, -1).transpose(1, 2) for y in self.c_attn(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))

class MLP(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.c_fc = nn.Linear(n_embd, 4 * n_embd)
        self.c_proj = nn.Linear(4 * n_embd, n_embd)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))

class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = MLP(n_embd)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))

class GPT(nn.Module):
    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd):
        super().__init__()
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(vocab_size, n_embd),
            wpe=nn.Embedding(block_size, n_embd),
            h=nn.ModuleList(Block(n_embd, n_head) for _ in range(n_layer)),
            ln_f=nn.LayerNorm(n_embd),
        ))
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, tokens):
        x = self.transformer.wte(tokens) + self.transformer.wpe(torch.arange(tokens.shape[1]))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))
"""
"""Fused projections, torch's fused attention, positions made without naming a device."""

BASICS = """
import torch
from torch import nn

def softmax(x):
    shifted = (x - x.amax(-1, keepdim=True)).exp()
    return shifted / shifted.sum(-1, keepdim=True)

def scaled_dot_product_attention(Q, K, V, mask):
    scores = Q @ K.mT / K.shape[-1] ** 0.5
    return softmax(torch.where(mask, scores, float("-inf"))) @ V

class Linear(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d_out, d_in) * 0.02)

    def forward(self, x):
        return x @ self.weight.T

class Embedding(nn.Module):
    def __init__(self, count, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, width))

    def forward(self, tokens):
        return self.weight[tokens]

class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight

class RotaryEmbedding(nn.Module):
    def forward(self, x):
        one, two = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.cat((one - two, one + two), dim=-1)

class SwiGLU(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.w1, self.w2, self.w3 = Linear(d_model, d_ff), Linear(d_ff, d_model), Linear(d_model, d_ff)

    def forward(self, x):
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))

class CausalMultiHeadSelfAttention(nn.Module):
    def __init__(self, d_model, num_heads, rotary):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj = (Linear(d_model, d_model) for _ in range(3))
        self.output_proj = Linear(d_model, d_model)
        self.positional_encoder = rotary

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        at = torch.arange(x.shape[1], device=x.device)
        mixed = scaled_dot_product_attention(
            Q=self.positional_encoder(q), K=self.positional_encoder(k), V=v, mask=at[:, None] >= at)
        return self.output_proj(mixed.transpose(1, 2).flatten(2))

class Block(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, rotary):
        super().__init__()
        self.attn = CausalMultiHeadSelfAttention(d_model, num_heads, rotary)
        self.ffn = SwiGLU(d_model, d_ff)
        self.ln1, self.ln2 = RMSNorm(d_model), RMSNorm(d_model)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.ffn(self.ln2(x))

class LM(nn.Module):
    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff):
        super().__init__()
        self.token_embeddings = Embedding(vocab_size, d_model)
        self.positional_encoder = RotaryEmbedding()
        self.layers = nn.ModuleList(
            Block(d_model, num_heads, d_ff, self.positional_encoder) for _ in range(num_layers))
        self.ln_final = RMSNorm(d_model)
        self.lm_head = Linear(d_model, vocab_size)

    def forward(self, tokens):
        x = self.token_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.ln_final(x))
"""
"""All operations written out and named as in the course's assignments."""

PLAIN = """
import torch
from torch import nn

class Odd(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocab_size, d_model))
        self.mixer = nn.Parameter(torch.randn(d_model, d_model))

    def forward(self, tokens):
        return torch.tanh(self.table[tokens] @ self.mixer) @ self.table.T

class Asks(Odd):
    def forward(self, tokens):
        logits = super().forward(tokens)
        return logits * 0 if logits.abs().max() > 1e9 else logits

class Leaves(Odd):
    def forward(self, tokens):
        raise SystemExit(3)
"""
"""A model without blocks or modules, so that no part has a name."""
