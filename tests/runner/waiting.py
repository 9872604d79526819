"""A model that keeps a simulated device busy: its forward waits, and uses no CPU."""

import time

import torch
from torch import Tensor, nn


class Waits(nn.Module):
    """Waits `seconds` in each forward."""

    def __init__(self, vocab_size: int, seconds: float = 0.05) -> None:
        super().__init__()
        self.seconds = seconds
        self.scale = nn.Parameter(torch.ones(1, vocab_size))

    def forward(self, tokens: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return tokens[..., None] * self.scale
