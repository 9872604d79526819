"""Naming the parts of a model, for whoever looks at where time and memory go. A model that is timed is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

from torch import nn

from cs336_tui.events.reports import Range
from cs336_tui.worker.workload.annotations import Annotation, annotated_functions, usual_annotations
from cs336_tui.worker.workload.attention_only import AttentionOnly
from cs336_tui.worker.workload.parts import part_of_each
from cs336_tui.worker.workload.transformer import Attention, Block, Transformer

Around = Callable[[str], AbstractContextManager[object]]
"""Makes what is entered round a part of this name."""
Part = tuple[nn.Module, str, Range]
"""A module, the method of it that does the part's work, the part."""

_ATTENTION_METHODS: dict[str, Range] = {
    "score": "attention scores", "weigh": "softmax", "mix": "final matmul", "attend": "attention core",
}  # fmt: skip
"""What our own attention does between its projections."""


def name_parts(model: nn.Module, around: Around, annotations: Sequence[Annotation] = ()) -> None:
    """Have every part of the model run inside ``around(its range)``; for good, so give it a model of its own.

    Ranges nest: what belongs to no inner part belongs to the innermost one round it. Of a user's model the parts are
    found by the names and classes of its modules; `annotations` add functions, and go before what is usual.

    Raises ValueError, in one line, for an annotation of an unknown range, or of a function that is not there.
    """
    own = isinstance(model, Transformer | AttentionOnly)
    parts = list(_parts(model) if own else _parts_by_name(model))
    functions = [*annotations, *(() if own else usual_annotations(module for module, _, _ in parts))]
    if functions:
        # A block too, as the model does not run where a checkpointed one is computed again.
        scope = annotated_functions(model, functions, around)
        for module in dict.fromkeys((model, *(module for module, _, name in parts if name == "residual"))):
            _wrap(module, "forward", scope)
    for module, method, name in parts:
        _wrap(module, method, lambda name=name: around(name))  # type: ignore[misc]


def _parts(model: Transformer | AttentionOnly) -> Iterator[Part]:
    """Of our own models."""
    if isinstance(model, AttentionOnly):
        yield model, "forward", "attention core"
        yield from _steps_of(model)
        return
    yield model, "forward", "embedding"  # of its own it does nothing but look up and add positions
    yield model.head, "forward", "head"
    yield model.final_norm, "forward", "norms"
    rotary = None
    for block in (module for module in model.modules() if isinstance(module, Block)):
        attention = block.attention
        yield block, "forward", "residual"
        yield block.attention_norm, "forward", "norms"
        yield block.ffn_norm, "forward", "norms"
        yield block.ffn, "forward", "feed-forward"
        yield from _attention_parts(attention)
        if attention.rotary is not None and attention.rotary is not rotary:  # all blocks share one
            rotary = attention.rotary
            yield rotary, "forward", "rotary"


def _attention_parts(attention: Attention) -> Iterator[Part]:
    yield attention, "forward", "attention rest"
    for projection in (attention.query, attention.key, attention.value):
        yield projection, "forward", "QKV projections"
    yield from _steps_of(attention)
    yield attention.output, "forward", "output projection"


def _steps_of(attention: nn.Module) -> Iterator[Part]:
    return ((attention, method, name) for method, name in _ATTENTION_METHODS.items() if hasattr(attention, method))


def _parts_by_name(model: nn.Module) -> Iterator[Part]:
    return ((module, "forward", name) for module, name in part_of_each(model).items())


def _wrap(owner: nn.Module, method: str, around: Callable[[], AbstractContextManager[object]]) -> None:
    inner: Callable[..., Any] = getattr(owner, method)

    @wraps(inner)
    def named(*args: Any, **kwargs: Any) -> Any:
        with around():
            return inner(*args, **kwargs)

    setattr(owner, method, named)
