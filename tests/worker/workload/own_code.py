"""A user's folder with files of the user's own, for tests that import them."""

from __future__ import annotations

import itertools
from pathlib import Path
from textwrap import dedent

LM = """
import torch
from torch import nn

class LM(nn.Module):
    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff, rope_theta):
        super().__init__()
        self.asked = dict(vocab_size=vocab_size, context_length=context_length, d_model=d_model,
                          num_layers=num_layers, num_heads=num_heads, d_ff=d_ff, rope_theta=rope_theta)
        self.embed = nn.Embedding(vocab_size, d_model)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d_model, num_heads, d_ff, dropout=0.0, batch_first=True)
            for _ in range(num_layers)
        )
        self.head = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
"""
"""A Transformer-like model, named as the course names its own."""

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
