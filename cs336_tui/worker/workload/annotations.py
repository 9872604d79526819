"""Counting what a function of the user's does to a part of the model, while that model runs and no longer."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import nn
from torch.autograd import Function

from cs336_tui.events.reports import RANGES
from cs336_tui.worker.workload.imported.finding import missing
from cs336_tui.worker.workload.imported.problems import ImportProblem, explained

Annotation = tuple[str, str]
"""A range, and the ``package.module:function`` that makes it up."""

_USUAL: dict[str, str] = {"scaled_dot_product_attention": "attention core", "softmax": "softmax"}
"""Functions beside a user's attention whose names say what they do."""
_NEVER_USERS = ("torch", "cs336_tui")
"""Packages in which a name stays what it is, but for the one that is annotated."""
_INHERITED = object()
"""In place of what stands in a class: it is a base class's."""
_FUSED: Annotation = "attention core", f"{F.__name__}:scaled_dot_product_attention"


class _Place(NamedTuple):
    """An attribute that is the function: in its own module, and wherever it was imported by name."""

    owner: Any
    name: str
    stand_in_for: Callable[[Any], Any]
    """Makes, of what stands there, what is to stand there."""


def annotated_functions(
    model: nn.Module, annotations: Sequence[Annotation], around: Callable[[str], AbstractContextManager[object]]
) -> Callable[[], AbstractContextManager[object]]:
    """Makes contexts in which each function runs inside ``around(its range)``; they nest. A class of modules stands for
    the forward of those in the model, and is wrapped for good.

    The first annotation of a function holds. Raises `ImportProblem` for an unknown range and for what is not there.
    """
    seen: list[object] = []
    places: list[_Place] = []
    for range_, name in annotations:
        if range_ not in RANGES:
            problem = f"no such part of a model; expected one of {', '.join(RANGES)}"
            raise ImportProblem(f"annotate {range_}={name}: {problem}")
        owner, attribute, found = _find(range_, name)
        if any(each is found for each in seen):
            continue
        seen.append(found)
        if isinstance(found, type) and issubclass(found, nn.Module):
            for module in model.modules():
                if isinstance(module, found):
                    setattr(module, "forward", _inside(getattr(module, "forward"), range_, around))  # noqa: B009, B010
        else:
            places += _places(owner, attribute, found, range_, around)
    return _Scope(places).entered


def usual_annotations(modules: Iterable[nn.Module]) -> Iterator[Annotation]:
    """Functions that are named for what they do in the files of these modules, and torch's own fused attention."""
    homes = dict.fromkeys(type(module).__module__ for module in modules)
    for home in homes:
        for function, range_ in _USUAL.items():
            found = vars(sys.modules.get(home, None) or object).get(function)
            if inspect.isfunction(found) and not found.__module__.startswith("torch."):
                yield range_, f"{home}:{function}"
    yield _FUSED


def _find(range_: str, name: str) -> tuple[Any, str, Any]:
    """Where the function is, its name there, and itself."""
    home, _, path = name.partition(":")
    *owners, attribute = path.split(".")
    with explained(f"annotate {range_}={name}"):
        found: Any = import_module(home)
    where, at = found, home
    for each in owners:
        found, at = _attribute(found, each, where, at, range_, name), f"{at}.{each}"
    function = _attribute(found, attribute, where, at, range_, name)
    if not callable(function):
        raise ImportProblem(f"annotate {range_}={name}: it is no function but {type(function).__name__}")
    if isinstance(function, type) and issubclass(function, Function):
        return function, "apply", getattr(function, "apply")  # noqa: B009
    return found, attribute, function


def _attribute(found: Any, name: str, module: ModuleType, at: str, range_: str, asked: str) -> Any:
    """The attribute of what was found `at` a dotted place in the module."""
    try:
        return getattr(found, name)
    except AttributeError:
        raise ImportProblem(f"annotate {range_}={asked}: {missing(module, at, found, name)}") from None


def _places(
    owner: Any, attribute: str, found: Any, range_: str, around: Callable[[str], AbstractContextManager[object]]
) -> Iterator[_Place]:
    def inside(inner: Any) -> Any:
        return _inside(inner, range_, around)

    if isinstance(owner, type):
        is_method = inspect.isfunction(inspect.getattr_static(owner, attribute))  # one that is to get its object
        yield _Place(owner, attribute, inside if is_method else lambda inner: staticmethod(inside(inner)))
        return
    for place, module in [*sys.modules.items()]:
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict) and (module is owner or place.partition(".")[0] not in _NEVER_USERS):
            yield from (_Place(module, name, inside) for name in [*names] if names[name] is found)


def _inside(
    inner: Callable[..., Any], range_: str, around: Callable[[str], AbstractContextManager[object]]
) -> Callable[..., Any]:
    @wraps(inner)
    def named(*args: Any, **kwargs: Any) -> Any:
        with around(range_):
            return inner(*args, **kwargs)

    return named


class _Scope:
    """Puts stand-ins into their places when it is first entered, and back what stood there when it is last left.

    Scopes nest: a stand-in calls what stood there, which may be that of another scope.
    """

    def __init__(self, places: Sequence[_Place]) -> None:
        self._places = places
        self._stood: list[tuple[Any, str, Any]] = []
        self._depth = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        if not self._depth:
            for owner, name, stand_in_for in self._places:
                self._stood.append((owner, name, vars(owner).get(name, _INHERITED)))
                setattr(owner, name, stand_in_for(getattr(owner, name)))
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            while self._stood and not self._depth:
                owner, name, stood = self._stood.pop()
                if stood is _INHERITED:
                    delattr(owner, name)
                else:
                    setattr(owner, name, stood)
