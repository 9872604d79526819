"""Naming the parts of a model, for whoever looks at where time and memory go. A model that is timed is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

from torch import nn

from cs336_tui.reports import Range
from cs336_tui.workload.transformer import Attention, Block, Transformer

Around = Callable[[str], AbstractContextManager[object]]
"""Makes what is entered round a part of this name."""


def name_parts(model: nn.Module, around: Around) -> None:
    """Have every part of the model run inside ``around(its range)``; for good, so give it a model of its own.

    Ranges nest: what belongs to no inner part belongs to the innermost one round it.
    """
    for owner, method, name in _parts(model) if isinstance(model, Transformer) else ():
        _wrap(owner, method, name, around)


def _parts(model: Transformer) -> Iterator[tuple[nn.Module, str, Range]]:
    yield model, "forward", "embedding"  # of its own it does nothing but look up and add positions
    yield model.head, "forward", "head"
    yield model.final_norm, "forward", "norms"
    for block in model.layers:
        assert isinstance(block, Block)
        attention = block.attention
        yield block, "forward", "residual"
        yield block.attention_norm, "forward", "norms"
        yield block.ffn_norm, "forward", "norms"
        yield block.ffn, "forward", "feed-forward"
        yield from _attention_parts(attention)
        if attention.rotary is not None and block is model.layers[0]:  # all blocks share one
            yield attention.rotary, "forward", "rotary"


def _attention_parts(attention: Attention) -> Iterator[tuple[nn.Module, str, Range]]:
    yield attention, "forward", "attention rest"
    for projection in (attention.query, attention.key, attention.value):
        yield projection, "forward", "QKV projections"
    yield attention, "score", "attention scores"
    yield attention, "weigh", "softmax"
    yield attention, "mix", "final matmul"
    yield attention.output, "forward", "output projection"


def _wrap(owner: nn.Module, method: str, name: str, around: Around) -> None:
    inner: Callable[..., Any] = getattr(owner, method)

    @wraps(inner)
    def named(*args: Any, **kwargs: Any) -> Any:
        with around(name):
            return inner(*args, **kwargs)

    setattr(owner, method, named)
