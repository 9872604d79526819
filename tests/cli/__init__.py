"""Tests of commands; what several of them need."""

from cs336_tui.cli.targets import Machine
from cs336_tui.events.environment import HostSample
from cs336_tui.events.events import DeviceSampled
from tests.samples import ENVIRONMENT, START


def here() -> Machine:
    """A machine with a GPU, as `read_machine` tells of one."""
    return Machine(ENVIRONMENT, (DeviceSampled(at=START, host=HostSample(memory_used_bytes=12_000_000_000)),))
