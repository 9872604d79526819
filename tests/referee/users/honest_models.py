"""Honest language models of many kinds, as users write them. None of them may be doubted."""

import math
import os
import random
import signal
import threading
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from honest import Norm
from lm import LM, RMSNorm
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass
class Output:
    loss: torch.Tensor | None
    logits: torch.Tensor


class HuggingFaceLike(LM):
    """Returns an object with logits."""

    def forward(self, input_ids, labels=None):
        logits = super().forward(input_ids)
        return Output(None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits)


class ReturnsDict(LM):
    """Returns a dictionary."""

    def forward(self, tokens):
        return {"logits": super().forward(tokens)}


class WithSdpa(LM):
    """Has torch's fused attention."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            layer.attention.attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)


class WithEinsum(LM):
    """Writes its attention in letters."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            layer.attention.attend = self._attend(layer.attention.mask)

    @staticmethod
    def _attend(mask):
        def attend(q, k, v):
            length = q.shape[-2]
            scores = torch.einsum("bhik,bhjk->bhij", q, k) / math.sqrt(q.shape[-1])
            weights = torch.where(mask[:length, :length], scores, float("-inf")).softmax(-1)
            return torch.einsum("bhij,bhjk->bhik", weights, v)

        return attend


class Tied(LM):
    """Has one matrix for embedding and head."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.head.weight, std=0.02)


class Counts(LM):
    """Keeps count of its forwards and a running mean of its activations in buffers."""

    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff):
        super().__init__(vocab_size, context_length, d_model, num_layers, num_heads, d_ff)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(d_model))

    def hidden(self, tokens):
        x = super().hidden(tokens)
        with torch.no_grad():
            self.count += 1
            self.mean.lerp_(x.mean((0, 1)), 0.1)
        return x


class QuantisesTheBatch(LM):
    """Rounds the input of its head by one scale of the whole batch."""

    def hidden(self, tokens):
        x = super().hidden(tokens)
        scale = x.abs().amax() / 127
        return (x / scale).round() * scale


class DiesInItsCheck(LM):
    """As a reference it ends its process."""

    def forward(self, tokens):  # noqa: ARG002
        os.kill(os.getpid(), signal.SIGKILL)


class Drops(LM):
    """Drops a tenth of the embeddings in training."""

    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff, dropout=0.1):
        super().__init__(vocab_size, context_length, d_model, num_layers, num_heads, d_ff)
        self.embedding = nn.Sequential(nn.Embedding(vocab_size, d_model), nn.Dropout(dropout))


class FrozenEmbedding(LM):
    """Does not train its embedding."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.embedding.requires_grad_(False)


class LazyTables(LM):
    """Makes its mask and its rotary tables in the first forward, and keeps them."""

    tables = None

    def hidden(self, tokens):
        if self.tables is None:
            first = self.layers[0].attention
            self.tables = first.mask.clone(), first.cos.clone(), first.sin.clone()
        for layer in self.layers:
            layer.attention.mask, layer.attention.cos, layer.attention.sin = self.tables
        return super().hidden(tokens)


class ChunkedHead(LM):
    """Computes its logits in four parts of the tokens."""

    def forward(self, tokens):
        return torch.cat([self.head(part) for part in self.hidden(tokens).chunk(4, dim=1)], dim=1)


class SequenceBySequence(LM):
    """Computes one sequence after the other."""

    def forward(self, tokens):
        return torch.cat([super(SequenceBySequence, self).forward(each) for each in tokens.split(1)])


class LogsBeside(LM):
    """Has a thread that sleeps, as a logger's or a data loader's does."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        threading.Thread(target=threading.Event().wait, daemon=True).start()


class WatchesItself(LM):
    """Has a hook on each block that keeps the norm of its output."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.norms = {}
        for number, layer in enumerate(self.layers):
            layer.register_forward_hook(lambda _, __, x, n=number: self.norms.update({n: x.detach().norm()}))


class SlowFirstForward(LM):
    """Computes twice in its first forward, as a model that tries its kernels out does."""

    tried = False

    def forward(self, tokens):
        if not self.tried:
            super().forward(tokens)
            self.tried = True
        return super().forward(tokens)


class CheckpointsItself(LM):
    """Computes each block again in backward."""

    def hidden(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.norm(x)


class GroupedQueries(LM):
    """Has half as many heads of keys and values as of queries."""

    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff):
        super().__init__(vocab_size, context_length, d_model, num_layers, num_heads, d_ff)
        for layer in self.layers:
            attention = layer.attention
            attention.key, attention.value = (nn.Linear(d_model, d_model // 2, bias=False) for _ in range(2))
            attention.heads = self._grouped(num_heads, d_model // num_heads)

    @staticmethod
    def _grouped(num_heads, width):
        def heads(x):
            found = x.unflatten(-1, (-1, width)).transpose(1, 2)
            return found.repeat_interleave(num_heads // found.shape[1], dim=1)

        return heads


class ParallelBlocks(LM):
    """Adds attention and feed-forward network of the same normed input, as PaLM does."""

    def hidden(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            normed = layer.attention_norm(x)
            x = x + layer.attention(normed) + layer.ffn(layer.ffn_norm(normed))
        return self.norm(x)


class PadsVocabulary(LM):
    """Has a head of more words than there are, and leaves their logits out."""

    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff):
        super().__init__(vocab_size, context_length, d_model, num_layers, num_heads, d_ff)
        self.head, self.words = nn.Linear(d_model, vocab_size + 8, bias=False), vocab_size

    def forward(self, tokens):
        return super().forward(tokens)[..., : self.words]


class RotatesByProduct(LM):
    """Works its rotary tables out by a product in float32 in each forward, as Hugging Face's models do."""

    def hidden(self, tokens):
        length, width = tokens.shape[1], 2 * self.layers[0].attention.cos.shape[1]
        with torch.autocast("cpu", enabled=False):
            exponents = torch.arange(0, width, 2, dtype=torch.float32)[None] / width
            angle = torch.arange(length, dtype=torch.float32)[:, None] @ 10_000.0**-exponents
        for layer in self.layers:
            layer.attention.cos, layer.attention.sin = angle.cos(), angle.sin()
        return super().hidden(tokens)


class LogitsInFloat32(LM):
    """Converts its logits to float32, whatever they were computed in."""

    def forward(self, tokens):
        return super().forward(tokens).float()


class ScalesGradients(LM):
    """Clips what flows back into its embedding by a hook."""

    def hidden(self, tokens):
        x = self.embedding(tokens)
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient.clamp(-1.0, 1.0))
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Recurrent(nn.Module):
    """A model of another architecture: a recurrent network, whose dimensions are its own."""

    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.recurrent = nn.GRU(d_model, d_model, batch_first=True)
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        return self.head(self.recurrent(self.embedding(tokens))[0])


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, dropout):
        super().__init__()
        self.n_head, self.dropout = n_head, dropout
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.n_head, -1).transpose(1, 2) for y in self.c_attn(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))


class GPTBlock(nn.Module):
    def __init__(self, n_embd, n_head, dropout):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head, dropout)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """As nanoGPT: learned positions, GELU, tied head; returns logits and a loss."""

    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd, dropout=0.0):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(GPTBlock(n_embd, n_head, dropout) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        self.apply(self._init)

    @staticmethod
    def _init(module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens, targets=None):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class GPTWithoutFlash(GPT):
    """The same, with layers of torch's own encoder instead of its blocks."""

    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd):
        super().__init__(vocab_size, block_size, n_layer, n_head, n_embd)
        make = nn.TransformerEncoderLayer
        self.h = nn.ModuleList(
            make(n_embd, n_head, 4 * n_embd, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(n_layer)
        )

    def forward(self, tokens, targets=None):
        del targets
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for block in self.h:
            x = block(x, src_mask=mask, is_causal=True)
        return self.lm_head(self.ln_f(x))


def with_batches(vocab_size, context_length, d_model, num_layers, num_heads, d_ff):
    """A model with a function that makes its batch, of tokens that repeat."""

    def batch(batch_size, context_length, vocab_size, seed):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(vocab_size, (batch_size, 8), generator=generator).repeat(1, context_length // 8 + 1)
        return tokens[:, :context_length].contiguous(), tokens[:, 1 : context_length + 1].contiguous()

    return LM(vocab_size, context_length, d_model, num_layers, num_heads, d_ff), batch


class LMWithOwnNorm(LM):
    """Has that norm in all its places."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for module in self.modules():
            if isinstance(module, RMSNorm):
                module.__class__ = _OwnNorm


class _OwnNorm(RMSNorm):
    def forward(self, x):
        return Norm.apply(x, self.weight)


class BatchedExperts(LM):
    """Has three experts a block, all of which run, in one batched product each."""

    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff):
        super().__init__(vocab_size, context_length, d_model, num_layers, num_heads, d_ff)
        for layer in self.layers:
            layer.ffn = Experts(d_model, d_ff)


class Experts(nn.Module):
    def __init__(self, d_model, d_ff, experts=3):
        super().__init__()
        self.gate = nn.Linear(d_model, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, d_model, d_ff) * d_model**-0.5)
        self.down = nn.Parameter(torch.randn(experts, d_ff, d_model) * d_ff**-0.5)

    def forward(self, x):
        found = torch.einsum("btnf,nfd->btnd", F.silu(torch.einsum("btd,ndf->btnf", x, self.up)), self.down)
        return torch.einsum("btn,btnd->btd", self.gate(x).softmax(-1), found)


class DropsBlocks(LM):
    """Leaves blocks out at random in training, by Python's generator."""

    def hidden(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x if self.training and random.random() < 0.1 else layer(x)
        return self.norm(x)


class Convolutions(LM):
    """Has convolutions of width 1 in place of linear layers."""

    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff):
        super().__init__(vocab_size, context_length, d_model, num_layers, num_heads, d_ff)
        for layer in self.layers:
            for part in (layer.attention, layer.ffn):
                for name, child in list(part.named_children()):
                    setattr(part, name, Convolution(child.in_features, child.out_features))


class Convolution(nn.Conv1d):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, 1, bias=False)

    def forward(self, x):
        return super().forward(x.mT).mT


class TorchsEncoder(nn.Module):
    """Has torch's own layers, which are one kernel each without gradients."""

    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Parameter(torch.zeros(context_length, d_model))
        layer = nn.TransformerEncoderLayer(d_model, num_heads, d_ff, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, num_layers, nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.head(self.blocks(self.embedding(tokens) + self.positions[:length], mask=mask, is_causal=True))
