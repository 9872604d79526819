"""What stands in for a device in a prediction (its autocast, its attention) is there too when activations are computed
again: torch restores its own autocast then, and calls backward outside modes of functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.utils.checkpoint as checkpointing
from torch.overrides import _get_current_function_mode_stack

_GENERATOR = next(
    name
    for name in ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
    if hasattr(checkpointing, name)
)
"""What runs a forward that is not reentrant; the first of these is there from torch 2.15 on."""


@contextmanager
def modes_kept_for_recomputation() -> Iterator[None]:
    """Whatever `torch.utils.checkpoint` computes again runs in the modes of its forward, whoever calls it and under
    whichever name, reentrant or not."""
    generator, function = getattr(checkpointing, _GENERATOR), checkpointing.CheckpointFunction

    def with_modes(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return generator(_in_modes_of_now(run), *args, **kwargs)

    class WithModes:
        @staticmethod
        def apply(run: Callable[..., Any], *args: Any) -> Any:
            return function.apply(_in_modes_of_now(run), *args)

    setattr(checkpointing, _GENERATOR, with_modes)
    checkpointing.CheckpointFunction = WithModes
    try:
        yield
    finally:
        setattr(checkpointing, _GENERATOR, generator)
        checkpointing.CheckpointFunction = function


def _in_modes_of_now(run: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which in a backward enters the modes that are in force now."""
    modes = tuple(_get_current_function_mode_stack())

    def again(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for mode in modes if torch._C._current_autograd_node() is not None else ():
                stack.enter_context(mode)
            return run(*args, **kwargs)

    return again
