"""A user's own attention from its name, told to be causal by whichever of its arguments says so."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cs336_tui.worker.workload.imported.argument_binding import parameters_of, signature_in_words
from cs336_tui.worker.workload.imported.finding import find
from cs336_tui.worker.workload.imported.problems import ImportProblem

_FLAGS = ("is_causal", "causal")
_MASKS = ("mask", "attn_mask")


def imported_attention(
    name: str, paths: tuple[str, ...], *, causal: bool, length: int, device: torch.device
) -> ImportedAttention:
    """The named function, or the `apply` of a named `torch.autograd.Function`, for up to `length` tokens on the device.

    It is causal by ``is_causal`` or ``causal``, a flag, or by ``mask`` or ``attn_mask``, which is boolean, (T, T), and
    True where a query may look. Raises `ImportProblem` where it has none of these and has to be causal, or wants more.
    """
    function, parameters = _function(name, find(name, paths))
    by_name = {p.name: p for p in parameters[3:]}
    flag = next((by_name[word] for word in _FLAGS if word in by_name), None)
    mask = next((by_name[word] for word in _MASKS if word in by_name), None)
    if len(parameters) < 3:
        raise ImportProblem(f"{_words(name, parameters)} does not take queries, keys and values")
    if causal and flag is None and mask is None:
        raise ImportProblem(
            f"{_words(name, parameters)} cannot be told to be causal; it needs an argument {', '.join(_FLAGS)}, "
            f"{' or '.join(_MASKS)}"
        )
    if flag is None and mask is not None and not causal and mask.default is not mask.empty:
        mask = None  # it looks everywhere by itself
    chosen = flag or mask
    asked = [p for p in by_name.values() if p.default is p.empty and p is not chosen and p.kind not in _STARS]
    if asked:
        raise ImportProblem(f"{_words(name, parameters)} needs {asked[0].name}, which has no default")
    masked = flag is None and mask is not None
    table = _mask(length, device, causal=causal) if masked else None
    return ImportedAttention(name, function, _call(parameters, chosen), causal=causal, mask=table)


class ImportedAttention:
    """A user's attention, which takes what it is given as it is; a mask serves every layer and every step."""

    def __init__(
        self, name: str, function: Callable[..., Any], arguments: _Arguments, *, causal: bool, mask: Tensor | None
    ) -> None:
        self.name = name
        self.mask = mask
        """Where a query may look, (T, T); None for a function that is told in another way."""
        self._function = function
        self._arguments = arguments
        self._causal = causal

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        positional, named = self._arguments(self._causal if self.mask is None else _cut(self.mask, q.shape[-2]))
        return self._function(q, k, v, *positional, **named)


_Arguments = Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]
"""From what says how to look to the arguments behind queries, keys and values."""
_STARS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _function(name: str, found: Any) -> tuple[Callable[..., Any], list[inspect.Parameter]]:
    """What to call, and its parameters; those of an autograd function can only be given by place."""
    if _is_autograd_function(owner := getattr(found, "__self__", found)):
        parameters = list((parameters_of(owner.forward) or {}).values())
        if owner.setup_context is torch.autograd.Function.setup_context:
            parameters = parameters[1:]  # ctx
        return owner.apply, [p.replace(kind=p.POSITIONAL_ONLY) if p.kind not in _STARS else p for p in parameters]
    if isinstance(found, type) or not callable(found):
        raise ImportProblem(f"{name} is not a function, nor a torch.autograd.Function")
    wanted = parameters_of(found)
    if wanted is None:
        raise ImportProblem(f"{name} does not tell which arguments it takes; wrap it in a function that does")
    return found, list(wanted.values())


def _mask(length: int, device: torch.device, *, causal: bool) -> Tensor:
    mask = torch.ones(length, length, dtype=torch.bool, device=device)
    return mask.tril_() if causal else mask


def _cut(mask: Tensor, length: int) -> Tensor:
    return mask if mask.shape[0] == length else mask[:length, :length]


def _is_autograd_function(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, torch.autograd.Function)


def _call(parameters: list[inspect.Parameter], chosen: inspect.Parameter | None) -> _Arguments:
    if chosen is None:
        return lambda _: ((), {})
    if chosen.kind is not chosen.POSITIONAL_ONLY:
        word = chosen.name
        return lambda said: ((), {word: said})
    between = tuple(p.default for p in parameters[3 : parameters.index(chosen)])
    return lambda said: ((*between, said), {})


def _words(name: str, parameters: list[inspect.Parameter]) -> str:
    return signature_in_words(name, {p.name: p for p in parameters})
