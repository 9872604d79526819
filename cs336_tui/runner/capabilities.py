"""Leaves out of a preset what a machine cannot run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from cs336_tui.config.spec import AXES, SpecError
from cs336_tui.config.sweep import Sweep
from cs336_tui.events.environment import Environment

LEFT_OUT = {axis.field: axis.sweep for axis in AXES.values() if axis.lacks} | {"ranks": "ranks"}
"""Fields of a cell that a device, or their number, may lack a value of, each with the field of a sweep that holds its
values."""


def without_impossible(
    sweep: Sweep, environment: Environment, fields: Collection[str] = tuple(LEFT_OUT)
) -> tuple[Sweep, tuple[str, ...]]:
    """The sweep, its devices resolved, without values of these `fields` that no cell can have here; and why."""
    problems = {spec: environment.refusal(spec) for spec in sweep.cells()}
    changes: dict[str, Any] = {}
    said: list[str] = []
    for field in filter(fields.__contains__, LEFT_OUT):
        values: dict[str, SpecError] = {}
        for value in getattr(sweep, LEFT_OUT[field]):
            found = [problem for spec, problem in problems.items() if getattr(spec, field) == value]
            why = next((problem for problem in found if problem and problem.field == field), None)
            if why and all(found):
                values[value] = why
        kept = tuple(value for value in getattr(sweep, LEFT_OUT[field]) if value not in values)
        if values and kept:
            changes[LEFT_OUT[field]] = kept
            said += [f"left out: {why}" for why in values.values()]
    return msgspec.structs.replace(sweep, **changes), tuple(said)


def possible_here(sweep: Sweep, environment: Environment, fields: Collection[str]) -> tuple[Sweep, tuple[str, ...]]:
    """As `without_impossible`, with its devices named as they were; what is wrong otherwise stays, to be shown."""
    try:
        resolved = sweep.with_devices(environment.resolve(sweep.devices))
        found, said = without_impossible(resolved, environment, fields)
    except SpecError:
        return sweep, ()
    return msgspec.structs.replace(found, devices=sweep.devices), said


def fields_of_preset(preset: str | None, choices: Mapping[str, object]) -> tuple[str, ...]:
    """Fields whose values come from the preset and may be left out, as `choices`, by the sweep's fields, name none."""
    return tuple(field for field, values in LEFT_OUT.items() if preset and not choices.get(values))
