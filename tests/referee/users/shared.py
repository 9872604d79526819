"""Pieces of several cheats."""

WARM_UP = 3
"""Calls in which a component that knows the tool's usual warm-up is honest."""


def nothing(model, tokens):
    """Logits of zeros, of the right shape and with a graph, at no cost."""
    head = model.head.weight
    return (head[0, 0] * 0).expand(*tokens.shape, head.shape[0])
