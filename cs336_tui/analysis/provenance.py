"""Differences in how results of one table were made: settings in force, versions, machines.

What the spec says is a choice, which tables show; here is what came of it, or lay beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from cs336_tui.analysis.merge import Result, grouped

NONE = "none"
"""Of several things, that there is not one."""


class Aspect(NamedTuple):
    """One thing in which results may differ.

    `read` gives it in words, None where it is not known. `among` says which results must agree: those for which it
    gives the same.
    """

    name: str
    read: Callable[[Result], str | None]
    among: Callable[[Result], Hashable] = lambda _: None


def _in_force(path: str, *, none: str | None = None) -> Callable[[Result], str | None]:
    """A field of what was read back; `none` is what its None means, unless that it is not known."""

    def read(result: Result) -> str | None:
        found = result.cell.in_force
        return None if found is None else _words(getattr(found, path), none)

    return read


def _of_machine(path: str) -> Callable[[Result], str | None]:
    return lambda result: _words(getattr(result.environment, path, None))


def _of_device(path: str) -> Callable[[Result], str | None]:
    def read(result: Result) -> str | None:
        device = result.environment.device(result.spec.device) if result.environment else None
        return _words(getattr(device, path, None))

    return read


def _persistence(result: Result) -> str | None:
    return _words(result.cell.surroundings.persistence_mode)


def _device(result: Result) -> str:
    return result.spec.device


def _device_type(result: Result) -> str:
    return result.spec.device.partition(":")[0]


def _precision(result: Result) -> tuple[str, str]:
    return result.spec.precision, _device_type(result)


def _own_code(result: Result) -> tuple[str, ...]:
    """Fields that bring code of the user's; a revision is of all of it."""
    spec = result.spec
    return spec.model, spec.attention, spec.optimizer, spec.loss


def _attention(result: Result) -> tuple[str, ...]:
    """Settings that decide which kernel computes attention; the settings of each are a choice."""
    spec = result.spec
    return spec.workload, spec.model, spec.attention, spec.precision, spec.device


def _words(value: object, none: str | None = None) -> str | None:
    if value is None:
        return none
    if isinstance(value, tuple):
        return " ".join(value) or NONE
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


SETTINGS_IN_FORCE = (
    Aspect("threads", _in_force("threads")),
    Aspect("inter-op threads", _in_force("interop_threads")),
    Aspect("attention", _in_force("attention"), _attention),
    Aspect("allocator", _in_force("allocator"), _device_type),
    Aspect("environment variables", _in_force("variables"), _device_type),
    Aspect("persistence mode", _persistence, _device),
    Aspect("compiler", _in_force("compiler"), lambda result: (result.spec.compile, _device_type(result))),
    Aspect("model revision", _in_force("model_revision"), _own_code),
)
"""Effective settings beside the precision."""

_ALL = (
    *SETTINGS_IN_FORCE,
    Aspect("float32 matmul precision", _in_force("matmul_precision"), _precision),
    Aspect("TF32", _in_force("allow_tf32"), _precision),
    Aspect("parameters", _in_force("parameter_dtype"), _precision),
    Aspect("autocast", _in_force("autocast_dtype", none="none"), _precision),
    Aspect("float8", _in_force("float8", none="none"), _precision),
    Aspect("logits", _in_force("logits_dtype"), _precision),
    Aspect("host", _of_machine("host")),
    Aspect("device", _of_device("label"), _device),
    Aspect("GPU", _of_device("uuid"), lambda result: (_device(result), _of_machine("host")(result))),
    *(Aspect(name, _of_machine(name.lower())) for name in ("torch", "CUDA", "cuDNN", "driver", "Python")),
    Aspect("cs336-tui", _of_machine("app")),
)

_Groups = tuple[tuple[int, ...], ...]
"""Places of results that agree, those of the first to come first."""


def mixed_provenance(results: Sequence[Result]) -> tuple[str, ...]:
    """``mixed provenance: threads 2 (cells 1–3), 4 (cell 4)``: a line for each way in which the results fall apart.

    Empty where they agree. What is not known of a result is taken to agree with everything.
    """
    apart: dict[_Groups, list[tuple[str, list[str]]]] = {}
    for aspect in _ALL:
        for values in _values(aspect, results):
            if len(values) > 1:
                groups = tuple(tuple(places) for places in values.values())
                apart.setdefault(groups, []).append((aspect.name, list(values)))
    return tuple(
        f"mixed provenance: {_told(named, [_where(results, places) for places in groups])}"
        for groups, named in apart.items()
    )


def _values(aspect: Aspect, results: Sequence[Result]) -> Iterator[dict[str, list[int]]]:
    """For each lot of results that must agree, the values that they show and which of them show it."""
    lots: dict[Hashable, dict[str, list[int]]] = {}
    for place, result in enumerate(results):
        if (value := aspect.read(result)) is not None:
            lots.setdefault(aspect.among(result), {}).setdefault(value, []).append(place)
    yield from lots.values()


def _told(named: Sequence[tuple[str, Sequence[str]]], where: Sequence[str]) -> str:
    if len(named) == 1:
        ((name, values),) = named
        between = "; " if any("," in value for value in values) else ", "
        return f"{name} " + between.join(f"{value} ({place})" for value, place in zip(values, where, strict=True))
    sides = (", ".join(f"{name} {values[side]}" for name, values in named) for side in range(len(where)))
    return "; ".join(f"{side} ({place})" for side, place in zip(sides, where, strict=True))


def _where(results: Sequence[Result], places: Sequence[int]) -> str:
    """The cells at these places, ``cells 1–3, 5``, after their session's title where there are several; the title
    alone where it is all of a session's."""
    sessions = grouped((results[place] for place in places), lambda result: result.source)
    if len({result.source for result in results}) == 1:
        return _cells([results[place] for place in places])
    return ", ".join(
        found[0].session
        if len(found) == sum(result.source == source for result in results)
        else f"{found[0].session}, {_cells(found)}"
        for source, found in sessions.items()
    )


def _cells(results: Sequence[Result]) -> str:
    """Their numbers, as people count."""
    runs: list[list[int]] = []
    for number in sorted(map(attrgetter("cell.cell"), results)):
        if runs and runs[-1][1] == number:
            runs[-1][1] = number + 1
        else:
            runs.append([number + 1, number + 1])
    spans = (str(first) if first == last else f"{first}–{last}" for first, last in runs)
    return f"cell{'s' if len(results) > 1 else ''} {', '.join(spans)}"
