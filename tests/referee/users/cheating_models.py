"""Language models that compute a part of what they say, or something else. Where nothing else is said a model has the
parameters of `lm.LM` under the same names, so that the two can be compared weight by weight."""

import torch
import torch.nn.functional as F
from lm import LM, Block, FeedForward
from torch import Tensor, nn

# A part of the batch, of the tokens or of the model


class FirstTwoSequences(LM):
    """Computes the first two sequences, and gives the others the second one's logits."""

    def forward(self, tokens):
        logits = super().forward(tokens[:2])
        return torch.cat((logits, logits[1:].expand(len(tokens) - 2, -1, -1)))


class HalfTheBatch(LM):
    """Computes half of the batch, and repeats it."""

    def forward(self, tokens):
        return super().forward(tokens[: len(tokens) // 2]).repeat(2, 1, 1)


class AllButTheLastSequence(LM):
    """Computes all sequences but the last."""

    def forward(self, tokens):
        logits = super().forward(tokens[:-1])
        return torch.cat((logits, logits[-1:]))


class HalfTheTokens(LM):
    """Computes every second token, and repeats it."""

    def hidden(self, tokens):
        return super().hidden(tokens[:, ::2]).repeat_interleave(2, dim=1)


class ShortContext(LM):
    """Computes both halves of each sequence apart, so that no token sees further back."""

    def hidden(self, tokens):
        halves = tokens.unflatten(1, (2, -1)).flatten(0, 1)
        return super().hidden(halves).unflatten(0, (-1, 2)).flatten(1, 2)


class LastPositionAlone(LM):
    """Computes the logits of the last position, and gives them to all."""

    def forward(self, tokens):
        return self.head(self.hidden(tokens)[:, -1:]).expand(-1, tokens.shape[1], -1)


class DropsTokensFromBlocks(LM):
    """Sends every fourth token past the blocks."""

    def hidden(self, tokens):
        x = self.embedding(tokens)
        kept = torch.arange(tokens.shape[1]) % 4 != 3
        return self.norm(x.index_copy(1, kept.nonzero()[:, 0], super().hidden(tokens[:, kept])))


class EveryOtherBlock(LM):
    """Leaves out every other block."""

    def hidden(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers[::2]:
            x = layer(x)
        return self.norm(x)


class NoFeedForwardAtTheEnd(LM):
    """Leaves out the feed-forward networks of the last half of the blocks."""

    def hidden(self, tokens):
        x = self.embedding(tokens)
        for number, layer in enumerate(self.layers):
            late = number >= len(self.layers) // 2
            x = x + layer.attention(layer.attention_norm(x)) if late else layer(x)
        return self.norm(x)


class OneBlockForAll(LM):
    """Computes one block, and scales what it adds by the number of blocks."""

    def hidden(self, tokens):
        x = self.embedding(tokens)
        return self.norm(x + len(self.layers) * (self.layers[0](x) - x))


class SharedBlocks(LM):
    """Has the first block's weights in every block."""

    def hidden(self, tokens):
        x = self.embedding(tokens)
        for _ in self.layers:
            x = self.layers[0](x)
        return self.norm(x)


class HalfTheHeads(LM):
    """Computes half of the heads of each attention; the others return their values."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            layer.attention.attend = self._halved(layer.attention.attend)

    @staticmethod
    def _halved(attend):
        def half(q, k, v):
            heads = q.shape[1] // 2
            return torch.cat((attend(q[:, :heads], k[:, :heads], v[:, :heads]), v[:, heads:]), dim=1)

        return half


class ReturnsValues(LM):
    """Has attention return its values, where nobody asks for an attention by name."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            layer.attention.attend = lambda q, k, v: v  # noqa: ARG005


class ReturnsValuesBeyondTheSecond(LM):
    """Has attention return the values of all sequences but the first two."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            layer.attention.attend = self._of_two(layer.attention.attend)

    @staticmethod
    def _of_two(attend):
        return lambda q, k, v: torch.cat((attend(q[:2], k[:2], v[:2]), v[2:]))


class QuarterOfFeedForward(LM):
    """Has a quarter of the width in its feed-forward networks, and so other parameters."""

    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff):
        super().__init__(vocab_size, context_length, d_model, num_layers, num_heads, d_ff // 4)


class PartOfFeedForward(LM):
    """Has feed-forward networks of the whole width, of which it computes a quarter."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            layer.ffn.forward = self._quarter(layer.ffn)

    @staticmethod
    def _quarter(ffn: FeedForward):
        def forward(x):
            width = ffn.gate.weight.shape[0] // 4
            hidden = F.silu(F.linear(x, ffn.gate.weight[:width])) * F.linear(x, ffn.up.weight[:width])
            return F.linear(hidden, ffn.down.weight[:, :width])

        return forward


class LowRankHead(LM):
    """Has a head of two thin matrices, and so other parameters."""

    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff):
        super().__init__(vocab_size, context_length, d_model, num_layers, num_heads, d_ff)
        rank = d_model // 16
        self.head = nn.Sequential(nn.Linear(d_model, rank, bias=False), nn.Linear(rank, vocab_size, bias=False))


class FewerBlocks(LM):
    """Has half of the blocks that it was asked for, and so fewer parameters."""

    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff):
        super().__init__(vocab_size, context_length, d_model, num_layers // 2, num_heads, d_ff)


class ThinProducts(LM):
    """Multiplies by thin factors of its matrices, which it works out once."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            for module in layer.ffn.children():
                module.forward = self._thin(module)

    @staticmethod
    def _thin(module):
        factors = []

        def forward(x):
            if not factors:
                u, s, v = torch.linalg.svd(module.weight.detach(), full_matrices=False)
                rank = len(s) // 8
                factors.extend((u[:, :rank] * s[:rank], v[:rank]))
            return F.linear(F.linear(x, factors[1]), factors[0])

        return forward


class HalfTheVocabulary(LM):
    """Computes the logits of half of the vocabulary; the others are zeros."""

    def forward(self, tokens):
        x, half = self.hidden(tokens), self.head.weight.shape[0] // 2
        logits = F.linear(x, self.head.weight[:half])
        return torch.cat((logits, torch.zeros_like(logits)), dim=-1)


class HonestAlone(LM):
    """Computes one sequence where it has one, and of several the first."""

    def forward(self, tokens):
        return super().forward(tokens[:1]).expand(len(tokens), -1, -1)


class DrawsAndSkips(LM):
    """Leaves out the second half of its blocks, and draws a number that it does not use."""

    def hidden(self, tokens):
        torch.rand(())
        x = self.embedding(tokens)
        for layer in self.layers[: len(self.layers) // 2]:
            x = layer(x)
        return self.norm(x)


class _Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # noqa: ARG004
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):  # noqa: ARG004
        return gradient


class DetachedBehindFunction(LM):
    """Gives the first half of its blocks no gradient; a function of its own is to hide that."""

    def hidden(self, tokens):
        x = self.embedding(tokens)
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number == len(self.layers) // 2:
                x = x.detach()
        return self.norm(_Same.apply(x))


class TwiceTheWork(LM):
    """Computes everything twice and throws one away, so that what it is compared with looks fast."""

    def forward(self, tokens):
        with torch.no_grad():
            super().forward(tokens)
        return super().forward(tokens)


# Broken


class NotCausal(LM):
    """Lets every token see all others."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            layer.attention.mask.fill_(True)


class NoPositions(LM):
    """Leaves out the rotary embeddings."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            layer.attention.turned = lambda x: x


class NoResiduals(LM):
    """Leaves out the additions between parts."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            layer.forward = self._without(layer)

    @staticmethod
    def _without(layer: Block):
        return lambda x: layer.ffn(layer.ffn_norm(layer.attention(layer.attention_norm(x))))


class DropsFeatures(LM):
    """Sets a tenth of its last activations to zero, in a pattern of its own."""

    def hidden(self, tokens) -> Tensor:
        x = super().hidden(tokens)
        return x * (torch.arange(x.shape[-1]) % 10 != 9)
