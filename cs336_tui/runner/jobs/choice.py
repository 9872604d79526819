"""The choice of a launcher, as a session keeps it."""

from __future__ import annotations

from typing import Literal

import msgspec

LauncherName = Literal["slurm", "ssh", "local"]
JobForm = Literal["array", "allocation"]


class LaunchChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options of ``--launcher``, kept as `launcher.json` beside the requests, so that ``watch``, ``resume`` and
    ``cancel`` need none. None: not given."""

    launcher: LauncherName
    form: JobForm | None = None
    """``--as``."""
    partition: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    lanes: int | None = None
    """On each node; 0: ``auto``."""
    time: str | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    """``--slurm KEY=VALUE``, in their order."""
    hosts: tuple[str, ...] = ()
    """``--host``, in their order."""
    remote_commands: tuple[tuple[str, str], ...] = ()
    """``--remote-command``: what runs cs336-tui on a host; of all hosts with an empty name."""
    host_timeout_s: float = 600.0
    """``--host-timeout``: a host that cannot be reached for so long is given up."""
