"""What of a preset this machine can run: its author knows no machine."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from cs336_tui.config.spec import SpecError
from cs336_tui.config.sweep import Sweep
from cs336_tui.events.environment import Environment
from cs336_tui.runner.capabilities import LEFT_OUT, without_impossible

ALL = tuple(LEFT_OUT)
"""Fields of a cell that a machine may lack a value of."""


def possible_here(sweep: Sweep, environment: Environment, fields: Collection[str]) -> tuple[Sweep, tuple[str, ...]]:
    """The sweep, its devices named as they were, without those values of these fields that no cell of it can have
    here, and a line for each that says why. What is wrong otherwise stays, to be shown where it was entered."""
    try:
        resolved = sweep.with_devices(environment.resolve(sweep.devices))
        found, said = without_impossible(resolved, environment, fields)
    except SpecError:
        return sweep, ()
    return msgspec.structs.replace(found, devices=sweep.devices), said
