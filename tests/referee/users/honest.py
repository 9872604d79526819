"""Honest attentions, norms, optimizers, losses and containers, as users write them. None of them may be doubted."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

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


class Clips(torch.optim.AdamW):
    """Clips the norm of all gradients so low that it always clips."""

    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_([each for group in self.param_groups for each in group["params"]], 0.1)
        return super().step(closure)


class ClearsGradients(torch.optim.AdamW):
    """Clears the gradients as soon as it has moved."""

    def step(self, closure=None):
        loss = super().step(closure)
        self.zero_grad()
        return loss


class MomentumInPlace(torch.optim.Optimizer):
    """SGD with momentum, whose decay is added to the gradient itself."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr, "momentum": 0.9, "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure=None):  # noqa: ARG002
        for group in self.param_groups:
            for each in group["params"]:
                each.grad.add_(each, alpha=group["weight_decay"])
                moment = self.state[each].setdefault("momentum", torch.zeros_like(each))
                each.sub_(moment.mul_(group["momentum"]).add_(each.grad), alpha=group["lr"])


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


def label_smoothing(logits, targets):
    """Of targets smoothed by a tenth."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), label_smoothing=0.1)


def z_loss(logits, targets):
    """With the square of the normaliser's logarithm beside it (Chowdhery et al. 2022)."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten()) + 1e-3 * logits.logsumexp(-1).square().mean()


def focal(logits, targets):
    """Weighs each token by how little it is expected (Lin et al. 2017)."""
    each = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return ((1 - (-each).exp()) ** 2 * each).mean()


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
