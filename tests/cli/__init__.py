"""Tests of commands; what several of them need."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

from cs336_tui.cli import targets
from cs336_tui.cli.targets import Machine
from cs336_tui.events.environment import HostSample
from cs336_tui.events.events import DeviceSampled
from tests.samples import ENVIRONMENT, START


def here() -> Machine:
    """A machine with a GPU, as `read_machine` tells of one."""
    return Machine(ENVIRONMENT, (DeviceSampled(at=START, host=HostSample(memory_used_bytes=12_000_000_000)),))


@contextmanager
def a_machine(predictor: Any, machine: Machine | None = None) -> Iterator[None]:
    """Commands run on this machine, `here` unless given, and predict by `predictor`; None: as they do elsewhere."""
    made: dict[str, Any] = {"read_machine": lambda: machine or here()}
    if predictor is not None:
        made |= {"Predictor": lambda *_, **__: predictor, "closing": nullcontext}
        made |= {"child_processes": lambda: nullcontext(mock.Mock())}
    with mock.patch.multiple(targets, **made):
        yield
