"""Norms that would be an RMSNorm of rows (..., D) with weights (D,)."""

import torch


def honest(x, weight):
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def returns_rows(x, weight):  # noqa: ARG001
    """Returns the rows."""
    return x


def without_norm(x, weight):
    """Multiplies by the weights only."""
    return x * weight


def first_two_sequences(x, weight):
    """Computes two sequences, and returns the others."""
    return torch.cat((honest(x[:2], weight), x[2:]))


def by_half_of_the_width(x, weight):
    """Takes the mean over half of each row."""
    return x * (x[..., ::2].square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


class ZeroBackward(torch.autograd.Function):
    """Passes the gradient on as it is, and gives the weights none."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.width = weight.shape
        return honest(x, weight)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient.new_zeros(ctx.width)
