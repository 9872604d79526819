"""Models as users write them, of which `cells.of_user` puts a copy into a user's folder."""

import sys
import weakref

import torch
from torch import nn


class Plain(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.head = nn.Linear(d_model, vocab_size)
        self.calls = 0

    def forward(self, tokens):
        return self.head(self.embedding(tokens).sin())


class Printing(Plain):
    def forward(self, tokens):
        found = self.embedding(tokens)
        print("here")
        return self.head(found.sin())


class Flipping(Plain):
    """Is another function from its seventh call on."""

    @torch.compiler.disable
    def is_late(self):
        self.calls += 1
        return self.calls > 6

    def forward(self, tokens):
        factor = 2.0 if self.is_late() else 1.0
        return later(self.head(self.embedding(tokens)), factor)


def later(found, factor):
    return found * factor


class Misshapen(Plain):
    def forward(self, tokens):
        return self.head(self.embedding(tokens)[..., 1:])  # misshapen


class Leaving(Plain):
    def forward(self, tokens):  # noqa: ARG002
        sys.exit(3)


MADE = []


class Recursive(Plain):
    def forward(self, tokens):
        alive = sum(made() is not None for made in MADE)
        if alive > 1:  # a train-step holds those of the step before until its zero_grad
            raise RuntimeError(f"activations of {alive} earlier steps are alive")
        found = self.embedding(tokens)
        MADE.append(weakref.ref(found))

        def doubled(times):
            return found if times == 0 else doubled(times - 1) * 2

        return self.head(doubled(2))


SEEN = set()
"""Settings in force in steps of these."""


class Looks(Plain):
    def __init__(self, vocab_size, d_model, num_layers, num_heads, d_ff):  # noqa: ARG002
        super().__init__(vocab_size, d_model)

    def forward(self, tokens):
        SEEN.add(
            (
                type(self).__name__,
                torch.get_float32_matmul_precision(),
                torch.get_num_threads(),
                torch.backends.cudnn.benchmark,
                torch.backends.cuda.flash_sdp_enabled(),
                torch.get_default_dtype(),
                len(torch.overrides._get_current_function_mode_stack()),
                torch.are_deterministic_algorithms_enabled(),
            )
        )
        return super().forward(tokens)


class Sets(Looks):
    def __init__(self, vocab_size, d_model, num_layers, num_heads, d_ff):
        super().__init__(vocab_size, d_model, num_layers, num_heads, d_ff)
        torch.set_float32_matmul_precision("high")
        torch.set_num_threads(2)
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.enable_flash_sdp(False)
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)

    def forward(self, tokens):
        torch.set_default_device("cpu")
        return super().forward(tokens)


class SetsLater(Looks):
    def forward(self, tokens):
        logits = super().forward(tokens)
        torch.set_float32_matmul_precision("medium")
        return logits


class Layer(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.up, self.down = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Blocks(nn.Module):
    def __init__(self, vocab_size, d_model, d_ff, num_layers):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.layers = nn.ModuleList(Layer(d_model, d_ff) for _ in range(num_layers))
        self.head = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Frozen(Blocks):
    def __init__(self, vocab_size, d_model, d_ff, num_layers):
        super().__init__(vocab_size, d_model, d_ff, num_layers)
        self.embedding.requires_grad_(False)
        self.layers[1].up.requires_grad_(False)
