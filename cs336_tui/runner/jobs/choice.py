"""The choice of a launcher, as a session keeps it."""

from __future__ import annotations

from typing import Literal

import msgspec

LauncherName = Literal["slurm", "local"]
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
