"""Reads the dtypes that pass through a model while it runs, and joins the rows of equal layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
from torch import Tensor, nn

from cs336_tui.events.reports import ModuleDtypes
from cs336_tui.worker.workload.attention_only import AttentionOnly
from cs336_tui.worker.workload.precision import dtype_name
from cs336_tui.worker.workload.transformer import Attention

WHOLE_MODEL = "model"  # The path of the model itself, whose name is empty in torch
METHOD = "method"  # The class shown for a part that is a method of its module

_ATTENTION_METHODS = ("score", "weigh", "mix", "attend")
"""Parts of attention between its projections. They are no modules, so torch's hooks do not see them."""
_LAYER = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")  # An index in a module list; the first of a path is the layer


_Part = tuple[nn.Module, str]  # A module, or a method of it


class _Call(NamedTuple):
    """The dtypes of one call."""

    parameters: str
    inputs: str
    output: str


class DtypeWatch:
    """Records the dtypes of all calls of modules and of attention's methods while it is entered."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._calls: dict[_Part, dict[_Call, None]] = {}  # Calls of each part, in the order of their begin
        self._undo: list[Callable[[], object]] = []

    def __enter__(self) -> DtypeWatch:
        for module in self._model.modules():
            self._undo.append(module.register_forward_pre_hook(self._comes_to, with_kwargs=True).remove)
            self._undo.append(module.register_forward_hook(self._saw, with_kwargs=True).remove)
            if isinstance(module, Attention | AttentionOnly):
                for method in _ATTENTION_METHODS:
                    self._wrap(module, method)
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            self._undo.pop()()

    def rows(self) -> tuple[ModuleDtypes, ...]:
        """A row for every called part, in the order of the calls; a shared module has one for each of its paths.

        Parameters and gradients are a module's own, without its submodules'; gradients are read now. Several dtypes are
        joined in the order of the arguments: ``bfloat16+float32``.
        """
        paths: dict[nn.Module, list[str]] = {}
        for path, module in self._model.named_modules(remove_duplicate=False):
            paths.setdefault(module, []).append(path)
        return tuple(
            ModuleDtypes(
                path=".".join(filter(None, (path, method))) or WHOLE_MODEL,
                module=METHOD if method else type(module).__name__,
                count=1,
                parameters=_joined(call.parameters for call in calls),
                inputs=_joined(call.inputs for call in calls),
                output=_joined(call.output for call in calls),
                gradients="" if method else gradient_dtypes(module.parameters(recurse=False)),
            )
            for (module, method), calls in self._calls.items()
            for path in paths[module]
        )

    def _came_to(self, module: nn.Module, method: str = "") -> None:
        self._calls.setdefault((module, method), {})

    def _comes_to(self, module: nn.Module, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        self._came_to(module)

    def _saw(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        parameters = dtypes_of(module.parameters(recurse=False))
        returned = output if isinstance(output, tuple | list) else [output]
        self._calls[module, ""][_Call(parameters, dtypes_of((*args, *kwargs.values())), dtypes_of(returned))] = None

    def _wrap(self, module: nn.Module, method: str) -> None:
        inner: Callable[..., Any] = getattr(module, method)

        @wraps(inner)
        def watched(*args: Any) -> Any:
            self._came_to(module, method)
            output = inner(*args)
            self._calls[module, method][_Call("", dtypes_of(args), dtypes_of([output]))] = None
            return output

        setattr(module, method, watched)
        self._undo.append(lambda: delattr(module, method))


def dtypes_of(values: Iterable[object]) -> str:
    """The distinct dtypes of the tensors among these, as ``bfloat16+float32``; empty without a tensor."""
    return _joined(dtype_name(value.dtype) for value in values if isinstance(value, Tensor))


def gradient_dtypes(parameters: Iterable[nn.Parameter]) -> str:
    """The dtypes of these parameters' gradients; empty before backward."""
    return dtypes_of(parameter.grad for parameter in parameters)


def collapsed(rows: Iterable[ModuleDtypes]) -> tuple[ModuleDtypes, ...]:
    """Join rows that are equal in every layer to ``layers.*.ffn`` with a count; else join each run of equal
    layers: ``layers.0.ffn``, ``layers.1-11.ffn``."""
    places: dict[str, list[ModuleDtypes]] = {}
    for row in rows:
        places.setdefault(_LAYER.sub("*", row.path, count=1), []).append(row)
    return tuple(joined for place, alike in places.items() for joined in _runs(place, alike))


def _runs(place: str, rows: list[ModuleDtypes]) -> Iterator[ModuleDtypes]:
    """The rows of one place in the layers, equal neighbours joined."""
    runs = [list(run) for _, run in groupby(rows, lambda row: msgspec.structs.replace(row, path=place))]
    for run in runs:
        first, last = (_LAYER.search(row.path) for row in (run[0], run[-1]))
        path = run[0].path
        if first and last and len(run) > 1:
            path = place if len(runs) == 1 else _LAYER.sub(f"{first[0]}-{last[0]}", path, count=1)
        yield msgspec.structs.replace(run[0], path=path, count=sum(row.count for row in run))


def _joined(names: Iterable[str]) -> str:
    return "+".join(dict.fromkeys(filter(None, names)))
