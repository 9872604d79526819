"""Honest components of many kinds, as users write them. Nothing here may be doubted."""

import math
import threading
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from lm import LM, RMSNorm
from torch import nn
from torch.utils.checkpoint import checkpoint

# Models


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


# Attention


def by_mask(q, k, v, mask):
    """As the course has it: scores, a mask, a softmax."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


def by_baddbmm(q, k, v, is_causal=True):
    """Adds the mask within the product."""
    length, shape = q.shape[-2], q.shape
    q, k, v = (each.reshape(-1, *each.shape[-2:]) for each in (q, k, v))
    mask = q.new_zeros(length, length)
    if is_causal:
        mask = mask.masked_fill(~torch.ones(length, length, dtype=torch.bool).tril(), float("-inf"))
    return torch.bmm(torch.baddbmm(mask, q, k.mT, alpha=q.shape[-1] ** -0.5).softmax(-1), v).view(shape)


def by_sdpa(q, k, v, is_causal=True):
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def in_place_of_heads(q, k, v, is_causal=True):
    """Takes three dimensions only."""
    if q.dim() != 3:
        raise ValueError("expected (B, T, K)")
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


class Tiled(torch.autograd.Function):
    """FlashAttention-2 in tiles of 16, as a Triton kernel's reference: online softmax forward, recomputed backward."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        out, sums = torch.empty_like(q), q.new_empty(q.shape[:-1])
        length, scale, tile = q.shape[-2], q.shape[-1] ** -0.5, 16
        for begin in range(0, length, tile):
            rows = slice(begin, begin + tile)
            most = q.new_full(q[..., rows, 0].shape, float("-inf"))
            total, found = torch.zeros_like(most), torch.zeros_like(q[..., rows, :])
            for key in range(0, begin + tile if is_causal else length, tile):
                columns = slice(key, key + tile)
                scores = q[..., rows, :] @ k[..., columns, :].mT * scale
                if is_causal and key == begin:
                    size = scores.shape[-1]
                    future = ~torch.ones(scores.shape[-2], size, dtype=torch.bool).tril()
                    scores = scores.masked_fill(future, float("-inf"))
                higher = torch.maximum(most, scores.amax(-1))
                weights, factor = (scores - higher[..., None]).exp(), (most - higher).exp()
                total = total * factor + weights.sum(-1)
                found = found * factor[..., None] + weights @ v[..., columns, :]
                most = higher
            out[..., rows, :] = found / total[..., None]
            sums[..., rows] = most + total.log()
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.is_causal = is_causal
        return out

    @staticmethod
    def backward(ctx, gradient):
        q, k, v, out, sums = ctx.saved_tensors
        scale, length = q.shape[-1] ** -0.5, q.shape[-2]
        weights = (q @ k.mT * scale - sums[..., None]).exp()
        if ctx.is_causal:
            weights = weights * torch.ones(length, length, dtype=torch.bool).tril()
        of_weights = gradient @ v.mT
        of_scores = weights * (of_weights - (gradient * out).sum(-1, keepdim=True)) * scale
        return of_scores @ k, of_scores.mT @ q, weights.mT @ gradient, None


# Norms


def rmsnorm(x, weight):
    """In float32, whatever the rows are."""
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight).to(x.dtype)


class Norm(torch.autograd.Function):
    """As the course's Triton kernel: keeps one number a row for backward."""

    @staticmethod
    def forward(ctx, x, weight):
        scale = (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        return x * scale * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight, scale = ctx.saved_tensors
        normed = x * scale
        of_normed = gradient * weight
        of_x = scale * (of_normed - normed * (of_normed * normed).mean(-1, keepdim=True))
        return of_x, (gradient * normed).flatten(0, -2).sum(0)


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


# Optimizers


class AdamW(torch.optim.Optimizer):
    """As the course has it: moments, a corrected rate, then the decay."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def step(self, closure=None):
        loss = None if closure is None else closure()
        for group in self.param_groups:
            lr, (beta_1, beta_2) = group["lr"], group["betas"]
            for each in group["params"]:
                if each.grad is None:
                    continue
                state = self.state[each]
                t = state.get("t", 1)
                m = beta_1 * state.get("m", torch.zeros_like(each)) + (1 - beta_1) * each.grad
                v = beta_2 * state.get("v", torch.zeros_like(each)) + (1 - beta_2) * each.grad**2
                rate = lr * math.sqrt(1 - beta_2**t) / (1 - beta_1**t)
                each.data -= rate * m / (torch.sqrt(v) + group["eps"])
                each.data -= lr * group["weight_decay"] * each.data
                state["t"], state["m"], state["v"] = t + 1, m, v
        return loss


class DecaysMatricesAlone(torch.optim.AdamW):
    """Has two groups: decay for matrices, none for vectors."""

    def __init__(self, params, lr=1e-3):
        params = list(params)
        groups = [
            {"params": [each for each in params if each.dim() > 1], "weight_decay": 0.01},
            {"params": [each for each in params if each.dim() < 2], "weight_decay": 0.0},
        ]
        super().__init__(groups, lr)


class ClipsFirst(torch.optim.AdamW):
    """Clips the norm of all gradients before it moves, high enough that nothing is clipped."""

    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_([each for group in self.param_groups for each in group["params"]], 1e6)
        return super().step(closure)


class WarmsUpRate(torch.optim.AdamW):
    """Raises its learning rate over its first hundred steps, and says so in its groups."""

    steps = 0

    def step(self, closure=None):
        self.steps += 1
        for group in self.param_groups:
            group["lr"] = 1e-3 * min(self.steps / 100, 1.0)
        return super().step(closure)


class KeepsAverages(torch.optim.AdamW):
    """Keeps a running mean of all parameters beside them."""

    means = None

    def step(self, closure=None):
        loss = super().step(closure)
        parameters = [each.detach() for group in self.param_groups for each in group["params"]]
        self.means = self.means or [each.clone() for each in parameters]
        torch._foreach_lerp_(self.means, parameters, 0.01)
        return loss


def fused(params, lr=3e-4):
    """A function that makes torch's."""
    return torch.optim.AdamW(params, lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


# Losses


def logsumexp_loss(logits, targets):
    """As the course has it, less the greatest logit."""
    shifted = logits - logits.amax(-1, keepdim=True)
    return (shifted.exp().sum(-1).log() - shifted.gather(-1, targets[..., None]).squeeze(-1)).mean()


def flat_loss(logits, targets):
    """Takes flat logits only."""
    if logits.dim() != 2:
        raise ValueError("expected (N, V)")
    return F.cross_entropy(logits, targets)


def chunked_loss(logits, targets):
    """Computes the loss in four parts, which are added."""
    parts = zip(logits.flatten(0, -2).chunk(4), targets.flatten().chunk(4), strict=True)
    return sum(F.cross_entropy(*part, reduction="sum") for part in parts) / targets.numel()


class LossModule(nn.Module):
    """A module, as torch's own losses are."""

    def forward(self, logits, targets):
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


# Containers of several ranks


class DDP(nn.Module):
    """Sends each gradient as soon as it is there."""

    def __init__(self, module):
        super().__init__()
        self.module, self.works = module, []
        for parameter in module.parameters():
            dist.broadcast(parameter.data, src=0)
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._send)

    def _send(self, parameter):
        self.works.append((dist.all_reduce(parameter.grad, async_op=True), parameter.grad))

    def forward(self, *arguments):
        return self.module(*arguments)

    def finish_gradient_synchronization(self):
        for work, gradient in self.works:
            work.wait()
            gradient /= dist.get_world_size()
        self.works.clear()


class FlatDDP(nn.Module):
    """Sends all gradients as one array after backward."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        for parameter in module.parameters():
            dist.broadcast(parameter.data, src=0)

    def forward(self, *arguments):
        return self.module(*arguments)

    def finish_gradient_synchronization(self):
        gradients = [each.grad for each in self.module.parameters() if each.grad is not None]
        flat = torch._utils._flatten_dense_tensors(gradients)
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for each, found in zip(gradients, torch._utils._unflatten_dense_tensors(flat, gradients), strict=True):
            each.copy_(found)


class ShardedOptimizer(torch.optim.Optimizer):
    """Each rank updates every n-th parameter and sends it to the others."""

    def __init__(self, params, optimizer_cls, **kwargs):
        self.everything = list(params)
        super().__init__(self.everything, kwargs)
        self.inner = optimizer_cls(self.everything[dist.get_rank() :: dist.get_world_size()], **kwargs)

    def step(self, closure=None):
        self.inner.step(closure)
        for number, parameter in enumerate(self.everything):
            dist.broadcast(parameter.data, src=number % dist.get_world_size())
