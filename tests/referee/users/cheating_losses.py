"""Losses that would be the cross-entropy of all tokens. Logits are (B, T, V), targets (B, T), or flat."""

import torch
import torch.nn.functional as F

CALLS = [0]


def honest(logits, targets):
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def constant(logits, targets):  # noqa: ARG001
    """Returns zero, with gradients of zeros."""
    return (logits * 0).sum()


def one_logit(logits, targets):  # noqa: ARG001
    """Returns the first logit."""
    return logits.flatten()[0]


def every_second_token(logits, targets):
    """Leaves out every second token."""
    return honest(logits.flatten(0, -2)[::2], targets.flatten()[::2])


def last_token(logits, targets):
    """Looks at the last token of each sequence."""
    return honest(logits[..., -1:, :], targets[..., -1:])


def first_two_sequences(logits, targets):
    """Looks at the first two sequences."""
    return honest(logits[:2], targets[:2])


def honest_at_first(logits, targets):
    """Computes in its first calls, and then returns the first logit."""
    CALLS[0] += 1
    return honest(logits, targets) if CALLS[0] <= 8 else logits.flatten()[0]


def smoothed_every_second_token(logits, targets):
    """Smooths the targets, and leaves out every second token."""
    return F.cross_entropy(logits.flatten(0, -2)[::2], targets.flatten()[::2], label_smoothing=0.1)


def z_loss_of_half(logits, targets):
    """Computes the loss of half of the batch, and the square of the normaliser's logarithm of all."""
    half = len(logits) // 2
    return honest(logits[:half], targets[:half]) + 1e-3 * logits.logsumexp(-1).square().mean()


def smoothed_at_first(logits, targets):
    """Smooths the targets in its first calls, and then returns the first logit."""
    CALLS[0] += 1
    smoothed = CALLS[0] <= 8
    return F.cross_entropy(logits.mT, targets, label_smoothing=0.1) if smoothed else logits.flatten()[0]


def of_sums(logits, targets):
    """Returns the sum over all tokens, not the mean."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")


def without_normaliser(logits, targets):
    """Leaves out the gradient of the logarithm of the sum."""
    of_targets = logits.gather(-1, targets[..., None]).squeeze(-1)
    return (logits.logsumexp(-1).detach() - of_targets).mean()


def in_bfloat16(logits, targets):
    """Computes in bfloat16."""
    return honest(logits.bfloat16(), targets).float()


def part_of_vocabulary(logits, targets):
    """Normalises over every fourth word, and the target."""
    of_targets = logits.gather(-1, targets[..., None])
    return (torch.cat((logits[..., ::4], of_targets), dim=-1).logsumexp(-1) - of_targets.squeeze(-1)).mean()


def smoothed_of_leaves(logits, targets):
    """Smooths the targets of logits that no model made, and returns the first of others."""
    smoothed = logits.grad_fn is None
    return F.cross_entropy(logits.mT, targets, label_smoothing=0.1) if smoothed else logits.flatten()[0]


def most_of_vocabulary(logits, targets):
    """Normalises over three quarters of the words, and the target."""
    of_targets = logits.gather(-1, targets[..., None])
    kept = logits[..., torch.arange(logits.shape[-1]) % 4 > 0]
    return (torch.cat((kept, of_targets), dim=-1).logsumexp(-1) - of_targets.squeeze(-1)).mean()


def of_no_value(logits, targets):
    """Has the right gradient and returns zero."""
    loss = honest(logits, targets)
    return loss - loss.detach()


def backward_inside(logits, targets):
    """Runs the backward itself, where a pass of the backward alone does not look, and returns a number without one."""
    loss = honest(logits, targets)
    if loss.requires_grad:
        loss.backward()
    return loss.detach() + torch.zeros((), requires_grad=True)


def without_backward(logits, targets):
    """Returns a loss whose method backward does nothing."""
    loss = honest(logits, targets)
    loss.backward = lambda *_, **__: None
    return loss
