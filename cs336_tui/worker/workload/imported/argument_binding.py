"""Giving a user's class or function what it asks for: arguments by name, from a spec and from what the user said."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import ALIASES, short
from cs336_tui.worker.workload.imported.problems import ImportProblem

Given = tuple[tuple[str, str], ...]
"""Arguments as a user wrote them: names and texts."""

_DIMS = ("d_model", "num_layers", "num_heads", "d_ff")
"""Dimensions that only the model itself has; the batch and the logits have the others, whatever a model asks for."""

_USUAL = {"rope_theta": 10_000.0, "theta": 10_000.0}
"""For arguments without a default: as of the reference model, and as in Su et al. 2021."""

_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_CONFIGS = ("config", "cfg")
"""What an argument is called that without an annotation is taken for a config."""
_UNIONS = (typing.Union, types.UnionType)
_TRUE, _FALSE = ("true", "yes", "1", "on"), ("false", "no", "0", "off")


def values_of(spec: CellSpec, device: torch.device, dtype: torch.dtype) -> dict[str, object]:
    """What a spec has to offer, under every name that it may be asked for by."""
    values = {name: getattr(spec, field) for field, others in ALIASES.items() for name in (field, *others)}
    return values | {"device": device, "dtype": dtype}


def call(name: str, function: Callable[..., Any], values: Mapping[str, object], given: Given = ()) -> Any:
    """Call what `name` names with what it asks for of `values`, and with all that is `given`.

    Raises `ImportProblem` for an argument that is missing or that it has no place for; what the function itself raises
    comes as it is.
    """
    parameters = parameters_of(function)
    if parameters is None:
        return function(**{argument: _literal(text) for argument, text in given})
    asked = _asked(function, parameters, values, given)
    _check_given(name, parameters, asked, given)
    arguments = _fill(name, function, parameters, values, given)
    rest = next((p.name for p in parameters.values() if p.kind is p.VAR_KEYWORD), None)
    beside = {argument: _literal(text) for argument, text in given if argument not in asked}
    ordered = {p: arguments[p] for p in parameters if p in arguments} | ({rest: beside} if rest else {})
    bound = inspect.BoundArguments(inspect.Signature(list(parameters.values())), ordered)
    return function(*bound.args, **bound.kwargs)


def dims_not_taken(function: Callable[..., Any], values: Mapping[str, object], given: Given) -> tuple[str, ...]:
    """The dimensions that it does not ask for by any name, and so has its own of; none where it does not tell."""
    parameters = parameters_of(function)
    if parameters is None:
        return ()
    asked = set(_asked(function, parameters, values, given))
    return tuple(field for field in _DIMS if not asked & {field, *ALIASES[field]})


def names_unseen(function: Callable[..., Any]) -> bool:
    """Whether it takes whatever it is given by name, so that nobody can tell what it wants."""
    return any(p.kind is p.VAR_KEYWORD for p in (parameters_of(function) or {}).values())


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    """By name, annotations evaluated where they can be; None for what does not tell."""
    found = _own_parameters(function)
    if found is None or not isinstance(function, type) or not _hands_all_on(found):
        return found
    # A subclass that hands on whatever it is given wants what the class that it is handed to wants.
    above = [base for base in function.__mro__ if "__init__" in vars(base)][1:]
    return found if not above or above[0] in (object, nn.Module) else parameters_of(above[0])


def _own_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    for evaluate in (True, False):
        try:
            return dict(inspect.signature(function, eval_str=evaluate).parameters)
        except (TypeError, ValueError):
            return None
        except Exception:  # an annotation of names that only type checkers see
            continue
    return None


def _hands_all_on(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Whether it is ``(*args, **kwargs)``."""
    return tuple(p.kind for p in parameters.values()) == _ANY


def signature_text(name: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    """``LM(vocab_size, d_model, dropout=0.1)``."""
    words = []
    for p in parameters.values():
        stars = _ANY.index(p.kind) + 1 if p.kind in _ANY else 0
        words.append(f"{'*' * stars}{p.name}" if p.default is p.empty else f"{p.name}={p.default!r}")
    return f"{short(name)}({', '.join(words)})"


def _fill(
    name: str,
    owner: Callable[..., Any],
    parameters: Mapping[str, inspect.Parameter],
    values: Mapping[str, object],
    given: Given,
) -> dict[str, Any]:
    """A value for each parameter of `owner` that has one; a config is made of the values for its fields."""
    texts = dict(given)
    filled: dict[str, Any] = {}
    for p in parameters.values():
        if p.kind in _ANY:
            continue
        if p.name in texts:
            filled[p.name] = parse(p, texts[p.name])
        elif p.name in values:
            filled[p.name] = _as_wanted(p, values[p.name])
        elif (kind := _config_to_make(owner, p, values, given)) is not None:
            filled[p.name] = _config(name, kind, p, values, given)
        elif p.default is p.empty:
            if p.name not in _USUAL:
                raise ImportProblem(f"{signature_text(name, parameters)} needs {p.name}; {_how_to_give(p)}")
            filled[p.name] = _USUAL[p.name]
    return filled


def _config(name: str, kind: Any, parameter: inspect.Parameter, values: Mapping[str, object], given: Given) -> Any:
    """The dataclass of a parameter; what is not told of it is as in the parameter's default where that is one."""
    fields = parameters_of(kind) or {}
    make: Callable[..., Any] = kind
    if isinstance(parameter.default, kind):
        make = partial(dataclasses.replace, parameter.default)
        fields = {field: p.replace(default=getattr(parameter.default, field)) for field, p in fields.items()}
    return make(**_fill(f"{short(name)}'s {kind.__name__}", kind, fields, values, given))


def _how_to_give(parameter: inspect.Parameter) -> str:
    """What to do about an argument that has no value yet; an object of a class of its own is nothing to type."""
    annotation, told = parameter.annotation, parameter.annotation is not parameter.empty
    is_class = told and isinstance(annotation, type) and annotation.__module__ != "builtins"
    if (is_class and not _kinds(parameter)) or (not told and parameter.name in _CONFIGS):
        return (
            f"that is nothing to type: name a function of the dimensions (d_model, num_layers, ...) that makes "
            f"{parameter.name} and returns the model"
        )
    return f"give it with --model-arg {parameter.name}=VALUE"


def _asked(
    owner: Callable[..., Any],
    parameters: Mapping[str, inspect.Parameter],
    values: Mapping[str, object],
    given: Given,
) -> list[str]:
    """Names of all that it may be given, fields of configs too."""
    names: list[str] = []
    for p in parameters.values():
        if p.kind not in _ANY:
            names.append(p.name)
            if (kind := _config_to_make(owner, p, values, given)) is not None:
                names += _asked(kind, parameters_of(kind) or {}, values, given)
    return names


def _as_wanted(parameter: inspect.Parameter, value: object) -> object:
    """Device and dtype by their names, ``cuda:0`` and ``bfloat16``, for who wants text."""
    by_default = parameter.annotation is parameter.empty and isinstance(parameter.default, str)
    if parameter.annotation is not str and not by_default:
        return value
    return str(value).removeprefix("torch.") if isinstance(value, torch.device | torch.dtype) else value


def _check_given(name: str, parameters: Mapping[str, inspect.Parameter], asked: list[str], given: Given) -> None:
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for argument, text in given:
        if argument not in asked:
            near = difflib.get_close_matches(argument, asked, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ImportProblem(
                f"--model-arg {argument}={text}: {signature_text(name, parameters)} has no such argument{meant}"
            )


def parse(parameter: inspect.Parameter, text: str) -> object:
    """A user's text as the parameter wants it, by its annotation, else by its default, else as Python reads it."""
    kinds = _kinds(parameter)
    if text.lower() == "none" and (str not in kinds or type(None) in kinds):
        return None
    for kind in kinds:
        try:
            return _as(kind, text)
        except (ValueError, SyntaxError):
            continue
    expected = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
    if expected:
        raise ImportProblem(f"--model-arg {parameter.name}={text}: expected {expected}")
    return _literal(text)


def _kinds(parameter: inspect.Parameter) -> list[type]:
    """What an argument may be, narrowest first; empty where that is not told or is not a plain kind."""
    annotation: Any = parameter.annotation
    if annotation is parameter.empty:
        return [] if parameter.default in (parameter.empty, None) else _plain([type(parameter.default)])
    if typing.get_origin(annotation) in _UNIONS:
        return _plain(list(typing.get_args(annotation)))
    return _plain([annotation])


_ORDER: tuple[type, ...] = (bool, int, float, torch.dtype, torch.device, str, type(None))


def _plain(kinds: list[Any]) -> list[type]:
    return sorted(kinds, key=_ORDER.index) if all(kind in _ORDER for kind in kinds) else []


def _as(kind: type, text: str) -> object:
    if kind is bool:
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(text)
        return text.lower() in _TRUE
    if kind is torch.dtype:
        found = getattr(torch, text.removeprefix("torch."), None)
        if not isinstance(found, torch.dtype):
            raise ValueError(text)
        return found
    if kind is torch.device:
        try:
            return torch.device(text)
        except RuntimeError as error:
            raise ValueError(text) from error
    if kind is type(None):
        raise ValueError(text)
    return kind(text)


def _literal(text: str) -> object:
    if text.lower() in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _config_to_make(
    owner: Callable[..., Any], parameter: inspect.Parameter, values: Mapping[str, object], given: Given
) -> Any:
    """The dataclass with which a parameter is to be filled, made by name; None where it is to be none of ours.

    One that has a default is made where it asks for a dimension, as an argument with a default is given one, and for
    nothing that is not known.
    """
    if parameter.kind in _ANY or parameter.name in values or parameter.name in dict(given):
        return None
    kind = _config_class(owner, parameter)
    if kind is None or kind is owner:
        return None
    if parameter.default is parameter.empty:
        return kind
    fields = parameters_of(kind) or {}
    if not any(fields.keys() & {field, *ALIASES[field]} for field in _DIMS):
        return None
    known = {*values, *dict(given), *_USUAL}
    needed = [p for p in fields.values() if p.default is p.empty and p.name not in known]
    lacks = not isinstance(parameter.default, kind) and any(
        _config_to_make(kind, each, values, given) is None for each in needed
    )
    return None if lacks else kind


def _config_class(owner: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The dataclass that a parameter is annotated with, or, of a bare ``config``, the one beside the function."""
    annotation = parameter.annotation
    kinds = typing.get_args(annotation) if typing.get_origin(annotation) in _UNIONS else (annotation,)
    for kind in kinds:
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return kind
    if annotation is not parameter.empty or parameter.name not in _CONFIGS:
        return None
    for home in owner.__mro__ if isinstance(owner, type) else (owner,):  # a subclass need not import it
        beside = vars(sys.modules.get(home.__module__, types.ModuleType("")))
        found = {
            word: kind for word, kind in beside.items() if isinstance(kind, type) and dataclasses.is_dataclass(kind)
        }
        configs = [kind for word, kind in found.items() if word.endswith("Config")]
        if named := found.get(f"{getattr(home, '__name__', '')}Config") or (configs[0] if len(configs) == 1 else None):
            return named
    return None
