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

BASICS = Path(__file__).with_name("course_model.py").read_text()
"""All operations written out and named as in the course's assignments; its model is `LM`."""

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
