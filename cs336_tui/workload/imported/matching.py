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
from typing import Any

import torch

from cs336_tui.spec import RunSpec
from cs336_tui.variants import ALIASES, short
from cs336_tui.workload.imported.problems import ImportProblem

Given = tuple[tuple[str, str], ...]
"""Arguments as a user wrote them: names and texts."""

_DIMS = ("d_model", "num_layers", "num_heads", "d_ff")
"""Dimensions that only the model itself has; the batch and the logits have the others, whatever a model asks for."""

_USUAL = {"rope_theta": 10_000.0, "theta": 10_000.0}
"""For arguments without a default: as of the reference model, and as in Su et al. 2021."""

_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_TRUE, _FALSE = ("true", "yes", "1", "on"), ("false", "no", "0", "off")


def values_of(spec: RunSpec, device: torch.device, dtype: torch.dtype) -> dict[str, object]:
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
    config = next((p for p in parameters.values() if _is_config(function, p, values, given)), None)
    fields = parameters_of(_config_class(function, config)) or {} if config else {}
    _check_given(name, parameters, fields, given)
    arguments = _fill(name, parameters, values, given, skip=config)
    if config is not None:
        kind = _config_class(function, config)
        of_fields = tuple(pair for pair in given if pair[0] in fields)
        arguments[config.name] = kind(**_fill(f"{short(name)}'s {kind.__name__}", fields, values, of_fields))
    ordered = {p: arguments[p] for p in parameters if p in arguments}
    bound = inspect.BoundArguments(inspect.Signature(list(parameters.values())), ordered)
    return function(*bound.args, **bound.kwargs)


def dims_not_taken(function: Callable[..., Any], values: Mapping[str, object], given: Given) -> tuple[str, ...]:
    """The dimensions that it does not ask for by any name, and so has its own of; none where it does not tell."""
    parameters = parameters_of(function)
    if parameters is None:
        return ()
    config = next((p for p in parameters.values() if _is_config(function, p, values, given)), None)
    asked = {*parameters, *(parameters_of(_config_class(function, config)) or {} if config else {})}
    return tuple(field for field in _DIMS if not asked & {field, *ALIASES[field]})


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    """By name, annotations evaluated where they can be; None for what does not tell."""
    for evaluate in (True, False):
        try:
            return dict(inspect.signature(function, eval_str=evaluate).parameters)
        except (TypeError, ValueError):
            return None
        except Exception:  # an annotation of names that only type checkers see
            continue
    return None


def signature_in_words(name: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    """``LM(vocab_size, d_model, dropout=0.1)``."""
    words = []
    for p in parameters.values():
        stars = _ANY.index(p.kind) + 1 if p.kind in _ANY else 0
        words.append(f"{'*' * stars}{p.name}" if p.default is p.empty else f"{p.name}={p.default!r}")
    return f"{short(name)}({', '.join(words)})"


def _fill(
    name: str,
    parameters: Mapping[str, inspect.Parameter],
    values: Mapping[str, object],
    given: Given,
    skip: inspect.Parameter | None = None,
) -> dict[str, Any]:
    """A value for each parameter that has one."""
    texts = dict(given)
    filled: dict[str, Any] = {}
    for p in parameters.values():
        if p.kind in _ANY or p is skip:
            continue
        if p.name in texts:
            filled[p.name] = parse(p, texts[p.name])
        elif p.name in values:
            filled[p.name] = values[p.name]
        elif p.default is p.empty:
            if p.name not in _USUAL:
                raise ImportProblem(
                    f"{signature_in_words(name, parameters)} needs {p.name}; give it with --model-arg {p.name}=VALUE"
                )
            filled[p.name] = _USUAL[p.name]
    rest = next((p for p in parameters.values() if p.kind is p.VAR_KEYWORD), None)
    if rest is not None:
        filled[rest.name] = {argument: _literal(text) for argument, text in given if argument not in parameters}
    return filled


def _check_given(
    name: str, parameters: Mapping[str, inspect.Parameter], fields: Mapping[str, inspect.Parameter], given: Given
) -> None:
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    takes = [p.name for p in parameters.values() if p.kind not in _ANY] + list(fields)
    for argument, text in given:
        if argument not in takes:
            near = difflib.get_close_matches(argument, takes, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ImportProblem(
                f"--model-arg {argument}={text}: {signature_in_words(name, parameters)} has no such argument{meant}"
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
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
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


def _is_config(
    function: Callable[..., Any], parameter: inspect.Parameter, values: Mapping[str, object], given: Given
) -> bool:
    """Whether this is to be filled with a dataclass that is made by name."""
    if parameter.default is not parameter.empty or parameter.name in values or parameter.name in dict(given):
        return False
    return parameter.kind not in _ANY and _config_class(function, parameter) is not None


def _config_class(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The dataclass that a parameter is annotated with, or, of a bare ``config``, the one beside the function."""
    annotation = parameter.annotation
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return annotation
    if annotation is not parameter.empty or parameter.name not in ("config", "cfg"):
        return None
    beside = vars(sys.modules.get(function.__module__, types.ModuleType("")))
    found = {name: kind for name, kind in beside.items() if isinstance(kind, type) and dataclasses.is_dataclass(kind)}
    configs = [kind for name, kind in found.items() if name.endswith("Config")]
    return found.get(f"{function.__name__}Config") or (configs[0] if len(configs) == 1 else None)
