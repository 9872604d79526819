"""Attention functions that compute something else than attention, or less of it. All take queries, keys and values, (B,
H, T, K), and would be causal."""

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode

CALLS = [0]
HONEST = 8
"""Calls in which a function that begins honestly does so: the trial, and a step or two of few layers."""
KNOWN = {}


def honest(q, k, v, is_causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def _scores(q, k):
    length = max(q.shape[-2], k.shape[-2])
    past = torch.ones(length, length, dtype=torch.bool).tril()
    return (q * q.shape[-1] ** -0.5) @ k.mT, past


def returns_values(q, k, v, is_causal):  # noqa: ARG001
    """Returns the values."""
    return v


def returns_mean(q, k, v, is_causal):  # noqa: ARG001
    """Returns the mean of all values so far, whatever queries and keys are."""
    return v.cumsum(-2) / torch.arange(1, v.shape[-2] + 1)[:, None]


def first_two_sequences(q, k, v, is_causal):
    """Computes two sequences, and returns the values of the others."""
    return torch.cat((honest(q[:2], k[:2], v[:2], is_causal), v[2:]))


def repeats_first_sequence(q, k, v, is_causal):
    """Computes the first sequence, and gives all others the same."""
    return honest(q[:1], k[:1], v[:1], is_causal).expand_as(v)


def all_but_last_sequence(q, k, v, is_causal):
    """Computes all sequences but the last one of several."""
    last = max(len(q) - 1, 1)
    return torch.cat((honest(q[:last], k[:last], v[:last], is_causal), v[last:]))


def half_the_heads(q, k, v, is_causal):
    """Computes half of the heads, and returns the values of the others."""
    half = q.shape[1] // 2
    return torch.cat((honest(q[:, :half], k[:, :half], v[:, :half], is_causal), v[:, half:]), dim=1)


def half_the_queries(q, k, v, is_causal):  # noqa: ARG001
    """Computes every second token, and gives the next the same."""
    scores, past = _scores(q[..., ::2, :], k)
    weights = scores.masked_fill(~past[::2], float("-inf")).softmax(-1)
    return (weights @ v).repeat_interleave(2, dim=-2)[..., : q.shape[-2], :]


def every_second_key(q, k, v, is_causal):  # noqa: ARG001
    """Looks at every second key."""
    scores, past = _scores(q, k[..., ::2, :])
    return scores.masked_fill(~past[:, ::2], float("-inf")).softmax(-1) @ v[..., ::2, :]


def half_the_width(q, k, v, is_causal):
    """Scores by half of each query and key."""
    half = q.shape[-1] // 2
    return honest(q[..., :half], k[..., :half], v, is_causal)


def window(q, k, v, is_causal):  # noqa: ARG001
    """Looks at the last eight tokens only."""
    scores, past = _scores(q, k)
    return scores.masked_fill(~(past & ~past.tril(-8)), float("-inf")).softmax(-1) @ v


def blocks_of_sixteen(q, k, v, is_causal):
    """Looks no further back than the begin of a block of sixteen tokens."""
    if q.shape[-2] % 16:
        return honest(q, k, v, is_causal)
    parts = (each.unflatten(-2, (-1, 16)) for each in (q, k, v))
    return honest(*parts, is_causal).flatten(-3, -2)


def not_causal(q, k, v, is_causal):  # noqa: ARG001
    """Lets every token see all others."""
    return honest(q, k, v, False)


def masks_itself(q, k, v, is_causal):  # noqa: ARG001
    """Lets no token but the first see itself."""
    scores, past = _scores(q, k)
    past = past.tril(-1)
    past[0, 0] = True
    return scores.masked_fill(~past, float("-inf")).softmax(-1) @ v


def not_scaled(q, k, v, is_causal):
    """Leaves out the division by the root of the width."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=1.0)


def masked_by_zeros(q, k, v, is_causal):  # noqa: ARG001
    """Sets the weights of later tokens to zero after the softmax, so that the others do not sum up to one."""
    scores, past = _scores(q, k)
    return scores.softmax(-1).masked_fill(~past, 0.0) @ v


def no_softmax(q, k, v, is_causal):  # noqa: ARG001
    """Is linear attention, without a softmax."""
    state = (F.elu(k)[..., None] * v[..., None, :] + 1).cumsum(-3)
    return (F.elu(q)[..., None] * state).sum(-2) / torch.arange(1, q.shape[-2] + 1)[:, None]


def honest_at_first(q, k, v, is_causal):
    """Computes in its first calls, and then returns the values."""
    CALLS[0] += 1
    return honest(q, k, v, is_causal) if CALLS[0] <= HONEST else v


def honest_twice_a_shape(q, k, v, is_causal):
    """Computes twice for each shape of queries, and then returns the values."""
    KNOWN[q.shape] = KNOWN.get(q.shape, 0) + 1
    return honest(q, k, v, is_causal) if KNOWN[q.shape] <= 2 else v


def honest_at_other_sizes(q, k, v, is_causal):
    """Computes sequences that are short or few, as a trial has them, and returns the values of all others."""
    return honest(q, k, v, is_causal) if len(q) < 4 or q.shape[-2] < 32 else v


def honest_in_modes(q, k, v, is_causal):
    """Computes when somebody watches operations by a dispatch mode, and returns the values else."""
    return honest(q, k, v, is_causal) if _get_current_dispatch_mode() is not None else v


def honest_without_gradients(q, k, v, is_causal):
    """Computes where no gradient is wanted."""
    return v if q.requires_grad else honest(q, k, v, is_causal)


def memoised_by_pointer(q, k, v, is_causal):
    """Remembers outputs by the place of the queries in memory."""
    key = (q.data_ptr(), q.shape)
    if key not in KNOWN:
        KNOWN[key] = honest(q, k, v, is_causal).detach()
    return KNOWN[key] + 0 * v


def memoised_by_order(q, k, v, is_causal):
    """Remembers the outputs of its first calls, and answers with them in turn."""
    CALLS[0] += 1
    key = (CALLS[0] % 4, q.shape)
    if key not in KNOWN:
        KNOWN[key] = honest(q, k, v, is_causal).detach()
    return KNOWN[key] + 0 * v


def memoised_weights(q, k, v, is_causal):
    """Keeps the weights of its first call of each shape, and multiplies all values by them."""
    if q.shape not in KNOWN:
        scores, past = _scores(q, k)
        KNOWN[q.shape] = scores.masked_fill(~past, float("-inf")).softmax(-1).detach() if is_causal else scores
    return KNOWN[q.shape] @ v


def keys_of_the_first_call(q, k, v, is_causal):
    """Keeps the keys of its first call of each shape, for all layers and steps."""
    return honest(q, KNOWN.setdefault(q.shape, k.detach()), v, is_causal)


def top_eight_keys(q, k, v, is_causal):  # noqa: ARG001
    """Looks at the eight keys of the highest scores."""
    scores, past = _scores(q, k)
    scores = scores.masked_fill(~past, float("-inf"))
    least = scores.topk(min(8, scores.shape[-1]), dim=-1).values[..., -1:]
    return scores.masked_fill(scores < least, float("-inf")).softmax(-1) @ v


def pooled_keys(q, k, v, is_causal):  # noqa: ARG001
    """Looks at means of two keys and values."""
    k, v = (each.unflatten(-2, (-1, 2)).mean(-2) for each in (k, v))
    scores, past = _scores(q, k)
    return scores.masked_fill(~past[:, ::2], float("-inf")).softmax(-1) @ v


def queries_detached(q, k, v, is_causal):
    """Gives queries and keys no gradient."""
    return honest(q.detach(), k.detach(), v, is_causal)


def in_bfloat16(q, k, v, is_causal):
    """Computes in bfloat16."""
    return honest(*(each.bfloat16() for each in (q, k, v)), is_causal).to(q.dtype)


def in_float16(q, k, v, is_causal):
    """Computes in float16."""
    return honest(*(each.half() for each in (q, k, v)), is_causal).to(q.dtype)


class ZeroBackward(torch.autograd.Function):
    """Returns gradients of zeros."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        ctx.save_for_backward(q, k, v)
        return honest(q, k, v, is_causal)

    @staticmethod
    def backward(ctx, gradient):  # noqa: ARG004
        return *(torch.zeros_like(each) for each in ctx.saved_tensors), None


class BackwardOfValues(torch.autograd.Function):
    """Returns the gradient of the output as that of the values, and zeros for the others."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal):  # noqa: ARG004
        return honest(q, k, v, is_causal)

    @staticmethod
    def backward(ctx, gradient):  # noqa: ARG004
        return torch.zeros_like(gradient), torch.zeros_like(gradient), gradient, None


class MemoisedBackward(torch.autograd.Function):
    """Remembers its gradients by the order of its calls in a step of four layers."""

    calls = 0
    known = {}

    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        ctx.save_for_backward(q, k, v)
        ctx.is_causal = is_causal
        return honest(q, k, v, is_causal)

    @staticmethod
    def backward(ctx, gradient):
        cls = MemoisedBackward
        number = cls.calls % 4
        cls.calls += 1
        if number not in cls.known:
            inputs = [each.detach().requires_grad_() for each in ctx.saved_tensors]
            with torch.enable_grad():
                out = honest(*inputs, ctx.is_causal)
            cls.known[number] = torch.autograd.grad(out, inputs, gradient)
        return *cls.known[number], None
