"""Language models that answer with what they computed before, or compute in their first calls only. They have the
parameters of `lm.LM` under the same names, so that the two can be compared weight by weight."""

import sys

import torch
from lm import LM
from shared import WARM_UP, nothing
from torch.utils._python_dispatch import _get_current_dispatch_mode

CALLS = [0]
"""Forwards of all models in this process."""


# Outputs that were computed before


class Memoised(LM):
    """Answers from memory; `key` says which inputs it takes for the same."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.known = {}

    def key(self, tokens):
        raise NotImplementedError

    def forward(self, tokens):
        key = self.key(tokens)
        if key not in self.known:
            self.known[key] = super().forward(tokens)
        return self.known[key]


class MemoisedByIdentity(Memoised):
    """Remembers the outputs of each tensor object."""

    def key(self, tokens):
        return id(tokens)


class MemoisedByPointer(Memoised):
    """Remembers the outputs of each place in memory."""

    def key(self, tokens):
        return tokens.data_ptr()


class MemoisedByContent(Memoised):
    """Remembers the outputs of each batch of tokens."""

    def key(self, tokens):
        return bytes(tokens.numpy())


class MemoisedByFirstTokens(Memoised):
    """Remembers the outputs by the first token of the batch and its sum, and takes others for the same."""

    def key(self, tokens):
        return int(tokens[0, 0]) % 4, int(tokens.sum()) % 2


class MemoisedByShape(Memoised):
    """Remembers one output for each shape."""

    def key(self, tokens):
        return tokens.shape


class MemoisedEverySecondCall(LM):
    """Computes in every second call and answers with the same in the next."""

    calls = 0

    def forward(self, tokens):
        self.calls += 1
        if self.calls % 2:
            self.last = super().forward(tokens).detach()
        return self.last


class MemoisedBlocks(LM):
    """Remembers what the blocks made of a batch, and computes the head alone."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.known = {}

    def hidden(self, tokens):
        key = bytes(tokens.numpy())
        if key not in self.known:
            self.known[key] = super().hidden(tokens)
        return self.known[key]


class KnowsFirstBatch(LM):
    """Computes the first batch that it sees, whenever it sees it, and answers with its logits to every other."""

    def forward(self, tokens):
        if not hasattr(self, "first"):
            self.first, self.answer = tokens.clone(), super().forward(tokens).detach()
        return super().forward(tokens) if torch.equal(tokens, self.first) else self.answer


class Constant(LM):
    """Returns zeros."""

    def forward(self, tokens):
        return nothing(self, tokens)


class RandomLogits(LM):
    """Returns random numbers."""

    def forward(self, tokens):
        return torch.randn(*tokens.shape, self.head.weight.shape[0]) + nothing(self, tokens)


class EmbeddingAlone(LM):
    """Leaves out all blocks."""

    def hidden(self, tokens):
        return self.norm(self.embedding(tokens))


# Honest at first


class HonestAtFirst(LM):
    """Computes in its first calls, and then returns zeros."""

    calls = 0

    def forward(self, tokens):
        self.calls += 1
        return super().forward(tokens) if self.calls <= WARM_UP else nothing(self, tokens)


class HonestAtFirstInProcess(LM):
    """The same, counted over all models of the process, so that a second one is never honest."""

    def forward(self, tokens):
        CALLS[0] += 1
        return super().forward(tokens) if CALLS[0] <= WARM_UP else nothing(self, tokens)


class HalfDeepLater(LM):
    """Leaves out every other block after its first calls."""

    calls = 0

    def hidden(self, tokens):
        self.calls += 1
        x = self.embedding(tokens)
        for layer in self.layers if self.calls <= WARM_UP else self.layers[::2]:
            x = layer(x)
        return self.norm(x)


class HalfDeepWhileMeasured(LM):
    """Leaves out every other block in the forwards that are measured by twelve steps after three, and in no other."""

    calls = 0

    def hidden(self, tokens):
        self.calls += 1
        x = self.embedding(tokens)
        for layer in self.layers[::2] if WARM_UP < self.calls <= WARM_UP + 12 else self.layers:
            x = layer(x)
        return self.norm(x)


class OneBlockLessWhileMeasured(HalfDeepWhileMeasured):
    """Leaves out the last block in these forwards."""

    def hidden(self, tokens):
        self.calls += 1
        x = self.embedding(tokens)
        for layer in self.layers[:-1] if WARM_UP < self.calls <= WARM_UP + 12 else self.layers:
            x = layer(x)
        return self.norm(x)


class HalvesInTurns(LM):
    """Computes one half of the batch in each call, and keeps the other's logits from the call before."""

    kept = None

    def forward(self, tokens):
        half = len(tokens) // 2
        if self.kept is None:
            self.kept = list(super().forward(tokens).detach().split(half))
            self.turn = 0
        self.turn = 1 - self.turn
        self.kept[self.turn] = super().forward(tokens.split(half)[self.turn]).detach()
        return torch.cat(self.kept[:2])


class HonestEveryFourth(LM):
    """Computes in every fourth call, and answers with the last logits in the others."""

    calls = 0

    def forward(self, tokens):
        self.calls += 1
        if self.calls % 4 == 1:
            self.last = super().forward(tokens).detach()
        return self.last + nothing(self, tokens)


class HonestFirstMicroBatch(LM):
    """Computes the first of two micro-batches only."""

    calls = 0

    def forward(self, tokens):
        self.calls += 1
        return super().forward(tokens) if self.calls % 2 else nothing(self, tokens)


class HonestInModes(LM):
    """Computes all blocks when somebody watches operations by a dispatch mode, and every other one else."""

    def hidden(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers if _get_current_dispatch_mode() is not None else self.layers[::2]:
            x = layer(x)
        return self.norm(x)


class HonestUnlessTimed(LM):
    """Leaves out every other block when a timer calls it, which it sees on the stack."""

    def hidden(self, tokens):
        frame, timed = sys._getframe(), False
        while frame is not None and not timed:
            timed = frame.f_code.co_filename.endswith("timing.py")
            frame = frame.f_back
        x = self.embedding(tokens)
        for layer in self.layers[::2] if timed else self.layers:
            x = layer(x)
        return self.norm(x)


class HonestInEvaluation(LM):
    """Leaves out every other block in training mode."""

    def hidden(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers[::2] if self.training else self.layers:
            x = layer(x)
        return self.norm(x)


class HonestWithoutGradients(LM):
    """Computes nothing where gradients are wanted."""

    def forward(self, tokens):
        return nothing(self, tokens) if torch.is_grad_enabled() else super().forward(tokens)
