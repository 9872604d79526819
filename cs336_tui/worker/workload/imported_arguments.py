"""Binds arguments of a user's class or function by name, from a spec and from what the user gave."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import nn

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import ALIASES, did_you_mean, short
from cs336_tui.worker.workload.import_problems import ImportProblem

Given = tuple[tuple[str, str], ...]  # Arguments as a user wrote them: names and texts
Parameters = Mapping[str, inspect.Parameter]

_DIMS = ("d_model", "num_layers", "num_heads", "d_ff")  # Dimensions of the model alone, not of batch or logits
_USUAL = {"rope_theta": 10_000.0, "theta": 10_000.0}  # As in the reference model and Su et al. 2021
_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_CONFIGS = ("config", "cfg")  # Arguments without annotation that are taken for configs
_UNIONS = (typing.Union, types.UnionType)
_TRUE, _FALSE = ("true", "yes", "1", "on"), ("false", "no", "0", "off")


def values_of(spec: CellSpec, device: torch.device, dtype: torch.dtype) -> dict[str, object]:
    """The values of a spec under every name by which a user's code may ask for them."""
    values = {name: getattr(spec, field) for field, others in ALIASES.items() for name in (field, *others)}
    return values | {"batch_size": spec.rank_batch_size, "device": device, "dtype": dtype}


def call(name: str, function: Callable[..., Any], values: Mapping[str, object], given: Given = ()) -> Any:
    """Call the function that `name` names with the `values` that it asks for, and with everything `given`. Raises
    `ImportProblem` for a missing or unknown argument, and what the function itself raises."""
    parameters = parameters_of(function)
    if parameters is None:
        return function(**{argument: _literal(text) for argument, text in given})
    offer = _Offer(values, given)
    asked = offer.asked(function, parameters)
    rest = next((p.name for p in parameters.values() if p.kind is p.VAR_KEYWORD), None)
    unasked = [(argument, text) for argument, text in given if argument not in asked]
    for argument, text in unasked if rest is None else ():
        raise _unknown("--model-arg", name, parameters, asked, f"{argument}={text}")
    arguments = offer.fill(name, function, parameters)
    beside = {argument: _literal(text) for argument, text in unasked}
    ordered = {p: arguments[p] for p in parameters if p in arguments} | ({rest: beside} if rest else {})
    bound = inspect.BoundArguments(inspect.Signature(list(parameters.values())), ordered)
    return function(*bound.args, **bound.kwargs)


def _unknown(option: str, name: str, parameters: Parameters, known: Iterable[str], pair: str) -> ImportProblem:
    meant = did_you_mean(pair.partition("=")[0], known, "; ")
    return ImportProblem(f"{option} {pair}: {signature_text(name, parameters.values())} has no such argument{meant}")


def values_given(option: str, name: str, parameters: Parameters, free: Iterable[str], given: Given) -> dict[str, Any]:
    """The values of what a user gave by an option, for those arguments of a function that are `free` to be given, or
    for its ``**``. Raises `ImportProblem` for any other and for a value of another type."""
    rest = not parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    known, found = {*free}, dict[str, Any]()
    for argument, text in given:
        if argument not in known and (argument in parameters or not rest):
            raise _unknown(option, name, parameters, known, f"{argument}={text}")
        parameter = parameters.get(argument)
        found[argument] = parse(parameter, text, option) if parameter else _literal(text)
    return found


def dims_not_taken(function: Callable[..., Any], values: Mapping[str, object], given: Given) -> tuple[str, ...]:
    """The dimensions that the function does not ask for, and so has its own of; none if its signature is unknown."""
    parameters = parameters_of(function)
    if parameters is None:
        return ()
    asked = set(_Offer(values, given).asked(function, parameters))
    return tuple(field for field in _DIMS if not asked & {field, *ALIASES[field]})


def required(parameters: Parameters) -> list[str]:
    """Names of the arguments that have no default."""
    return [p.name for p in parameters.values() if p.default is p.empty and p.kind not in _ANY]


def no_default(name: str, parameters: Iterable[inspect.Parameter], argument: str, remedy: str = "") -> ImportProblem:
    """The problem that this argument has no default, and nobody knows its value."""
    return ImportProblem(f"{signature_text(name, parameters)} needs {argument}, which has no default{remedy}")


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    """Parameters by name, annotations evaluated if possible; None if the signature is unknown."""
    found = _own_parameters(function)
    passes_on = found is not None and tuple(p.kind for p in found.values()) == _ANY  # ``(*args, **kwargs)``
    if not passes_on or not isinstance(function, type):
        return found
    # A subclass that passes everything on wants what its base class wants.
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


def signature_text(name: str, parameters: Iterable[inspect.Parameter]) -> str:
    """``LM(vocab_size, d_model, dropout=0.1)``."""
    words = []
    for p in parameters:
        stars = _ANY.index(p.kind) + 1 if p.kind in _ANY else 0
        words.append(f"{'*' * stars}{p.name}" if p.default is p.empty else f"{p.name}={p.default!r}")
    return f"{short(name)}({', '.join(words)})"


class _Offer:
    """The values of a spec and the texts of the user, to fill parameters with."""

    def __init__(self, values: Mapping[str, object], given: Given) -> None:
        self._values, self._texts = values, dict(given)

    def fill(self, name: str, owner: Callable[..., Any], parameters: Parameters) -> dict[str, Any]:
        """A value for each parameter of `owner` that has one; configs are made of the values for their fields."""
        filled: dict[str, Any] = {}
        for p in parameters.values():
            if p.kind in _ANY:
                continue
            if p.name in self._texts:
                filled[p.name] = parse(p, self._texts[p.name])
            elif p.name in self._values:
                filled[p.name] = _as_wanted(p, self._values[p.name])
            elif (kind := self._config_to_make(owner, p)) is not None:
                filled[p.name] = self._config(name, kind, p)
            elif p.default is p.empty:
                if p.name not in _USUAL:
                    signature = signature_text(name, parameters.values())
                    raise ImportProblem(f"{signature} needs {p.name}; {_how_to_give(p)}")
                filled[p.name] = _USUAL[p.name]
        return filled

    def asked(self, owner: Callable[..., Any], parameters: Parameters) -> list[str]:
        """Names of all arguments, fields of configs included."""
        names: list[str] = []
        for p in parameters.values():
            if p.kind not in _ANY:
                names.append(p.name)
                if (kind := self._config_to_make(owner, p)) is not None:
                    names += self.asked(kind, parameters_of(kind) or {})
        return names

    def _config(self, name: str, kind: Any, parameter: inspect.Parameter) -> Any:
        """The dataclass of a parameter; fields without a value keep those of the parameter's default, if any."""
        fields = parameters_of(kind) or {}
        make: Callable[..., Any] = kind
        if isinstance(parameter.default, kind):
            make = partial(dataclasses.replace, parameter.default)
            fields = {field: p.replace(default=getattr(parameter.default, field)) for field, p in fields.items()}
        return make(**self.fill(f"{short(name)}'s {kind.__name__}", kind, fields))

    def _config_to_make(self, owner: Callable[..., Any], parameter: inspect.Parameter) -> Any:
        """The dataclass to make for a parameter, if any; with a default only one of dimensions and known names."""
        if parameter.kind in _ANY or parameter.name in self._values or parameter.name in self._texts:
            return None
        kind = _config_class(owner, parameter)
        if kind is None or kind is owner:
            return None
        if parameter.default is parameter.empty:
            return kind
        fields = parameters_of(kind) or {}
        if not any(fields.keys() & {field, *ALIASES[field]} for field in _DIMS):
            return None
        known = {*self._values, *self._texts, *_USUAL}
        needed = [p for p in fields.values() if p.default is p.empty and p.name not in known]
        lacks = any(self._config_to_make(kind, each) is None for each in needed)
        return None if lacks and not isinstance(parameter.default, kind) else kind


def _how_to_give(parameter: inspect.Parameter) -> str:
    """The remedy for an argument without a value; an object of a class of its own cannot be typed."""
    annotation, told = parameter.annotation, parameter.annotation is not parameter.empty
    is_class = told and isinstance(annotation, type) and annotation.__module__ != "builtins"
    if (is_class and not _kinds(parameter)) or (not told and parameter.name in _CONFIGS):
        return (
            f"it cannot be typed: name a function of the dimensions (d_model, num_layers, ...) that makes "
            f"{parameter.name} and returns the model"
        )
    return f"give it with --model-arg {parameter.name}=VALUE"


def _as_wanted(parameter: inspect.Parameter, value: object) -> object:
    """The value; device and dtype as text, ``cuda:0`` and ``bfloat16``, for a parameter that wants text."""
    by_default = parameter.annotation is parameter.empty and isinstance(parameter.default, str)
    if parameter.annotation is not str and not by_default:
        return value
    return str(value).removeprefix("torch.") if isinstance(value, torch.device | torch.dtype) else value


def parse(parameter: inspect.Parameter, text: str, option: str = "--model-arg") -> object:
    """A user's text as a value, by the parameter's annotation, else by its default, else as a Python literal."""
    kinds = _kinds(parameter)
    if text.lower() == "none" and (str not in kinds or type(None) in kinds):
        return None
    for kind in kinds:
        with suppress(ValueError, TypeError, RuntimeError):
            return _as(kind, text)
    expected = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
    if expected:
        raise ImportProblem(f"{option} {parameter.name}={text}: expected {expected}")
    return _literal(text)


def _kinds(parameter: inspect.Parameter) -> list[type]:
    """Types of an argument, narrowest first; empty if unknown or not plain."""
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
    """The text as one of `_ORDER`. Raises ValueError, or what the type raises, if it is none."""
    if kind is bool:
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(text)
        return text.lower() in _TRUE
    if kind is torch.dtype:
        found = getattr(torch, text.removeprefix("torch."), None)
        if not isinstance(found, torch.dtype):
            raise ValueError(text)
        return found
    return kind(text)


def _literal(text: str) -> object:
    if text.lower() in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _config_class(owner: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The dataclass of a parameter's annotation; of a bare ``config`` the one beside the function."""
    annotation = parameter.annotation
    kinds = typing.get_args(annotation) if typing.get_origin(annotation) in _UNIONS else (annotation,)
    for kind in kinds:
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return kind
    if annotation is not parameter.empty or parameter.name not in _CONFIGS:
        return None
    for home in owner.__mro__ if isinstance(owner, type) else (owner,):  # a subclass need not import it
        beside = vars(sys.modules.get(home.__module__, types.ModuleType("")))
        found = {name: of for name, of in beside.items() if isinstance(of, type) and dataclasses.is_dataclass(of)}
        configs = [kind for name, kind in found.items() if name.endswith("Config")]
        if named := found.get(f"{getattr(home, '__name__', '')}Config") or (configs[0] if len(configs) == 1 else None):
            return named
    return None
