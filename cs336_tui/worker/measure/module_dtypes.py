"""Reading the dtypes that pass through a model while it runs, and joining the rows of layers that are alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from itertools import groupby
from types import TracebackType
from typing import Any, NamedTuple

import msgspec
from torch import Tensor, nn

from cs336_tui.events.reports import ModuleDtypes
from cs336_tui.worker.workload.attention_only import AttentionOnly
from cs336_tui.worker.workload.precision import dtype_name
from cs336_tui.worker.workload.transformer import Attention

WHOLE_MODEL = "model"
"""The path that is shown for the model itself, which torch calls by the empty name."""
METHOD = "method"
"""Stands for the class of a part that is a method of its module."""

_ATTENTION_METHODS = ("score", "weigh", "mix", "attend")
"""What attention does between its projections, the softmax among it; no modules, so that no hook of torch's sees it."""
_LAYER = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")
"""A place in a list; the first of a path is the layer."""


_Part = tuple[nn.Module, str]
"""A module, or a method of it."""


class _Call(NamedTuple):
    """What one call saw."""

    parameters: str
    inputs: str
    output: str


class DtypeWatch:
    """Notes the dtypes of every module's calls, and of attention's own steps, while it is entered."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._calls: dict[_Part, dict[_Call, None]] = {}
        """What each part has seen, in the order in which they were come to."""
        self._undo: list[Callable[[], object]] = []

    def __enter__(self) -> DtypeWatch:
        for module in self._model.modules():
            self._undo.append(module.register_forward_pre_hook(self._comes_to, with_kwargs=True).remove)
            self._undo.append(module.register_forward_hook(self._saw, with_kwargs=True).remove)
            if isinstance(module, Attention | AttentionOnly):
                for method in _ATTENTION_METHODS:
                    self._wrap(module, method)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while self._undo:
            self._undo.pop()()

    def rows(self) -> tuple[ModuleDtypes, ...]:
        """A row for everything that was called, in the order of the calls; a shared module has one for each place.

        Parameters and gradients are a module's own, not those of the modules in it; gradients are read now. Where there
        are several dtypes, inputs are in the order of the arguments: ``bfloat16+float32``.
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
    """The dtypes of the tensors among these, each once, as ``bfloat16+float32``; empty without one."""
    return _joined(dtype_name(value.dtype) for value in values if isinstance(value, Tensor))


def gradient_dtypes(parameters: Iterable[nn.Parameter]) -> str:
    """The dtypes of these parameters' gradients; empty where backward has not run."""
    return dtypes_of(parameter.grad for parameter in parameters)


def collapsed(rows: Iterable[ModuleDtypes]) -> tuple[ModuleDtypes, ...]:
    """One row for what is alike in every layer: ``layers.*.ffn`` and how many. Where layers differ, a row for each run
    of layers that agree: ``layers.0.ffn``, ``layers.1-11.ffn``."""
    places: dict[str, list[ModuleDtypes]] = {}
    for row in rows:
        places.setdefault(_LAYER.sub("*", row.path, count=1), []).append(row)
    return tuple(joined for place, alike in places.items() for joined in _runs(place, alike))


def _runs(place: str, rows: list[ModuleDtypes]) -> Iterator[ModuleDtypes]:
    """The rows of one place in the layers, in the layers' order, those next to one another that agree as one."""
    runs = [list(run) for _, run in groupby(rows, lambda row: msgspec.structs.replace(row, path=place))]
    for run in runs:
        first, last = (_LAYER.search(row.path) for row in (run[0], run[-1]))
        path = run[0].path
        if first and last and len(run) > 1:
            path = place if len(runs) == 1 else _LAYER.sub(f"{first[0]}-{last[0]}", path, count=1)
        yield msgspec.structs.replace(run[0], path=path, count=sum(row.count for row in run))


def _joined(names: Iterable[str]) -> str:
    return "+".join(dict.fromkeys(filter(None, names)))
